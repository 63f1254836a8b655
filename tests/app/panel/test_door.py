"""Signing in and out, forged cookies, forms without their token, and the headers."""

from __future__ import annotations

import logging

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient

from app import create_app, settings
from app.panel.door import MOST_WRONG_LOGINS, SESSION_COOKIE, VISITOR_COOKIE
from app.panel.session import EXPIRY_S, SessionSigner
from app.store import keys
from app.store.app_state import AppState
from tests.app.conftest import ADMIN_TOKEN
from tests.app.panel.conftest import Admin, form_token, sign_in
from tests.app.wecom.sealing import AGENT, CORP

PAGES = ("doctor", "turns", "turns/x", "queue", "outbox", "users", "engine", "test")
FORMS = ("self-check", "sending", "replay", "test")


def test_without_a_session_there_is_a_login_form_and_nothing_else(http: FlaskClient) -> None:
    page = http.get("/admin")
    assert (page.status_code, "管理令牌" in page.get_data(as_text=True)) == (200, True)
    for name in PAGES:
        response = http.get(f"/admin/ui/{name}")
        assert (response.status_code, response.location) == (302, "/admin")
    for name in FORMS:
        assert http.post(f"/admin/ui/{name}", data={"do": "hold"}).status_code == 403
    assert http.post("/admin/logout").status_code == 403


def test_the_token_opens_a_session_and_the_cookie_is_kept_from_others(http: FlaskClient) -> None:
    response = sign_in(http)
    assert (response.status_code, response.location) == (303, "/admin/ui/doctor")
    (header,) = (
        h for h in response.headers.getlist("Set-Cookie") if h.startswith(f"{SESSION_COOKIE}=")
    )
    assert "HttpOnly" in header
    assert "SameSite=Strict" in header
    assert "Path=/admin" in header
    assert f"Max-Age={EXPIRY_S}" in header
    assert "Secure" not in header
    assert ADMIN_TOKEN not in header
    assert http.get("/admin").location == "/admin/ui/doctor"
    assert http.get("/admin/ui/turns").status_code == 200


def test_behind_https_the_cookies_are_secure(http: FlaskClient) -> None:
    http.get("/admin", base_url="https://localhost")
    page = http.get("/admin", headers={"X-Forwarded-Proto": "https"})
    assert all("Secure" in header for header in page.headers.getlist("Set-Cookie"))
    visitor = form_token(page)
    response = http.post(
        "/admin/login",
        data={"token": ADMIN_TOKEN, "form_token": visitor},
        headers={"X-Forwarded-Proto": "https", "Cookie": f"{VISITOR_COOKIE}={visitor}"},
    )
    assert response.status_code == 303
    (header,) = (
        h for h in response.headers.getlist("Set-Cookie") if h.startswith(f"{SESSION_COOKIE}=")
    )
    assert "Secure" in header


@pytest.mark.parametrize(
    "wrong", ["", "wrong", ADMIN_TOKEN + "x", ADMIN_TOKEN[:-1], "\ud800", "令"]
)
def test_a_wrong_token_is_refused(http: FlaskClient, wrong: str) -> None:
    response = sign_in(http, wrong.encode("utf-8", "replace").decode())
    assert response.status_code == 403
    assert not [
        h for h in response.headers.getlist("Set-Cookie") if h.startswith(f"{SESSION_COOKIE}=")
    ]
    assert http.get("/admin/ui/turns").status_code == 302


def test_tokens_are_compared_in_constant_time(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def record(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    page = http.get("/admin")
    monkeypatch.setattr("app.panel.session.hmac.compare_digest", record)
    http.post("/admin/login", data={"token": "guess", "form_token": form_token(page)})
    assert (b"guess", ADMIN_TOKEN.encode()) in compared


def test_five_wrong_logins_a_minute_close_the_door_for_that_address(
    http: FlaskClient, redis_client: redis.Redis
) -> None:
    for _ in range(MOST_WRONG_LOGINS):
        assert sign_in(http, "wrong").status_code == 403
    refused = sign_in(http)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    # What a caller writes into a header opens nothing; another address is not affected.
    assert sign_in(http, **{"X-Forwarded-For": "203.0.113.9"}).status_code == 429
    page = http.get("/admin", environ_base={"REMOTE_ADDR": "203.0.113.9"})
    form = {"token": ADMIN_TOKEN, "form_token": form_token(page)}
    elsewhere = http.post("/admin/login", data=form, environ_base={"REMOTE_ADDR": "203.0.113.9"})
    assert elsewhere.status_code == 303
    http.delete_cookie(SESSION_COOKIE, path="/admin")
    for key in redis_client.scan_iter("hutong:wrong-tokens:*"):
        redis_client.delete(key)
    assert sign_in(http).status_code == 303


def test_a_login_form_of_another_site_is_refused(http: FlaskClient) -> None:
    http.get("/admin")
    for given in ({}, {"form_token": ""}, {"form_token": "x" * 32}):
        response = http.post("/admin/login", data={"token": ADMIN_TOKEN, **given})
        assert response.status_code == 403
    http.delete_cookie(VISITOR_COOKIE, path="/admin")
    empty = {"token": ADMIN_TOKEN, "form_token": ""}
    assert http.post("/admin/login", data=empty).status_code == 403
    assert http.get("/admin/ui/turns").status_code == 302


@pytest.mark.parametrize("name", [*FORMS, "../logout"])
@pytest.mark.parametrize("given", [None, "", "0" * 64, "令牌"])
def test_no_form_works_without_its_token(
    admin: Admin, redis_client: redis.Redis, name: str, given: str | None
) -> None:
    data = {"do": "hold", "user": "zhangsan", "text": "x", "part": "*"}
    if given is not None:
        data["form_token"] = given
    path = "/admin/logout" if name.startswith("..") else f"/admin/ui/{name}"
    assert admin.http.post(path, data=data).status_code == 403
    assert AppState(redis_client).held_since_ms(CORP, AGENT) == 0
    assert redis_client.zcard(keys.RECENT_TURNS) == 0
    assert admin.http.get("/admin/ui/turns").status_code == 200


def test_the_token_of_another_session_is_refused(web: Flask) -> None:
    one, other = Admin(web.test_client()), Admin(web.test_client())
    assert one.token != other.token
    form = {"form_token": other.token, "do": "hold"}
    assert one.http.post("/admin/ui/sending", data=form).status_code == 403


def test_signing_out_ends_the_session_also_for_a_copy_of_its_cookie(admin: Admin) -> None:
    copied = admin.http.get_cookie(SESSION_COOKIE, path="/admin")
    assert copied is not None
    response = admin.http.post("/admin/logout", data={"form_token": admin.token})
    assert (response.status_code, response.location) == (303, "/admin")
    admin.http.set_cookie(SESSION_COOKIE, copied.value, path="/admin")
    assert admin.http.get("/admin/ui/turns").status_code == 302


def test_forged_foreign_and_old_cookies_are_no_session(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, foreign = SessionSigner("another-token").new()
    _, own = SessionSigner(ADMIN_TOKEN).new()
    for value in ("", "x", "a.b.c", foreign, own[:-1], own[1:], own + "."):
        http.set_cookie(SESSION_COOKIE, value, path="/admin")
        assert http.get("/admin/ui/turns").status_code == 302, value
    http.set_cookie(SESSION_COOKIE, own, path="/admin")
    assert http.get("/admin/ui/turns").status_code == 200
    signed_s = SessionSigner(ADMIN_TOKEN)._serializer.make_signer().get_timestamp()
    monkeypatch.setattr(
        "itsdangerous.timed.TimestampSigner.get_timestamp", lambda self: signed_s + EXPIRY_S + 2
    )
    assert http.get("/admin/ui/turns").status_code == 302


def test_two_tabs_with_a_login_form_both_work(http: FlaskClient) -> None:
    first, _second = form_token(http.get("/admin")), http.get("/admin")
    form = {"token": ADMIN_TOKEN, "form_token": first}
    assert http.post("/admin/login", data=form).status_code == 303


def test_a_visitor_gets_nothing_signed(http: FlaskClient) -> None:
    """Or tokens could be tried against the signature without asking us."""
    page = http.get("/admin")
    (header,) = page.headers.getlist("Set-Cookie")
    assert header.startswith(f"{VISITOR_COOKIE}={form_token(page)};")
    assert len(form_token(page)) == 32


@pytest.mark.parametrize("path", ["/admin", "/admin/ui/turns", "/admin/ui/static/panel.css"])
def test_every_answer_carries_the_headers(admin: Admin, path: str) -> None:
    if path == "/admin":
        admin.http.delete_cookie(SESSION_COOKIE, path="/admin")
    response = admin.http.get(path)
    response.close()
    assert response.status_code == 200
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert ("no-store" in response.headers.get("Cache-Control", "")) == ("static" not in path)


def test_without_a_configured_token_there_is_no_page(
    environ: dict[str, str], redis_client: redis.Redis
) -> None:
    off = create_app(settings.load({**environ, "ADMIN_TOKEN": ""}), redis_client).test_client()
    for path in ("/admin", "/admin/ui/turns", "/admin/ui/static/panel.css"):
        assert off.get(path).status_code == 404
    for path in ("/admin/login", "/admin/logout", "/admin/ui/sending"):
        assert off.post(path, data={"token": "", "form_token": ""}).status_code == 404


def test_the_session_does_not_open_the_api_and_the_bearer_not_the_page(admin: Admin) -> None:
    assert admin.http.get("/admin/status").status_code == 401
    admin.http.delete_cookie(SESSION_COOKIE, path="/admin")
    bearer = {"Authorization": f"Bearer {ADMIN_TOKEN}".encode().decode("latin-1")}
    assert admin.http.get("/admin/ui/turns", headers=bearer).status_code == 302


def test_neither_token_nor_cookie_is_logged(
    http: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sign_in(http, "a-wrong-guess")
    admin = Admin(http)
    admin.post("test", user="zhangsan", text="机密问题")
    cookie = http.get_cookie(SESSION_COOKIE, path="/admin")
    assert cookie is not None
    shown = " ".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "admin signed in" in shown
    for secret in ("a-wrong-guess", ADMIN_TOKEN, cookie.value, admin.token):
        assert secret not in shown

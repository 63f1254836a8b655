"""The admin API over HTTP on a real Redis: who may, what is refused, what a turn shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis
from flask.testing import FlaskClient
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import MAX_BODY_BYTES, create_app, replies, settings
from app.metrics import Metrics
from app.settings import Settings
from app.store.app_state import AppState
from app.store.keys import UserKeys, user_tag
from app.store.lease import Leases
from app.store.server import RedisServer, connect
from app.store.turns import Finish, Turns
from tests.app.conftest import ADMIN_TOKEN, Queue
from tests.app.wecom.sealing import AGENT, CORP

# A header travels as bytes; WSGI shows them as Latin-1.
BEARER = {"Authorization": f"Bearer {ADMIN_TOKEN}".encode().decode("latin-1")}


def post(http: FlaskClient, payload: object) -> TestResponse:
    return http.post("/admin/test-message", data=json.dumps(payload).encode(), headers=BEARER)


def code(response: TestResponse) -> str:
    return str(response.get_json()["error"]["code"])


# --- who may ---


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic " + BEARER["Authorization"][7:], "Bearer é"],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "test-message"), ("GET", "turns/x")])
def test_without_the_token_401(
    http: FlaskClient, queue: Queue, authorization: str, method: str, path: str
) -> None:
    response = http.open(
        f"/admin/{path}",
        method=method,
        json={"user": "zhangsan", "text": "x"},
        headers={"Authorization": authorization},
    )
    assert (response.status_code, code(response)) == (401, "unauthorized")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert queue.of("zhangsan") == []


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Bearer None"])
def test_without_a_configured_token_the_api_is_off(
    environ: dict[str, str], redis_client: redis.Redis, authorization: str
) -> None:
    off = settings.load({**environ, "ADMIN_TOKEN": ""})
    http = create_app(off, redis_client).test_client()
    for path in ("/admin/test-message", "/admin/turns/x"):
        response = http.open(
            path,
            method="POST" if path.endswith("message") else "GET",
            data=b'{"user": "a", "text": "b"}',
            headers={"Authorization": authorization},
        )
        assert response.status_code == 404


def test_tokens_are_compared_in_constant_time(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def record(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("app.boundary.hmac.compare_digest", record)
    http.get("/admin/turns/x", headers=BEARER)
    assert compared == [(ADMIN_TOKEN.encode(), ADMIN_TOKEN.encode())]


# --- test-message ---


def test_a_test_message_is_queued_as_that_user(http: FlaskClient, queue: Queue) -> None:
    response = post(http, {"user": "zhangsan", "text": "你好"})
    assert response.status_code == 202
    (turn,) = queue.of("zhangsan")
    assert response.get_json() == {"turn_id": turn.id}
    assert (turn.text, turn.dry_run, turn.user) == ("你好", False, "zhangsan")


def test_the_same_text_twice_is_two_turns(http: FlaskClient, queue: Queue) -> None:
    for _ in range(2):
        post(http, {"user": "zhangsan", "text": "你好"})
    assert len(queue.of("zhangsan")) == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_leaves_the_outbox_empty(
    http: FlaskClient, redis_client: redis.Redis, dry_run: bool
) -> None:
    response = post(http, {"user": "zhangsan", "text": "你好", "dry_run": dry_run})
    turn_id = response.get_json()["turn_id"]
    finish(redis_client, turn_id, Finish("done", "答案", parts=("答案",)))
    shown = http.get(f"/admin/turns/{turn_id}", headers=BEARER).get_json()
    assert (shown["dry_run"], shown["answer"], shown["status"]) == (dry_run, "答案", "done")
    outbox = redis_client.llen(f"hutong:{{{user_tag(CORP, AGENT, 'zhangsan')}}}:outbox")
    assert outbox == (0 if dry_run else 1)


def finish(client: redis.Redis, turn_id: str, how: Finish) -> None:
    """End a turn as a worker does."""
    lease = Leases(client, "turn").acquire(user_tag(CORP, AGENT, "zhangsan"))
    assert lease is not None
    turns = Turns(client)
    assert turns.begin(lease, turn_id).verdict == "begun"
    assert turns.finish(lease, turn_id, how)
    lease.release()


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("", ""), (" \n", ""), ("a\x00b\x08", "ab"), ("😀" * 3000, "😀" * 3000), ("\ud800x", "x")],
)
def test_odd_texts_are_queued(http: FlaskClient, queue: Queue, sent: str, kept: str) -> None:
    assert post(http, {"user": "zhangsan", "text": sent}).status_code == 202
    assert [turn.text for turn in queue.of("zhangsan")] == [kept]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "malformed_json"),
        (b"{", "malformed_json"),
        (b"\xff", "malformed_json"),
        (b"[]", "malformed_json"),
        (b'"x"', "malformed_json"),
        (b"[" * 100_000, "malformed_json"),
        (b"{}", "missing_field"),
        (b'{"user": "a"}', "missing_field"),
        (b'{"text": "a"}', "missing_field"),
        (b'{"user": "a", "text": "b", "agent": 1}', "unknown_field"),
        (b'{"user": "a", "text": 1}', "wrong_type"),
        (b'{"user": ["a"], "text": "b"}', "wrong_type"),
        (b'{"user": "a", "text": null}', "wrong_type"),
        (b'{"user": "a", "text": "b", "dry_run": "yes"}', "wrong_type"),
        (b'{"user": "a", "text": "b", "dry_run": 1}', "wrong_type"),
        (b'{"user": "", "text": "b"}', "bad_user"),
        (b'{"user": "@all", "text": "b"}', "bad_user"),
        (b'{"user": "a|b", "text": "b"}', "bad_user"),
        (b'{"user": "\\ud800", "text": "b"}', "bad_user"),
        (b'{"\\ud800": "a"}', "unknown_field"),
    ],
)
def test_a_bad_body_is_a_typed_400(http: FlaskClient, body: bytes, expected: str) -> None:
    response = http.post("/admin/test-message", data=body, headers=BEARER)
    assert (response.status_code, code(response)) == (400, expected)
    assert response.mimetype == "application/json"


@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["user", "text", "dry_run", "x"]), inner, max_size=4)
        ),
    )
)
@example({"user": "a", "text": "b"})
def test_any_json_is_202_or_400(http: FlaskClient, payload: object) -> None:
    assert post(http, payload).status_code in (202, 400)


def test_an_oversized_body_is_413(http: FlaskClient) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    response = http.post("/admin/test-message", data=body, headers=BEARER)
    assert (response.status_code, response.mimetype) == (413, "application/json")


# --- turns ---


def test_a_queued_turn_shows_its_place(http: FlaskClient) -> None:
    ids = [
        post(http, {"user": user, "text": "你好"}).get_json()["turn_id"]
        for user in ("zhangsan", "lisi")
    ]
    first, second = (
        http.get(f"/admin/turns/{turn_id}", headers=BEARER).get_json() for turn_id in ids
    )
    assert (first["position"], second["position"]) == (0, 1)
    assert (first["status"], first["answer"], first["steps"]) == ("queued", "", [])
    assert first["times"]["created_ms"] > 0
    assert first["times"]["ended_ms"] == 0


def test_an_ended_turn_shows_its_steps_with_the_thinking(
    http: FlaskClient, redis_client: redis.Redis
) -> None:
    turn_id = post(http, {"user": "zhangsan", "text": "你好"}).get_json()["turn_id"]
    steps = [
        {"kind": "model", "text": "", "reasoning": "先查销售表", "tool_calls": []},
        {"kind": "tool", "name": "sql_query", "content": "共5行", "error": ""},
    ]
    written = json.dumps(steps, ensure_ascii=False)
    finish(redis_client, turn_id, Finish("done", "答案", steps=written))
    shown = http.get(f"/admin/turns/{turn_id}", headers=BEARER).get_json()
    assert (shown["steps"], shown["answer"], shown["attempts"]) == (steps, "答案", 1)
    times = shown["times"]
    assert 0 < times["created_ms"] <= times["started_ms"] <= times["ended_ms"]


@pytest.mark.parametrize("turn_id", ["x", "0" * 32, "%00", "a b", "中", "*"])
def test_an_unknown_turn_is_404(http: FlaskClient, turn_id: str) -> None:
    response = http.get(f"/admin/turns/{turn_id}", headers=BEARER)
    assert (response.status_code, code(response)) == (404, "unknown_turn")


def test_a_wrong_method_is_a_typed_405(http: FlaskClient) -> None:
    response = http.get("/admin/test-message", headers=BEARER)
    assert (response.status_code, code(response)) == (405, "method_not_allowed")


def test_without_redis_503(configured: Settings, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "own") as server, connect(server.url, timeout_s=1) as client:
        http = create_app(configured, client).test_client()
        server.kill()
        for response in (
            post(http, {"user": "zhangsan", "text": "x"}),
            http.get("/admin/turns/x", headers=BEARER),
        ):
            assert (response.status_code, code(response)) == (503, "store_unavailable")


def test_status_shows_what_to_mend_and_what_was_counted(
    http: FlaskClient, redis_client: redis.Redis
) -> None:
    with Metrics(redis_client) as metrics:
        metrics.count("hutong_messages", outcome="queued", reason="")
    tag = f"{CORP}:{AGENT}:zhangsan"
    AppState(redis_client).raise_alert(tag, 60020, "请把 203.0.113.7 加进企业可信IP", "203.0.113.7")
    http.post("/admin/test-message", headers=BEARER, json={"user": "zhangsan", "text": "一"})
    shown = http.get("/admin/status", headers=BEARER).get_json()
    (alert,) = shown["alerts"]
    assert (alert["app"], alert["errcode"]) == (f"{CORP}:{AGENT}", 60020)
    assert alert["allow_ip"] == "203.0.113.7"
    assert (shown["queued"], shown["counters"]) == (1, {"hutong_messages{queued,}": 1})
    assert http.get("/admin/status").status_code == 401


def test_what_is_answered_at_once_is_kept_as_long_as_set(
    environ: dict[str, str], redis_client: redis.Redis
) -> None:
    kept = settings.load({**environ, "HUTONG_RETENTION_DAYS": "2"})
    http = create_app(kept, redis_client).test_client()
    turn_id = post(http, {"user": "zhangsan", "text": "/help"}).get_json()["turn_id"]
    tag = user_tag(CORP, AGENT, "zhangsan")
    assert redis_client.ttl(UserKeys(tag).turn(turn_id)) == pytest.approx(2 * 86_400, abs=60)


def test_the_command_sql_can_be_tried_dry(http: FlaskClient, redis_client: redis.Redis) -> None:
    body = {"user": "zhangsan", "text": "把SQL发我", "dry_run": True}
    turn_id = post(http, body).get_json()["turn_id"]
    turn = Turns(redis_client).get(turn_id)
    assert turn is not None
    assert (turn.status, turn.answer, turn.dry_run) == ("done", replies.NO_ANSWER_YET, True)

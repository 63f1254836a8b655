"""The log format, and the rule that message text and secrets stay out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import redis
from flask.testing import FlaskClient

from app import create_app, settings
from app.log import JsonFormatter, configure, fields
from app.settings import SettingsError
from tests.app.conftest import ADMIN_TOKEN
from tests.app.wecom.sealing import KEY, TOKEN, envelope, query, seal, text_xml


@pytest.fixture(autouse=True)
def _root_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_line_of_json_with_the_fields() -> None:
    stream = io.StringIO()
    configure("INFO", stream=stream)
    logging.getLogger("app.x").info("turn %s", "queued", extra=fields(turn_id="t1", position=2))
    logging.getLogger("app.x").debug("not shown")
    (line,) = lines(stream)
    assert (line["level"], line["logger"], line["event"]) == ("INFO", "app.x", "turn queued")
    assert (line["turn_id"], line["position"]) == ("t1", 2)
    assert str(line["time"]).endswith("+00:00")


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("app.x").exception("bug")
    (line,) = lines(stream)
    assert "ValueError: x" in str(line["exception"])


@pytest.mark.parametrize(("on", "shown"), [(False, None), (True, "秘密\n的问题")])
def test_message_text_only_when_asked_for(on: bool, shown: str | None) -> None:
    stream = io.StringIO()
    configure(stream=stream, log_message_text=on)
    logging.getLogger("app.x").info("queued", extra=fields(message_text="秘密\n的问题"))
    (line,) = lines(stream)
    assert line.get("message_text") == shown


def test_a_lone_surrogate_cannot_break_the_log() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "\ud800", (), None)
    assert json.loads(JsonFormatter().format(record))["event"] == "?"


def test_an_unknown_level_names_the_variable() -> None:
    with pytest.raises(SettingsError, match="HUTONG_LOG_LEVEL"):
        configure("LOUD")


def test_urls_of_http_libraries_never_show() -> None:
    """Their DEBUG lines hold the access token and the secret."""
    stream = io.StringIO()
    configure("DEBUG", stream=stream)
    logging.getLogger("urllib3.connectionpool").debug("GET /cgi-bin/gettoken?corpsecret=s")
    assert stream.getvalue() == ""


def test_a_callback_logs_its_turn_and_neither_text_nor_secrets(http: FlaskClient) -> None:
    stream = io.StringIO()
    configure("DEBUG", stream=stream)
    encrypted = seal(text_xml("只有我们知道"))
    for parameters in (query(encrypted), {**query(encrypted), "msg_signature": "0" * 40}):
        http.post("/wecom/callback", query_string=parameters, data=envelope(encrypted))
    http.get("/admin/turns/x", headers={"Authorization": f"Bearer {ADMIN_TOKEN}".encode()})
    events = [line["event"] for line in lines(stream)]
    assert "message queued" in events
    assert "callback refused" in events
    queued = next(line for line in lines(stream) if line["event"] == "message queued")
    assert len(str(queued["turn_id"])) == 32
    assert (queued["user"], queued["characters"]) == ("zhangsan", 6)
    for secret in ("只有我们知道", TOKEN, KEY, ADMIN_TOKEN, encrypted):
        assert secret not in stream.getvalue()


def test_requests_log_no_secret_wherever_it_was_put(
    environ: dict[str, str], redis_client: redis.Redis
) -> None:
    """In a header, in the address by mistake, in the URL of a Redis that is away."""
    stream = io.StringIO()
    configure("DEBUG", stream=stream)
    away = settings.load({**environ, "REDIS_URL": "redis://:redis-password@127.0.0.1:1/0"})
    for app in (create_app(settings.load(environ), redis_client), create_app(away)):
        with app.test_client() as http:
            for path in ("/admin/status", "/metrics", "/nowhere", "/wecom/callback", "/readyz"):
                for token in (ADMIN_TOKEN, "a-wrong-token"):
                    address = f"{path}?token={token}&corpsecret={environ['WECOM_CORP_SECRET']}"
                    headers = {"Authorization": f"Bearer {token}".encode()}
                    http.get(address, headers=headers)
                    http.post(address, headers=headers, data=token.encode())
    logged = stream.getvalue()
    assert "Redis failed" in logged
    assert "request refused" in logged
    secrets = (ADMIN_TOKEN, "a-wrong-token", "redis-password", TOKEN, KEY)
    assert [secret for secret in secrets if secret in logged] == []
    assert f"corpsecret={environ['WECOM_CORP_SECRET']}" not in logged

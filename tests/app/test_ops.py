"""Health and readiness on a real Redis."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from flask.testing import FlaskClient

from app import create_app
from app.settings import Settings
from app.store import keys
from app.store.server import RedisServer, connect


def test_healthz_needs_nothing(http: FlaskClient) -> None:
    response = http.get("/healthz")
    assert (response.status_code, response.get_json()) == (200, {"status": "ok"})


def test_the_front_door_names_both_checks(http: FlaskClient) -> None:
    response = http.get("/")
    assert response.status_code == 200
    assert "/healthz" in response.text
    assert "/readyz" in response.text


def test_not_ready_without_a_turn_worker(http: FlaskClient) -> None:
    response = http.get("/readyz")
    assert response.status_code == 503
    assert response.get_json() == {"ready": False, "redis": True, "turn_workers": 0}


def test_ready_while_a_turn_worker_lives(http: FlaskClient, redis_client: redis.Redis) -> None:
    redis_client.set(keys.process("turns", "w1"), "{}", px=60_000)
    response = http.get("/readyz")
    assert response.status_code == 200
    assert response.get_json() == {"ready": True, "redis": True, "turn_workers": 1}
    redis_client.delete(keys.process("turns", "w1"))
    assert http.get("/readyz").status_code == 503


def test_not_ready_without_redis_but_healthy(configured: Settings, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "own") as server, connect(server.url, timeout_s=1) as client:
        http = create_app(configured, client).test_client()
        server.kill()
        assert http.get("/healthz").status_code == 200
        response = http.get("/readyz")
        assert response.status_code == 503
        assert response.get_json() == {"ready": False, "redis": False, "turn_workers": 0}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_only_get(http: FlaskClient, path: str) -> None:
    assert http.post(path).status_code == 405


def test_a_bug_is_a_typed_500_without_a_traceback(
    configured: Settings, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(configured, redis_client)

    @app.get("/bug")
    def bug() -> str:
        raise KeyError("where-the-bug-is")

    response = app.test_client().get("/bug")
    assert response.status_code == 500
    assert response.get_json()["error"]["code"] == "internal"
    assert "where-the-bug" not in response.text
    assert "Traceback" not in response.text
    assert caplog.records[-1].exc_info is not None

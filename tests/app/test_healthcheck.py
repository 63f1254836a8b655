"""The container's health checks, over real HTTP and a real Redis."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import redis

from app import create_app
from app.healthcheck import check
from app.settings import Settings
from app.store.presence import Presence, Role


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(configured: Settings, redis_client: redis.Redis) -> Iterator[Settings]:
    """The gateway on a free port; the settings that lead there."""
    app = create_app(configured, redis_client)
    server = make_server("127.0.0.1", 0, app, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield dataclasses.replace(configured, host="0.0.0.0", port=server.server_port)
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_working_web_process_is_healthy(served: Settings) -> None:
    assert check("web", served) == ""


def test_another_token_than_the_servers_is_unhealthy(served: Settings) -> None:
    problem = check("web", dataclasses.replace(served, wecom_token="another"))
    assert "403" in problem


def test_nobody_listening_is_unhealthy(configured: Settings) -> None:
    assert "没有回答" in check("web", dataclasses.replace(configured, port=9))


@pytest.mark.parametrize("role", ["turns", "sender", "sweeper"])
def test_workers_are_healthy_while_their_heart_beats(
    configured: Settings, redis_url: str, redis_client: redis.Redis, role: Role
) -> None:
    settings = dataclasses.replace(configured, redis_url=redis_url)
    assert role in check(role, settings)
    with Presence(redis_client, role):
        assert check(role, settings) == ""


def test_without_redis_the_check_says_so(configured: Settings) -> None:
    settings = dataclasses.replace(configured, redis_url="redis://127.0.0.1:9/0")
    assert "Redis" in check("sender", settings)

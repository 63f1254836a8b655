"""The web application on a real Redis, with a Celery that really writes to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient

from app import create_app, settings
from app.settings import Settings
from app.store.inbox import Inbox
from app.store.keys import user_tag
from app.store.turns import Turn, Turns
from tests.app.wecom.sealing import AGENT, CORP, KEY, TOKEN

ADMIN_TOKEN = "let-me-in-令牌"


@pytest.fixture
def environ(redis_url: str) -> dict[str, str]:
    """The environment of a configured gateway."""
    return {
        "WECOM_CORP_ID": CORP,
        "WECOM_AGENT_ID": AGENT,
        "WECOM_CORP_SECRET": "secret",
        "WECOM_TOKEN": TOKEN,
        "WECOM_ENCODING_AES_KEY": KEY,
        "REDIS_URL": redis_url,
        "ADMIN_TOKEN": ADMIN_TOKEN,
    }


@pytest.fixture
def configured(environ: dict[str, str]) -> Settings:
    """The settings of a configured gateway."""
    return settings.load(environ)


@pytest.fixture
def web(configured: Settings, redis_client: redis.Redis) -> Flask:
    """The application; its bugs surface in the test."""
    app = create_app(configured, redis_client)
    app.testing = True
    return app


@pytest.fixture
def http(web: Flask) -> Iterator[FlaskClient]:
    """An HTTP client of the application."""
    with web.test_client() as client:
        yield client


class Queue:
    """What waits in the inboxes of the configured app."""

    def __init__(self, client: redis.Redis) -> None:
        self._inbox = Inbox(client)
        self._turns = Turns(client)

    def of(self, user: str) -> list[Turn]:
        """The waiting turns of ``user``, oldest first."""
        tag = user_tag(CORP, AGENT, user)
        found = (self._turns.get(turn_id) for turn_id in self._inbox.pending([tag])[tag])
        return [turn for turn in found if turn is not None]


@pytest.fixture
def queue(redis_client: redis.Redis) -> Queue:
    """What waits in the inboxes."""
    return Queue(redis_client)

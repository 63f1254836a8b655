"""Departments: asked once an hour, a failure closes the door without being remembered."""

from __future__ import annotations

import redis
from flask.testing import FlaskClient

from app import create_app, replies
from app.directory import Directory
from app.settings import load
from app.store.gate import DepartmentCache
from app.store.keys import UserKeys, user_tag
from app.wecom.errors import ApiError, TransportError, WeComError
from tests.app.conftest import Queue
from tests.app.wecom.fake_api import answer, serve
from tests.app.wecom.sealing import AGENT, CORP, envelope, query, seal, text_xml


class Ask:
    """Answers from a script and counts."""

    def __init__(self, *script: frozenset[str] | WeComError) -> None:
        self.script = list(script)
        self.asked = 0

    def __call__(self, user: str) -> frozenset[str]:
        self.asked += 1
        outcome = self.script.pop(0)
        if isinstance(outcome, WeComError):
            raise outcome
        return outcome


def test_a_member_is_asked_about_once(redis_client: redis.Redis) -> None:
    ask = Ask(frozenset({"2"}))
    directory = Directory(ask, DepartmentCache(redis_client, CORP))
    assert [directory.departments_of(u) for u in ("zhang", "ZHANG")] == [{"2"}, {"2"}]
    assert ask.asked == 1


def test_a_failed_look_up_is_unknown_and_asked_again(redis_client: redis.Redis) -> None:
    ask = Ask(TransportError("down"), frozenset({"2"}))
    directory = Directory(ask, DepartmentCache(redis_client, CORP))
    assert directory.departments_of("zhang") is None
    assert directory.departments_of("zhang") == {"2"}


def test_no_such_member_is_in_no_department(redis_client: redis.Redis) -> None:
    ask = Ask(ApiError(60111, "no user", "give_up"))
    directory = Directory(ask, DepartmentCache(redis_client, CORP))
    assert [directory.departments_of("x") for _ in range(2)] == [frozenset(), frozenset()]
    assert ask.asked == 1


def deliver(http: FlaskClient, user: str) -> int:
    sealed = seal(text_xml("你好", msg_id=user, user=user))
    response = http.post("/wecom/callback", query_string=query(sealed), data=envelope(sealed))
    return response.status_code


def test_the_gateway_asks_wecom_and_refuses_outsiders(
    environ: dict[str, str], redis_client: redis.Redis
) -> None:
    with serve() as api:
        settings = load(
            {**environ, "WECOM_API_BASE": api.url, "HUTONG_ALLOWED_DEPARTMENTS": "2, 5"}
        )
        http = create_app(settings, redis_client).test_client()
        api.outcomes = [
            answer({"errcode": 0, "department": [5]}),
            answer({"errcode": 0, "department": [9]}),
        ]
        assert [deliver(http, user) for user in ("inside", "outside")] == [200, 200]
    waiting = Queue(redis_client)
    assert (len(waiting.of("inside")), len(waiting.of("outside"))) == (1, 0)
    user = UserKeys(user_tag(CORP, AGENT, "outside"))
    (part_id,) = redis_client.lrange(user.outbox, 0, -1)
    body = redis_client.hget(user.part(part_id.decode()), "body")
    assert body.decode() == replies.NOT_ALLOWED

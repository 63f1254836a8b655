"""A backup restored into a fresh Redis goes on: nothing lost, nothing said twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import redis

from app import data
from app.settings import load
from app.store.inbox import Inbox
from app.store.pending import PendingIndex
from app.store.server import RedisServer, connect
from tests.app.store.messages import AGENT_ID, CORP_ID, tag_of, text_message
from tests.workers.fakes import FakeAgent, FakeWeCom
from workers.delivery import DeliveryLimits, Sender
from workers.turn import TurnRunner

USERS = ("zhang", "li", "wang")


def work(client: redis.Redis, agent: FakeAgent) -> None:
    """One turn of each user who waits, as the sweeper and a worker would do it."""
    for waiting in PendingIndex(client, "turn").waiting():
        TurnRunner(client, agent).drain(waiting.tag)


def send(client: redis.Redis, wecom: FakeWeCom) -> None:
    sender = Sender(client, {(CORP_ID, AGENT_ID): wecom}, DeliveryLimits(gap_s=0))
    for waiting in PendingIndex(client, "send").waiting():
        sender.deliver(waiting.tag)


def test_queued_turns_and_unsent_answers_survive_in_a_fresh_redis(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    settings, wecom, agent = load({"REDIS_URL": redis_url}), FakeWeCom(), FakeAgent()
    for number in range(3):
        for user in USERS:
            message = text_message(user, f"{user}{number}", f"{user}问{number}")
            Inbox(redis_client).put(message, f"{user}-{number}")
    work(redis_client, agent)
    send(redis_client, wecom)  # the first answers were sent
    work(redis_client, agent)  # the second lie in the outbox, the third questions wait
    assert data.main(["backup", str(tmp_path / "copy")], settings) == 0
    redis_client.flushall()

    with RedisServer(tmp_path / "fresh") as server, connect(server.url) as fresh:
        restored = dataclasses.replace(settings, redis_url=server.url)
        assert data.main(["restore", str(tmp_path / "copy")], restored) == 0
        again = text_message("li", "li1", "li问1")
        assert Inbox(fresh).put(again, "again").duplicate  # WeCom delivers it once more
        work(fresh, agent)
        for _ in USERS:
            send(fresh, wecom)
        assert PendingIndex(fresh, "turn").waiting() == []
        assert PendingIndex(fresh, "send").waiting() == []
        for user in USERS:
            sent = [text for name, text in wecom.sent if name == user]
            assert sent == [f"答:{user}问{number}" for number in range(3)]
            assert Inbox(fresh).head(tag_of(user)) is None
    # What was said before is remembered: the last question came with two exchanges of memory.
    assert [len(history) for history in agent.histories[-3:]] == [4, 4, 4]

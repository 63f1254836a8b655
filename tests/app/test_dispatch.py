"""Wakes: sent by name over the broker, lost without harm when it is away."""

from __future__ import annotations

import json
from pathlib import Path

import redis

from app.dispatch import (
    DELIVER_TASK,
    SEND_QUEUE,
    TURNS_QUEUE,
    WAKE_TASK,
    Dispatcher,
    broker_url,
    make_celery,
    queue_key,
)


def test_wakes_go_to_their_queues_as_json(redis_url: str, redis_client: redis.Redis) -> None:
    dispatcher = Dispatcher(make_celery(redis_url))
    assert dispatcher.wake("c:1:zhang")
    assert dispatcher.deliver("c:1:zhang")
    for queue, task in ((TURNS_QUEUE, WAKE_TASK), (SEND_QUEUE, DELIVER_TASK)):
        (raw,) = redis_client.lrange(queue_key(queue), 0, -1)
        message = json.loads(raw)
        assert message["headers"]["task"] == task
        assert message["content-type"] == "application/json"


def test_a_broker_that_is_away_is_no_error(tmp_path: Path) -> None:
    dispatcher = Dispatcher(make_celery(f"unix://{tmp_path}/nobody.sock"))
    assert not dispatcher.wake("c:1:zhang")


def test_broker_url_spells_sockets_as_celery_does() -> None:
    assert broker_url("redis://:p@h:6379/2") == "redis://:p@h:6379/2"
    assert broker_url("unix:///a/b.sock?db=3") == "redis+socket:///a/b.sock?virtual_host=3"
    assert broker_url("unix:///a/b.sock") == "redis+socket:///a/b.sock"

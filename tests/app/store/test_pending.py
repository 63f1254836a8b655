"""The indexes of waiting work."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from app.store import keys
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.pending import PendingIndex
from tests.app.store.messages import tag_of, text_message

TAG = tag_of("zhang")


def test_waiting_and_busy(redis_client: redis.Redis) -> None:
    index = PendingIndex(redis_client, "turn")
    Inbox(redis_client).put(text_message("zhang", "1"), "t1")
    assert [(w.tag, w.length, w.busy) for w in index.waiting()] == [(TAG, 1, False)]
    assert Leases(redis_client, "turn").acquire(TAG)
    assert [w.busy for w in index.waiting()] == [True]


def test_empty_entries_are_dropped(redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.PENDING_USERS, {TAG: 1.25})
    assert PendingIndex(redis_client, "turn").waiting() == []
    assert redis_client.zcard(keys.PENDING_USERS) == 0


def test_repair_finds_what_the_index_lacks(redis_client: redis.Redis) -> None:
    for user in ("zhang", "李 四"):
        redis_client.rpush(UserKeys(tag_of(user)).outbox, "p1")
    index = PendingIndex(redis_client, "send")
    assert index.waiting() == []
    assert index.repair() == 2
    assert {w.tag for w in index.waiting()} == {TAG, tag_of("李 四")}
    assert index.repair() == 0


def test_mark_woken_once_per_interval(redis_client: redis.Redis) -> None:
    index = PendingIndex(redis_client, "turn")
    assert index.mark_woken(TAG, 30)
    assert not index.mark_woken(TAG, 30)
    assert PendingIndex(redis_client, "send").mark_woken(TAG, 30)


def test_a_message_that_comes_while_its_entry_is_dropped_is_indexed(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender indexed it before, and dies before it can do so again."""
    index = PendingIndex(redis_client, "turn")
    redis_client.zadd(keys.PENDING_USERS, {TAG: 1.0})
    unindex = index._unindex

    def late_message(**call: Any) -> Any:
        redis_client.rpush(UserKeys(TAG).inbox, "t1")
        return unindex(**call)

    monkeypatch.setattr(index, "_unindex", late_message)
    assert index.waiting() == []
    assert redis_client.zscore(keys.PENDING_USERS, TAG) is not None

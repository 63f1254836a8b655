"""The index of the newest turns."""

from __future__ import annotations

import redis

from app.store import keys, recent
from app.store.inbox import Inbox
from app.store.recent import RecentTurns
from tests.app.store.messages import tag_of, text_message
from tests.app.store.test_outbox import end


def test_newest_first_and_the_waiting_ones_oldest_first(redis_client: redis.Redis) -> None:
    inbox = Inbox(redis_client)
    for name in ("t1", "t2", "t3"):
        inbox.put(text_message("zhang", name), name)
        inbox.put(text_message("zhang", name), name + "again")
        redis_client.zadd(keys.RECENT_TURNS, {name: int(name[1])}, xx=True)
    end(redis_client, "t1")
    turns = RecentTurns(redis_client)
    assert turns.count() == 3
    assert [turn.id for turn in turns.newest(2)] == ["t3", "t2"]
    assert [turn.id for turn in turns.newest(2, 2)] == ["t1"]
    assert [turn.id for turn in turns.oldest_waiting(10)] == ["t2", "t3"]


def test_a_message_answered_beside_the_inbox_is_listed_once(redis_client: redis.Redis) -> None:
    inbox = Inbox(redis_client)
    for turn_id in ("t1", "t2"):
        inbox.answer(text_message("zhang", "m1"), turn_id, "say", "您好")
    assert [turn.id for turn in RecentTurns(redis_client).newest(9)] == ["t1"]


def test_the_index_is_capped_and_expired_turns_are_left_out(redis_client: redis.Redis) -> None:
    many = {f"gone{n}": n for n in range(recent.MOST_TURNS)}
    redis_client.zadd(keys.RECENT_TURNS, many)
    Inbox(redis_client).put(text_message("zhang", "t1"), "t1")
    turns = RecentTurns(redis_client)
    assert turns.count() == recent.MOST_TURNS
    assert redis_client.zscore(keys.RECENT_TURNS, "gone0") is None
    assert [turn.tag for turn in turns.newest(10)] == [tag_of("zhang")]

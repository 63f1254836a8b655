"""Parts: states, order, budget and the duplicate check."""

from __future__ import annotations

import redis

from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Lease, Leases
from app.store.outbox import MAX_AGE_S, Claim, Outbox, Outcome, Part
from app.store.turns import Finish, Turns
from tests.app.store.messages import tag_of, text_message

TAG = tag_of("zhang")
USER = UserKeys(TAG)


def fill(client: redis.Redis, turn_id: str, *bodies: str) -> None:
    """End a turn with these parts."""
    turns = Turns(client)
    Inbox(client).put(text_message("zhang", turn_id), turn_id)
    lease = Leases(client, "turn").acquire(TAG)
    assert lease
    turns.begin(lease, turn_id)
    assert turns.finish(lease, turn_id, Finish("done", "".join(bodies), bodies))
    lease.release()


def _held(client: redis.Redis) -> Lease:
    lease = Leases(client, "send").acquire(TAG)
    assert lease
    return lease


def _head(outbox: Outbox) -> Part:
    part = outbox.head(TAG)
    assert part
    return part


def _send(outbox: Outbox, lease: Lease, outcome: Outcome) -> Claim:
    part = _head(outbox)
    claim = outbox.claim(lease, part)
    assert outbox.settle(lease, part, outcome)
    return claim


def test_sent_part_leaves_and_the_next_is_head(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "甲", "乙")
    lease = _held(redis_client)
    assert _send(outbox, lease, Outcome("sent", msgid="m1")) == Claim("claimed", True)
    done = outbox.read(TAG, "t1:1")
    assert done is not None
    assert (done.state, done.msgid, done.attempts) == ("sent", "m1", 1)
    assert _head(outbox).id == "t1:2"


def test_a_claim_without_an_outcome_leaves_unknown(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "甲")
    outbox.claim(_held(redis_client), _head(outbox))  # and the sender is killed here
    redis_client.delete(USER.lease("send"))
    part = _head(outbox)
    assert (part.state, part.attempts) == ("unknown", 1)
    assert outbox.claim(_held(redis_client), part) == Claim("claimed", duplicate_check=True)


def test_identical_text_is_sent_without_the_duplicate_check(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "好的")
    fill(redis_client, "t2", "好的")
    lease = _held(redis_client)
    assert _send(outbox, lease, Outcome("sent")).duplicate_check
    assert not _send(outbox, lease, Outcome("sent")).duplicate_check


def test_unknown_that_cannot_be_checked_is_not_sent_again(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "好的")
    fill(redis_client, "t2", "好的")
    lease = _held(redis_client)
    _send(outbox, lease, Outcome("sent"))
    _send(outbox, lease, Outcome("unknown"))
    assert outbox.claim(lease, _head(outbox)).verdict == "ended"
    assert outbox.head(TAG) is None
    part = outbox.read(TAG, "t2:1")
    assert part is not None
    assert part.state == "unknown"


def test_unknown_beyond_wecoms_memory_is_not_sent_again(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "好的")
    lease = _held(redis_client)
    _send(outbox, lease, Outcome("unknown"))
    redis_client.hset(USER.part("t1:1"), "first_sent_ms", 1)
    assert outbox.claim(lease, _head(outbox)).verdict == "ended"


def test_a_part_surely_not_taken_is_pending_again_and_checked(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "好的")
    lease = _held(redis_client)
    _send(outbox, lease, Outcome("pending", wait_s=30))
    assert outbox.held(TAG)
    assert _head(outbox).state == "pending"
    assert redis_client.llen(USER.send_times) == 0
    assert outbox.claim(lease, _head(outbox)) == Claim("claimed", duplicate_check=True)


def test_pending_for_a_day_is_given_up(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "好的")
    created = int(redis_client.hget(USER.part("t1:1"), "created_ms") or 0)
    redis_client.hset(USER.part("t1:1"), "created_ms", created - MAX_AGE_S * 1000 - 1)
    assert outbox.claim(_held(redis_client), _head(outbox)).verdict == "ended"
    part = outbox.read(TAG, "t1:1")
    assert part is not None
    assert part.state == "refused"


def test_budget_of_30_a_minute(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", *(f"第{n}段" for n in range(31)))
    lease = _held(redis_client)
    for _ in range(30):
        assert _send(outbox, lease, Outcome("sent")).verdict == "claimed"
    claim = outbox.claim(lease, _head(outbox))
    assert claim.verdict == "wait"
    assert 0 < claim.wait_s <= 60
    assert _head(outbox).state == "pending"


def test_a_sender_that_lost_its_lease_can_neither_claim_nor_settle(
    redis_client: redis.Redis,
) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "甲")
    old = _held(redis_client)
    part = _head(outbox)
    outbox.claim(old, part)
    redis_client.delete(USER.lease("send"))
    new = _held(redis_client)
    assert not outbox.settle(old, part, Outcome("sent"))
    assert outbox.claim(old, part).verdict == "lost"
    assert outbox.claim(new, _head(outbox)).duplicate_check


def test_ack_once_and_only_before_the_answer(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    Inbox(redis_client).put(text_message("zhang", "1"), "t1")
    assert outbox.acknowledge(TAG, "t1", "收到")
    assert not outbox.acknowledge(TAG, "t1", "收到")
    assert redis_client.llen(USER.outbox) == 1
    assert [_head(outbox).kind, _head(outbox).body] == ["ack", "收到"]


def test_no_ack_after_the_end(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "答")
    assert not Outbox(redis_client).acknowledge(TAG, "t1", "收到")


def test_pause_is_per_app(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    outbox.pause(TAG, "errcode 60020", 30)
    assert outbox.paused(tag_of("li")) == "errcode 60020"
    assert outbox.paused("other:1:li") == ""

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
    """Take a message and end its turn with these parts."""
    Inbox(client).put(text_message("zhang", turn_id), turn_id)
    end(client, turn_id, *bodies)


def end(client: redis.Redis, turn_id: str, *bodies: str) -> None:
    """End the turn, which must be the first, with these parts."""
    turns = Turns(client)
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
    assert _send(outbox, lease, Outcome("sent", msgid="m1")) == Claim("claimed", True, body="甲")
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
    assert outbox.claim(_held(redis_client), part) == Claim("claimed", True, body="甲")


def test_complaint_11_a_repeated_answer_differs_by_spaces_and_stays_checked(
    redis_client: redis.Redis,
) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "好的")
    fill(redis_client, "t2", "好的")
    lease = _held(redis_client)
    assert _send(outbox, lease, Outcome("sent")).duplicate_check
    fill(redis_client, "t3", "好的")
    assert _send(outbox, lease, Outcome("unknown")) == Claim("claimed", True, body="好的 ")
    again = outbox.claim(lease, _head(outbox))
    assert again == Claim("claimed", True, body="好的 "), "resent byte for byte"
    assert outbox.settle(lease, _head(outbox), Outcome("sent"))
    assert _send(outbox, lease, Outcome("sent")) == Claim("claimed", True, body="好的  ")


def test_a_repeated_text_without_room_goes_unchecked(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "x" * 2048)
    fill(redis_client, "t2", "x" * 2048)
    lease = _held(redis_client)
    assert _send(outbox, lease, Outcome("sent")).duplicate_check
    assert _send(outbox, lease, Outcome("sent")) == Claim("claimed", False, body="x" * 2048)


def test_unknown_that_cannot_be_checked_is_not_sent_again(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "好" * 682)
    fill(redis_client, "t2", "好" * 682)
    redis_client.set(USER.sent_body("好" * 682) + ":repeats", 2)
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
    assert outbox.claim(lease, _head(outbox)) == Claim("claimed", True, body="好的")


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
    assert 0 < claim.wait_s <= 65
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


def test_an_ack_that_the_answer_overtook_is_left_out(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    Inbox(redis_client).put(text_message("zhang", "1"), "t1")
    outbox.acknowledge(TAG, "t1", "收到")
    end(redis_client, "t1", "答")
    lease = _held(redis_client)
    assert outbox.claim(lease, _head(outbox)).verdict == "dropped"
    assert _head(outbox).body == "答"


def test_the_last_third_of_a_minutes_budget_is_kept_for_answers(
    redis_client: redis.Redis,
) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", *(f"第{n}段" for n in range(20)))
    Inbox(redis_client).put(text_message("zhang", "2"), "t2")
    outbox.acknowledge(TAG, "t2", "收到")
    lease = _held(redis_client)
    for _ in range(20):
        assert _send(outbox, lease, Outcome("sent")).verdict == "claimed"
    assert outbox.claim(lease, _head(outbox)).verdict == "dropped"
    end(redis_client, "t2", *(f"答{n}" for n in range(10)))
    for _ in range(10):
        assert _send(outbox, lease, Outcome("sent")).verdict == "claimed"


def test_budget_of_1000_an_hour_keeps_a_tenth_for_answers(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    seconds, _ = redis_client.time()
    old_ms = (int(seconds) - 1800) * 1000
    redis_client.rpush(USER.send_times, *[old_ms] * 900)
    Inbox(redis_client).put(text_message("zhang", "1"), "t1")
    assert not outbox.acknowledge(TAG, "t1", "收到")
    end(redis_client, "t1", "答")
    lease = _held(redis_client)
    assert _send(outbox, lease, Outcome("sent")).verdict == "claimed"
    redis_client.rpush(USER.send_times, *[old_ms] * 99)
    fill(redis_client, "t2", "答")
    claim = outbox.claim(lease, _head(outbox))
    assert claim.verdict == "wait"
    assert 1700 < claim.wait_s <= 1805


def test_the_budget_counts_when_a_message_arrived_not_when_it_left(
    redis_client: redis.Redis,
) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "甲")
    lease = _held(redis_client)
    part = _head(outbox)
    outbox.claim(lease, part)
    left_ms = int(redis_client.lindex(USER.send_times, 0) or 0)
    # The answer takes 10 s.
    redis_client.lset(USER.send_times, 0, str(left_ms - 10_000))
    outbox.settle(lease, part, Outcome("sent"))
    assert int(redis_client.lindex(USER.send_times, 0) or 0) >= left_ms


def test_a_message_that_left_just_over_a_minute_ago_may_have_arrived_within_it(
    redis_client: redis.Redis,
) -> None:
    outbox = Outbox(redis_client)
    seconds, _ = redis_client.time()
    redis_client.rpush(USER.send_times, *[(int(seconds) - 61) * 1000] * 30)
    fill(redis_client, "t1", "甲")
    assert outbox.claim(_held(redis_client), _head(outbox)).verdict == "wait"


def test_progress_of_a_running_turn_is_merged_until_it_is_sent(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    Inbox(redis_client).put(text_message("zhang", "1"), "t1")
    assert not outbox.progress(TAG, "t1", "太早"), "it waits in the queue"
    turn_lease = Leases(redis_client, "turn").acquire(TAG)
    assert turn_lease
    Turns(redis_client).begin(turn_lease, "t1")
    assert outbox.progress(TAG, "t1", "一")
    assert not outbox.progress(TAG, "t1", "二")
    assert [_head(outbox).kind, _head(outbox).body] == ["progress", "二"]
    assert redis_client.llen(USER.outbox) == 1
    lease = _held(redis_client)
    assert _send(outbox, lease, Outcome("sent")).body == "二"
    assert outbox.progress(TAG, "t1", "三")
    assert _head(outbox).body == "三"


def test_an_unreachable_user_gets_no_bridging_lines_until_one_arrives(
    redis_client: redis.Redis,
) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "甲", "乙")
    lease = _held(redis_client)
    _send(outbox, lease, Outcome("refused", errcode=60111, unreachable=True))
    assert outbox.unreachable(TAG) == 60111
    for number in ("2", "3"):
        Inbox(redis_client).put(text_message("zhang", number), f"t{number}")
    assert not outbox.acknowledge(TAG, "t2", "收到")
    _send(outbox, lease, Outcome("sent"))
    assert outbox.unreachable(TAG) == 0
    assert outbox.acknowledge(TAG, "t3", "收到")


def test_a_notice_is_said_once(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    assert outbox.notice(TAG, "t1", "unsendable", "抱歉")
    assert not outbox.notice(TAG, "t1", "unsendable", "抱歉")
    assert (_head(outbox).kind, redis_client.llen(USER.outbox)) == ("notice", 1)

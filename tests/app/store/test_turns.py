"""The life of a turn and the one script that ends it."""

from __future__ import annotations

import redis

from app.store import keys
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Lease, Leases
from app.store.outbox import Outbox, Outcome
from app.store.sessions import Sessions
from app.store.turns import MAX_ATTEMPTS, MAX_SESSION_TURNS, Finish, Turns
from tests.app.store.messages import tag_of, text_message

TAG = tag_of("zhang")
USER = UserKeys(TAG)


def _held(client: redis.Redis) -> Lease:
    lease = Leases(client, "turn").acquire(TAG)
    assert lease
    return lease


def _put(client: redis.Redis, turn_id: str = "t1", *, dry_run: bool = False) -> None:
    Inbox(client).put(text_message("zhang", turn_id), turn_id, dry_run=dry_run)


def test_finish_writes_everything_at_once(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    _put(redis_client, "t1")
    _put(redis_client, "t2")
    lease = _held(redis_client)
    assert turns.begin(lease, "t1").verdict == "begun"
    ending = Finish("done", "好的", ("好", "的"), '[{"kind": "model"}]', session_document="[1]")
    assert turns.finish(lease, "t1", ending)
    turn = turns.get("t1")
    assert turn is not None
    assert (turn.status, turn.answer, turn.steps) == ("done", "好的", '[{"kind": "model"}]')
    assert turn.created_ms <= turn.started_ms <= turn.ended_ms
    parts = Outbox(redis_client).of_turn(TAG, "t1")
    assert [(p.seq, p.total, p.body, p.state) for p in parts] == [
        (1, 2, "好", "pending"),
        (2, 2, "的", "pending"),
    ]
    assert Sessions(redis_client).load(TAG) == ["[1]"]
    assert Inbox(redis_client).pending([TAG])[TAG] == ["t2"]
    assert redis_client.zscore(keys.PENDING_OUTBOXES, TAG) is not None
    assert turns.position("t2") == 0


def test_finish_twice_by_the_same_holder_writes_once(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    _put(redis_client)
    lease = _held(redis_client)
    turns.begin(lease, "t1")
    for _ in range(2):
        assert turns.finish(lease, "t1", Finish("done", "a", ("a",), session_document="[1]"))
    assert redis_client.llen(USER.outbox) == 1
    assert Sessions(redis_client).load(TAG) == ["[1]"]


def test_a_worker_that_lost_its_lease_cannot_finish_or_begin(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    _put(redis_client)
    old = _held(redis_client)
    turns.begin(old, "t1")
    redis_client.delete(USER.lease("turn"))  # it expired while the worker was stopped
    new = _held(redis_client)
    assert not turns.finish(old, "t1", Finish("done", "old", ("old",), session_document="[0]"))
    assert not turns.record_steps(old, "t1", "[0]")
    assert turns.begin(old, "t1").verdict == "lost"
    assert turns.begin(new, "t1").attempts == 2
    assert turns.finish(new, "t1", Finish("done", "new", ("new",), session_document="[1]"))
    assert not turns.finish(old, "t1", Finish("done", "old", ("old",)))
    assert [part.body for part in Outbox(redis_client).of_turn(TAG, "t1")] == ["new"]
    assert Sessions(redis_client).load(TAG) == ["[1]"]


def test_attempts_are_counted_before_the_work_and_end(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    _put(redis_client)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        lease = _held(redis_client)
        begin = turns.begin(lease, "t1")
        assert (begin.verdict, begin.attempts) == ("begun", attempt)
        lease.release()
    begin = turns.begin(_held(redis_client), "t1")
    assert (begin.verdict, begin.attempts) == ("parked", MAX_ATTEMPTS)


def test_only_the_oldest_turn_can_begin(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    _put(redis_client, "t1")
    _put(redis_client, "t2")
    assert turns.begin(_held(redis_client), "t2").verdict == "moved"
    unbegun = turns.get("t2")
    assert unbegun is not None
    assert unbegun.attempts == 0


def test_only_the_oldest_turn_can_end(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    _put(redis_client, "t1")
    _put(redis_client, "t2")
    lease = _held(redis_client)
    assert not turns.finish(lease, "t2", Finish("done", "a", ("a",)))
    assert Inbox(redis_client).pending([TAG])[TAG] == ["t1", "t2"]
    assert redis_client.llen(USER.outbox) == 0


def test_a_turn_without_its_hash_is_dropped(redis_client: redis.Redis) -> None:
    _put(redis_client)
    redis_client.delete(USER.turn("t1"))
    assert Turns(redis_client).begin(_held(redis_client), "t1").verdict == "gone"
    assert Inbox(redis_client).head(TAG) is None


def test_dry_run_has_an_answer_and_no_parts(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    _put(redis_client, dry_run=True)
    lease = _held(redis_client)
    turns.begin(lease, "t1")
    assert turns.finish(lease, "t1", Finish("done", "a", ("a",)))
    turn = turns.get("t1")
    assert turn is not None
    assert (turn.dry_run, turn.answer) == (True, "a")
    assert redis_client.llen(USER.outbox) == 0


def test_session_expires_and_stays_short(redis_client: redis.Redis) -> None:
    turns, sessions = Turns(redis_client), Sessions(redis_client)
    lease = _held(redis_client)
    for number in range(MAX_SESSION_TURNS + 3):
        _put(redis_client, f"t{number}")
        turns.begin(lease, f"t{number}")
        ending = Finish("done", "a", session_document=f"[{number}]", session_expiry_s=100)
        turns.finish(lease, f"t{number}", ending)
    assert sessions.load(TAG) == [f"[{n}]" for n in range(3, MAX_SESSION_TURNS + 3)]
    assert 0 < redis_client.ttl(USER.session()) <= 100


def test_queue_is_trimmed_of_turns_that_ended(redis_client: redis.Redis) -> None:
    turns = Turns(redis_client)
    for turn_id in ("t1", "t2"):
        _put(redis_client, turn_id)
    lease = _held(redis_client)
    turns.begin(lease, "t1")
    turns.finish(lease, "t1", Finish("done", "a"))
    redis_client.zadd(keys.QUEUE, {"t1": 0, "unknown": 1})  # as after a crash
    assert turns.position("t2") == 2
    assert turns.trim_queue() == 2
    assert turns.position("t2") == 0


def test_an_ended_turn_and_its_part_are_kept_as_long_as_set(redis_client: redis.Redis) -> None:
    day_s = 86_400
    _put(redis_client)
    lease = _held(redis_client)
    turns, outbox = (
        Turns(redis_client, ended_expiry_s=day_s),
        Outbox(redis_client, ended_expiry_s=2 * day_s),
    )
    turns.begin(lease, "t1")
    assert turns.finish(lease, "t1", Finish("done", "a", ("a",)))
    assert redis_client.ttl(USER.turn("t1")) == day_s
    assert redis_client.ttl(USER.part("t1:1")) == -1
    send = Leases(redis_client, "send").acquire(TAG)
    part = outbox.head(TAG)
    assert send
    assert part
    outbox.claim(send, part)
    assert outbox.settle(send, part, Outcome("sent"))
    assert redis_client.ttl(USER.part("t1:1")) == 2 * day_s

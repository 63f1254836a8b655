"""The sweeper: lost wakes, stuck outboxes, acknowledgements."""

from __future__ import annotations

import redis

from app.dispatch import SEND_QUEUE, TURNS_QUEUE, queue_key
from app.store import keys
from app.store.app_state import AppState
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.outbox import Outbox
from app.store.turns import Turns
from tests.app.store.messages import event_message, tag_of, text_message
from tests.app.store.test_outbox import fill
from tests.workers.test_turn import ask, bodies
from workers import replies
from workers.sweeper import Sweeper, SweepTimes

TAG = tag_of("zhang")
NOW = SweepTimes(grace_s=-1.0, ack_after_s=-1.0)
NO_ACK = SweepTimes(grace_s=-1.0, ack_after_s=3600)


class Wakes:
    """Remembers wakes."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.delivered: list[str] = []

    def wake(self, tag: str) -> bool:
        self.woken.append(tag)
        return True

    def deliver(self, tag: str) -> bool:
        self.delivered.append(tag)
        return True


def test_wakes_users_nobody_works_for_and_not_again_at_once(redis_client: redis.Redis) -> None:
    ask(redis_client, "一")
    ask(redis_client, "一", user="li")
    assert Leases(redis_client, "turn").acquire(tag_of("li"))
    wakes = Wakes()
    sweeper = Sweeper(redis_client, wakes, NO_ACK)
    sweeper.sweep()
    sweeper.sweep()
    assert wakes.woken == [TAG]


def test_a_fresh_message_has_its_own_wake(redis_client: redis.Redis) -> None:
    ask(redis_client, "一")
    wakes = Wakes()
    Sweeper(redis_client, wakes, SweepTimes(grace_s=60, ack_after_s=60)).sweep()
    assert wakes.woken == []


def test_a_filled_queue_is_not_filled_further(redis_client: redis.Redis) -> None:
    for number in range(5):
        ask(redis_client, "一", user=f"u{number}")
    redis_client.rpush(queue_key(TURNS_QUEUE), *range(20))
    wakes = Wakes()
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.woken == []
    redis_client.ltrim(queue_key(TURNS_QUEUE), 0, 17)
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert len(wakes.woken) == 2


def test_stuck_outboxes_are_woken_unless_they_must_wait(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    wakes = Wakes()
    outbox = Outbox(redis_client)
    outbox.hold(TAG, 30)
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.delivered == []
    redis_client.delete(UserKeys(TAG).send_wait)
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.delivered == [TAG]
    assert redis_client.llen(queue_key(SEND_QUEUE)) == 0


def test_ack_once_per_turn_with_the_place_in_the_queue(redis_client: redis.Redis) -> None:
    ask(redis_client, "一", user="li")
    ask(redis_client, "一", user="wang")
    ask(redis_client, "一", "二")
    wakes = Wakes()
    for _ in range(3):
        Sweeper(redis_client, wakes, NOW).sweep()
    assert bodies(redis_client, "li") == [replies.ack(0)]
    assert bodies(redis_client, "wang") == [replies.ack(1)]
    # Two quick messages of one user get one line, about the first.
    assert bodies(redis_client) == [replies.ack(2)]
    assert set(wakes.delivered) == {TAG, tag_of("li"), tag_of("wang")}


def test_no_ack_before_its_time_and_none_for_dry_runs_and_events(
    redis_client: redis.Redis,
) -> None:
    ask(redis_client, "一")
    Sweeper(redis_client, Wakes(), NO_ACK).sweep()
    assert bodies(redis_client) == []
    inbox = Inbox(redis_client)
    inbox.put(text_message("li", "1"), "dry", dry_run=True)
    inbox.put(event_message("li", "click", "<x/>"), "event")
    Sweeper(redis_client, Wakes(), NOW).sweep()
    assert bodies(redis_client, "li") == []
    assert Inbox(redis_client).put(text_message("li", "2"), "real").position == 3
    Sweeper(redis_client, Wakes(), NOW).sweep()
    assert len(bodies(redis_client, "li")) == 1


def test_a_running_turn_is_said_to_be_worked_on(redis_client: redis.Redis) -> None:
    ask(redis_client, "一", user="li")
    (turn_id,) = ask(redis_client, "一")
    lease = Leases(redis_client, "turn").acquire(TAG)
    assert lease
    Turns(redis_client).begin(lease, turn_id)
    Sweeper(redis_client, Wakes(), NOW).sweep()
    assert bodies(redis_client) == [replies.ack(0)]


def test_what_fell_out_of_an_index_is_found_again(redis_client: redis.Redis) -> None:
    ask(redis_client, "一")
    redis_client.delete(keys.PENDING_USERS)
    wakes = Wakes()
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.woken == [TAG]


def test_a_long_turn_says_now_and_then_what_it_does(redis_client: redis.Redis) -> None:
    (turn_id,) = ask(redis_client, "一")
    lease = Leases(redis_client, "turn").acquire(TAG)
    assert lease
    turns = Turns(redis_client)
    turns.begin(lease, turn_id)
    turns.record_steps(lease, turn_id, '[{"tool_calls": [{"name": "sql_query"}]}]')
    wakes = Wakes()
    soon = SweepTimes(ack_after_s=3600, progress_after_s=-1.0, progress_every_s=3600)
    sweeper = Sweeper(redis_client, wakes, soon)
    sweeper.sweep()
    sweeper.sweep()
    assert bodies(redis_client) == [replies.progress("sql_query", 0)]
    assert wakes.delivered == [TAG]
    later = SweepTimes(ack_after_s=3600, progress_after_s=3600)
    Sweeper(redis_client, Wakes(), later).sweep()
    assert len(bodies(redis_client)) == 1


def test_no_progress_of_waiting_turns_and_dry_runs(redis_client: redis.Redis) -> None:
    ask(redis_client, "一")
    Inbox(redis_client).put(text_message("li", "1"), "dry", dry_run=True)
    for user, turn_id in (("zhang", ""), ("li", "dry")):
        lease = Leases(redis_client, "turn").acquire(tag_of(user))
        assert lease
        if turn_id:
            Turns(redis_client).begin(lease, turn_id)
    times = SweepTimes(ack_after_s=3600, progress_after_s=-1.0, progress_every_s=-1.0)
    Sweeper(redis_client, Wakes(), times).sweep()
    assert bodies(redis_client) + bodies(redis_client, "li") == []


def test_no_sender_is_woken_for_a_paused_app(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    AppState(redis_client).pause(TAG, "errcode 60020", 30)
    wakes = Wakes()
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.delivered == []
    redis_client.delete(keys.send_pause(*tag_of("x").split(":")[:2]))
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.delivered == [TAG]


def test_no_sender_is_woken_for_an_app_an_administrator_holds(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    corp_id, agent_id, _ = TAG.split(":")
    AppState(redis_client).hold(corp_id, agent_id)
    wakes = Wakes()
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.delivered == []
    AppState(redis_client).release(corp_id, agent_id)
    Sweeper(redis_client, wakes, NO_ACK).sweep()
    assert wakes.delivered == [TAG]

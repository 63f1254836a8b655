"""Taking messages: once, in order, under concurrency."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import redis

from app.store import keys
from app.store.inbox import Inbox, Put
from app.store.pending import PendingIndex
from app.store.turns import Turns
from tests.app.store.messages import event_message, tag_of, text_message


def test_new_message_becomes_a_queued_turn(redis_client: redis.Redis) -> None:
    put = Inbox(redis_client).put(text_message("zhang", "1", "分析\x01\n"), "t1")
    assert put == Put("t1", tag_of("zhang"), duplicate=False, position=0)
    turn = Turns(redis_client).get("t1")
    assert turn is not None
    assert (turn.status, turn.text, turn.user, turn.attempts) == (
        "queued",
        "分析\x01\n",
        "zhang",
        0,
    )
    assert turn.created_ms > 0
    assert not turn.dry_run


def test_redelivery_gets_the_first_turn(redis_client: redis.Redis) -> None:
    inbox = Inbox(redis_client)
    inbox.put(text_message("zhang", "1"), "t1")
    again = inbox.put(text_message("zhang", "1"), "t2")
    assert (again.turn_id, again.duplicate) == ("t1", True)
    assert inbox.pending([again.tag]) == {again.tag: ["t1"]}
    assert Turns(redis_client).get("t2") is None


def test_repeated_call_after_a_broken_connection_is_no_duplicate(
    redis_client: redis.Redis,
) -> None:
    inbox = Inbox(redis_client)
    inbox.put(text_message("zhang", "1"), "t1")
    assert not inbox.put(text_message("zhang", "1"), "t1").duplicate
    assert inbox.pending([tag_of("zhang")])[tag_of("zhang")] == ["t1"]


def test_same_msg_id_of_two_users_is_two_messages(redis_client: redis.Redis) -> None:
    inbox = Inbox(redis_client)
    assert not inbox.put(text_message("zhang", "1"), "t1").duplicate
    assert not inbox.put(text_message("li", "1"), "t2").duplicate


def test_events_of_one_second_differ_by_their_body(redis_client: redis.Redis) -> None:
    inbox = Inbox(redis_client)
    puts = [
        inbox.put(event_message("sys", "sys_approval_change", f"<SpNo>{n}</SpNo>"), f"t{i}")
        for i, n in enumerate((14, 15, 14))
    ]
    assert [put.duplicate for put in puts] == [False, False, True]


def test_position_counts_the_turns_ahead(redis_client: redis.Redis) -> None:
    inbox = Inbox(redis_client)
    positions = [inbox.put(text_message(f"u{n}", "1"), f"t{n}").position for n in range(4)]
    # Equal milliseconds are ordered by id, which is the order of arrival here.
    assert positions == [0, 1, 2, 3]


def test_half_a_surrogate_pair_is_taken(redis_client: redis.Redis) -> None:
    Inbox(redis_client).put(text_message("zhang", "1", "a\ud83d"), "t1")
    turn = Turns(redis_client).get("t1")
    assert turn is not None
    assert turn.text == "a?"


def test_1000_messages_delivered_three_times_are_1000_turns_in_order(
    redis_client: redis.Redis,
) -> None:
    users, each = 40, 25
    inbox = Inbox(redis_client)
    chance = random.Random(7)

    def deliver(user: int) -> list[Put]:
        """First deliveries in order, re-deliveries of any earlier message in between."""
        plan, open_again = [], []
        for number in range(each):
            plan.append(number)
            open_again += [number, number]
            while open_again and chance.random() < 0.6:
                plan.append(open_again.pop(chance.randrange(len(open_again))))
        plan += open_again
        return [
            inbox.put(text_message(f"u{user}", str(n), str(n)), f"{user}-{i}")
            for i, n in enumerate(plan)
        ]

    with ThreadPoolExecutor(users) as pool:
        puts = [put for found in pool.map(deliver, range(users)) for put in found]
    assert len(puts) == 3 * users * each
    assert sum(not put.duplicate for put in puts) == users * each
    turns = Turns(redis_client)
    for tag, ids in inbox.pending([tag_of(f"u{n}") for n in range(users)]).items():
        texts = [turn.text for turn in turns.read_many([(tag, i) for i in ids])]
        assert texts == [str(n) for n in range(each)]
    assert redis_client.zcard(keys.QUEUE) == users * each


def test_the_same_message_from_32_threads_is_one_turn(redis_client: redis.Redis) -> None:
    inbox = Inbox(redis_client)
    barrier = threading.Barrier(32)

    def deliver(number: int) -> Put:
        barrier.wait(10)
        return inbox.put(text_message("zhang", "1"), f"t{number}")

    with ThreadPoolExecutor(32) as pool:
        puts = list(pool.map(deliver, range(32)))
    assert sum(not put.duplicate for put in puts) == 1
    assert len({put.turn_id for put in puts}) == 1


def test_index_never_misses_a_message_while_empty_entries_are_dropped(
    redis_client: redis.Redis,
) -> None:
    """A sweeper that drops entries races with puts and with turns that end."""
    inbox, index = Inbox(redis_client), PendingIndex(redis_client, "turn")
    tag = tag_of("zhang")
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            index.waiting()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(300):
            inbox.put(text_message("zhang", str(number)), f"t{number}")
            assert redis_client.zscore(keys.PENDING_USERS, tag) is not None
            redis_client.delete(keys.UserKeys(tag).inbox)
    finally:
        stop.set()
        sweeper.join()

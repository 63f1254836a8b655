"""Parts that wait, and the replay of those that were given up: once, in order, under races."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import redis

from app.store import keys
from app.store.keys import UserKeys
from app.store.outbox import MAX_AGE_S, Outbox, Outcome, Part
from app.store.unsent import Unsent
from tests.app.store.messages import tag_of
from tests.app.store.test_outbox import TAG, USER, _head, _held, _send, fill

REFUSED = Outcome("refused", errcode=40033, errmsg="bad")


def order(client: redis.Redis) -> list[str]:
    return [item.decode() for item in client.lrange(USER.outbox, 0, -1)]


def part_of(client: redis.Redis, part_id: str) -> Part:
    part = Outbox(client).read(TAG, part_id)
    assert part is not None
    return part


def refuse_first(client: redis.Redis) -> None:
    """The head of the outbox is refused by WeCom."""
    lease = _held(client)
    _send(Outbox(client), lease, REFUSED)
    lease.release()


def test_waiting_users_with_their_next_part(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    Outbox(redis_client).hold(TAG, 30)
    (waiting,) = Unsent(redis_client).waiting()
    assert (waiting.user, waiting.length, waiting.head.id) == ("zhang", 2, "t1:1")
    assert 29 < waiting.held_s <= 30
    assert Unsent(redis_client).problems() == []


def test_a_refused_part_is_listed_and_replayed_before_younger_ones(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "t1", "甲", "乙", "丙")
    fill(redis_client, "t2", "丁")
    refuse_first(redis_client)
    unsent = Unsent(redis_client)
    (problem,) = unsent.problems()
    assert (problem.user, problem.part.id, problem.part.errcode) == ("zhang", "t1:1", 40033)
    assert unsent.replay(TAG, "t1:1", 0)
    assert order(redis_client) == ["t1:1", "t1:2", "t1:3", "t2:1"]
    part = part_of(redis_client, "t1:1")
    assert (part.state, part.errcode, part.errmsg, part.replays) == ("pending", 0, "", 1)
    assert redis_client.ttl(USER.part("t1:1")) == -1
    assert unsent.problems() == []
    assert redis_client.zcard(keys.PROBLEM_PARTS) == 0


def test_a_part_goes_between_its_neighbours(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    fill(redis_client, "t2", "丙")
    refuse_first(redis_client)
    refuse_first(redis_client)
    unsent = Unsent(redis_client)
    assert unsent.replay(TAG, "t1:2", 0)
    assert unsent.replay(TAG, "t1:1", 0)
    assert order(redis_client) == ["t1:1", "t1:2", "t2:1"]


def test_replies_of_one_millisecond_keep_their_parts_together(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    fill(redis_client, "t2", "丙")
    refuse_first(redis_client)
    refuse_first(redis_client)
    for part_id in ("t1:1", "t1:2", "t2:1"):
        redis_client.hset(USER.part(part_id), "created_ms", 1_700_000_000_000)
    unsent = Unsent(redis_client)
    assert unsent.replay(TAG, "t1:2", 0)
    assert unsent.replay(TAG, "t1:1", 0)
    assert order(redis_client) == ["t1:1", "t1:2", "t2:1"]


def test_a_double_click_replays_once(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    refuse_first(redis_client)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: Unsent(redis_client).replay(TAG, "t1:1", 0), range(16)))
    assert sum(done) == 1
    assert order(redis_client) == ["t1:1"]
    # Refused again at once: the second click of the old page still does nothing.
    refuse_first(redis_client)
    assert not Unsent(redis_client).replay(TAG, "t1:1", 0)
    assert Unsent(redis_client).problems()[0].part.replays == 1
    assert Unsent(redis_client).replay(TAG, "t1:1", 1)


def test_never_before_a_part_that_is_being_sent(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    refuse_first(redis_client)
    outbox, lease = Outbox(redis_client), _held(redis_client)
    sending = _head(outbox)
    assert outbox.claim(lease, sending).verdict == "claimed"
    assert Unsent(redis_client).replay(TAG, "t1:1", 0)
    assert outbox.settle(lease, sending, Outcome("sent"))
    assert order(redis_client) == ["t1:1"]
    assert part_of(redis_client, "t1:2").state == "sent"


def test_a_sender_that_looked_before_the_replay_starts_anew(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    refuse_first(redis_client)
    outbox, lease = Outbox(redis_client), _held(redis_client)
    seen = _head(outbox)
    assert Unsent(redis_client).replay(TAG, "t1:1", 0)
    assert outbox.claim(lease, seen).verdict == "moved"
    assert _head(outbox).id == "t1:1"


def test_an_unknown_part_in_hand_is_not_replayed_and_a_given_up_one_is(
    redis_client: redis.Redis,
) -> None:
    outbox, unsent = Outbox(redis_client), Unsent(redis_client)
    fill(redis_client, "t1", "甲")
    lease = _held(redis_client)
    outbox.claim(lease, _head(outbox))  # and nothing is known of the outcome
    assert not unsent.replay(TAG, "t1:1", 0)
    redis_client.hset(USER.part("t1:1"), "first_sent_ms", 1)
    assert outbox.claim(lease, _head(outbox)).verdict == "ended"
    (problem,) = unsent.problems()
    assert (problem.part.id, problem.part.state) == ("t1:1", "unknown")
    assert unsent.replay(TAG, "t1:1", 0)
    assert outbox.claim(lease, _head(outbox)).verdict == "claimed"


def test_an_old_part_is_young_again(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t1", "甲")
    long_ago = int(redis_client.time()[0] * 1000) - (MAX_AGE_S + 60) * 1000
    redis_client.hset(USER.part("t1:1"), "created_ms", long_ago)
    lease = _held(redis_client)
    assert outbox.claim(lease, _head(outbox)).verdict == "ended"
    (problem,) = Unsent(redis_client).problems()
    assert problem.part.state == "refused"
    assert Unsent(redis_client).replay(TAG, "t1:1", 0)
    assert outbox.claim(lease, _head(outbox)).verdict == "claimed"


def test_sent_waiting_unknown_and_bridging_parts_stay_as_they_are(
    redis_client: redis.Redis,
) -> None:
    outbox, unsent = Outbox(redis_client), Unsent(redis_client)
    fill(redis_client, "t1", "甲", "乙")
    lease = _held(redis_client)
    _send(outbox, lease, Outcome("sent"))
    for part_id in ("t1:1", "t1:2", "t9:1"):
        assert not unsent.replay(TAG, part_id, 0)
    assert order(redis_client) == ["t1:2"]
    redis_client.hset(USER.part("t1:2"), mapping={"kind": "ack", "state": "refused"})
    redis_client.delete(USER.outbox)
    assert not unsent.replay(TAG, "t1:2", 0)


def test_the_list_of_problems_is_capped_and_trimmed(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    redis_client.zadd(
        keys.PROBLEM_PARTS,
        {keys.problem_part(tag_of("li"), f"x{n}"): n for n in range(keys.MOST_PROBLEM_PARTS)},
    )
    refuse_first(redis_client)
    assert redis_client.zcard(keys.PROBLEM_PARTS) == keys.MOST_PROBLEM_PARTS
    assert [problem.part.id for problem in Unsent(redis_client).problems()] == ["t1:1"]
    assert redis_client.zcard(keys.PROBLEM_PARTS) == 1


def test_everything_said_about_a_turn(redis_client: redis.Redis) -> None:
    outbox = Outbox(redis_client)
    fill(redis_client, "t0", "先")
    redis_client.hset(UserKeys(TAG).turn("t2"), mapping={"status": "running", "id": "t2"})
    assert outbox.acknowledge(TAG, "t2", "收到")
    assert outbox.progress(TAG, "t2", "正在查")
    assert outbox.notice(TAG, "t2", "unsendable", "发不出")
    found = [part.id for part in outbox.about_turn(TAG, "t2")]
    assert found == ["t2:ack", "t2:progress1", "t2:unsendable"]

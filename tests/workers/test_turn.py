"""Turns: order, commands, failures, parking, and two workers on one user."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from app.store.inbox import Action, Answered, Inbox
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.outbox import Outbox
from app.store.sessions import Sessions
from app.store.turns import Turn, Turns
from app.wecom.reply import without_mark
from inference.protocol import Message
from tests.app.store.messages import AGENT_ID, CORP_ID, event_message, tag_of, text_message
from tests.workers.fakes import FakeAgent, FakeWeCom, wait_for
from workers import replies
from workers.delivery import DeliveryLimits, Sender
from workers.turn import TurnLimits, TurnRunner

TAG = tag_of("zhang")


def ask(client: redis.Redis, *texts: str, user: str = "zhang") -> list[str]:
    """Put texts into the inbox; the turn ids."""
    inbox = Inbox(client)
    ids = [f"{user}-{client.incr('test:ids')}" for _ in texts]
    for turn_id, text in zip(ids, texts, strict=True):
        inbox.put(text_message(user, turn_id, text), turn_id)
    return ids


def command(client: redis.Redis, action: Action, text: str, idle_text: str = "") -> Answered:
    """Answer beside the inbox, as the gateway does with a command."""
    turn_id = f"command-{client.incr('test:ids')}"
    message = text_message("zhang", turn_id, "/command")
    return Inbox(client).answer(message, turn_id, action, text, idle_text=idle_text)


def turn_of(client: redis.Redis, turn_id: str) -> Turn:
    """A turn that must exist."""
    turn = Turns(client).get(turn_id)
    assert turn is not None
    return turn


def bodies(client: redis.Redis, user: str = "zhang") -> list[str]:
    """Texts in the outbox of a user."""
    keys = UserKeys(tag_of(user))
    ids = client.lrange(keys.outbox, 0, -1)
    return [client.hget(keys.part(i.decode()), "body").decode() for i in ids]


def test_answers_the_oldest_and_hints_at_the_rest(redis_client: redis.Redis) -> None:
    replied: list[str] = []
    more: list[str] = []
    agent = FakeAgent()
    runner = TurnRunner(redis_client, agent, on_reply=replied.append, on_more=more.append)
    first, second = ask(redis_client, "一", "二")
    runner.drain(TAG)
    assert turn_of(redis_client, first).status == "done"
    assert turn_of(redis_client, second).status == "queued"
    assert (replied, more) == ([TAG], [TAG])
    runner.drain(TAG)
    runner.drain(TAG)
    assert (replied, more) == ([TAG, TAG], [TAG])
    assert bodies(redis_client) == ["答:一", "答:二"]
    assert agent.runs == [("zhang", "一"), ("zhang", "二")]


def test_complaint_4_a_retry_that_comes_during_the_work_is_a_duplicate(
    redis_client: redis.Redis,
) -> None:
    """opencrust-org/opencrust PR#249: the mark was set after the work."""
    (turn_id,) = ask(redis_client, "slow:1")
    agent = FakeAgent()
    runner = TurnRunner(redis_client, agent)
    thread = threading.Thread(target=runner.drain, args=(TAG,))
    thread.start()
    wait_for(lambda: agent.runs)
    retry = Inbox(redis_client).put(text_message("zhang", turn_id, "slow:1"), "again")
    thread.join()
    late = Inbox(redis_client).put(text_message("zhang", turn_id, "slow:1"), "later")
    runner.drain(TAG)
    assert [(p.duplicate, p.turn_id) for p in (retry, late)] == [(True, turn_id)] * 2
    assert len(agent.runs) == 1
    assert bodies(redis_client) == ["答:slow:1"]


def test_steps_and_reasoning_are_kept_and_never_sent(redis_client: redis.Redis) -> None:
    (turn_id,) = ask(redis_client, "一")
    TurnRunner(redis_client, FakeAgent()).drain(TAG)
    steps = json.loads(turn_of(redis_client, turn_id).steps)
    assert [(s["kind"], s["reasoning"]) for s in steps] == [("model", "想一想")]
    assert "想一想" not in "".join(bodies(redis_client))


def test_steps_can_be_read_while_the_turn_runs(redis_client: redis.Redis) -> None:
    (turn_id,) = ask(redis_client, "slow:5")
    runner = TurnRunner(redis_client, FakeAgent())
    thread = threading.Thread(target=runner.drain, args=(TAG,))
    thread.start()
    wait_for(lambda: turn_of(redis_client, turn_id).steps != "[]")
    assert turn_of(redis_client, turn_id).status == "running"
    thread.join()


def test_session_goes_to_the_next_turn_and_new_forgets_it(redis_client: redis.Redis) -> None:
    agent = FakeAgent()
    runner = TurnRunner(redis_client, agent)
    ask(redis_client, "一")
    runner.drain(TAG)
    ask(redis_client, "二")
    command(redis_client, "new", "已清除")
    ask(redis_client, "三")
    for _ in range(2):
        runner.drain(TAG)
    assert [text for _, text in agent.runs] == ["一", "二", "三"]
    assert agent.histories == [[], [Message("user", "一"), Message("assistant", "答:一")], []]
    assert bodies(redis_client) == ["答:一", "已清除", "答:二", "答:三"]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("", replies.EMPTY),
        (" \n　", replies.EMPTY),
        ("？？！…", replies.WORDLESS),
        ("👍🏽❤️", replies.WORDLESS),
        ("\u200b\u202e", replies.WORDLESS),
    ],
)
def test_texts_without_words_never_reach_the_model(
    redis_client: redis.Redis, text: str, reply: str
) -> None:
    agent = FakeAgent()
    (turn_id,) = ask(redis_client, text)
    TurnRunner(redis_client, agent).drain(TAG)
    assert agent.runs == []
    assert turn_of(redis_client, turn_id).answer == reply
    assert bodies(redis_client) == [reply]


def test_full_width_text_is_folded_for_the_agent_and_kept_as_it_was(
    redis_client: redis.Redis,
) -> None:
    agent = FakeAgent()
    (turn_id,) = ask(redis_client, "１２３＋４５６，ＱＱ？")
    TurnRunner(redis_client, agent).drain(TAG)
    assert [text for _, text in agent.runs] == ["123+456，QQ？"]
    assert turn_of(redis_client, turn_id).text == "１２３＋４５６，ＱＱ？"


@pytest.mark.parametrize("kind", ["image", "voice", "video", "file", "location", "link", "unheard"])
def test_other_kinds_get_one_polite_line(redis_client: redis.Redis, kind: str) -> None:
    message = replace(text_message("zhang", "1"), msg_type=kind, content="")
    Inbox(redis_client).put(message, "t1")
    TurnRunner(redis_client, FakeAgent()).drain(TAG)
    assert bodies(redis_client) == [replies.UNSUPPORTED]


def test_enter_agent_greets_once_a_day_and_other_events_are_silent(
    redis_client: redis.Redis,
) -> None:
    inbox, runner = Inbox(redis_client), TurnRunner(redis_client, FakeAgent())
    for number, event in enumerate(("enter_agent", "enter_agent", "click", "template_card_event")):
        inbox.put(event_message("zhang", event, str(number)), f"t{number}")
        runner.drain(TAG)
    assert bodies(redis_client) == [replies.GREETING, replies.UNSUPPORTED]
    assert all(turn_of(redis_client, f"t{n}").ended for n in range(4))


def test_a_bug_is_answered_honestly_and_the_next_turn_goes_on(redis_client: redis.Redis) -> None:
    failed, good = ask(redis_client, "raise", "一")
    runner = TurnRunner(redis_client, FakeAgent())
    runner.drain(TAG)
    runner.drain(TAG)
    turn = turn_of(redis_client, failed)
    assert (turn.status, turn.error) == ("failed", "RuntimeError")
    assert "model" in turn.steps
    assert turn_of(redis_client, good).status == "done"
    assert bodies(redis_client) == [replies.FAILED.format(turn_id=failed), "答:一"]


def test_time_out_without_a_text_gets_one(redis_client: redis.Redis) -> None:
    (turn_id,) = ask(redis_client, "timeout")
    TurnRunner(redis_client, FakeAgent()).drain(TAG)
    assert turn_of(redis_client, turn_id).error == "timeout"
    assert bodies(redis_client) == [replies.TIMEOUT]


def test_long_answers_are_parts_of_2048_bytes(redis_client: redis.Redis) -> None:
    ask(redis_client, "long:1500")
    TurnRunner(redis_client, FakeAgent()).drain(TAG)
    parts = bodies(redis_client)
    assert [part[:6] for part in parts] == ["(1/3)\n", "(2/3)\n", "(3/3)\n"]
    assert "".join(without_mark(part) for part in parts) == "长" * 1500
    assert all(len(part.encode()) <= 2048 for part in parts)


def test_a_dead_engine_keeps_the_turn_and_stops_the_process(redis_client: redis.Redis) -> None:
    broken = threading.Event()
    (turn_id,) = ask(redis_client, "engine")
    agent = FakeAgent()
    runner = TurnRunner(redis_client, agent, on_broken=broken.set)
    runner.drain(TAG)
    runner.drain(TAG)
    assert broken.is_set()
    assert len(agent.runs) == 1, "a broken process must not use up attempts"
    assert not turn_of(redis_client, turn_id).ended
    assert bodies(redis_client) == []


def test_parked_after_three_attempts_with_an_honest_reply(redis_client: redis.Redis) -> None:
    parked, good = ask(redis_client, "engine", "一")
    agent = FakeAgent()
    for _ in range(3):  # three worker lives
        TurnRunner(redis_client, agent).drain(TAG)
    runner = TurnRunner(redis_client, agent)
    runner.drain(TAG)
    runner.drain(TAG)
    assert [text for _, text in agent.runs] == ["engine"] * 3 + ["一"]
    turn = turn_of(redis_client, parked)
    assert (turn.status, turn.attempts) == ("parked", 3)
    assert bodies(redis_client) == [replies.PARKED.format(turn_id=parked), "答:一"]
    assert turn_of(redis_client, good).status == "done"


def test_a_wake_that_finds_the_lease_held_returns_at_once(redis_client: redis.Redis) -> None:
    ask(redis_client, "一")
    assert Leases(redis_client, "turn").acquire(TAG)
    agent = FakeAgent()
    TurnRunner(redis_client, agent).drain(TAG)
    assert agent.runs == []


def test_a_worker_whose_lease_was_taken_stops_and_writes_nothing(
    redis_client: redis.Redis,
) -> None:
    (turn_id,) = ask(redis_client, "slow:20")
    agent = FakeAgent()
    runner = TurnRunner(redis_client, agent, TurnLimits(lease_ttl_s=0.3))
    thread = threading.Thread(target=runner.drain, args=(TAG,))
    thread.start()
    wait_for(lambda: agent.runs)
    # As if this process had been stopped for longer than its lease: it is gone and taken.
    leases = Leases(redis_client, "turn")
    taken = []
    while not taken:
        redis_client.delete(UserKeys(TAG).lease("turn"))
        taken = [lease for lease in [leases.acquire(TAG)] if lease]
    thread.join(10)
    assert not thread.is_alive()
    assert agent.cancelled == 1
    assert bodies(redis_client) == []
    assert not turn_of(redis_client, turn_id).ended
    assert taken[0].renew(), "the new holder keeps its lease"


def test_stop_ends_the_running_turn_and_the_waiting_one_goes_on(redis_client: redis.Redis) -> None:
    more: list[str] = []
    running, waiting = ask(redis_client, "slow:60", "二")
    agent = FakeAgent()
    runner = TurnRunner(redis_client, agent, on_more=more.append)
    thread = threading.Thread(target=runner.drain, args=(TAG,))
    thread.start()
    wait_for(lambda: agent.runs)
    assert command(redis_client, "stop", "已停止。", "没有").stopped == running
    # At once for the user, whatever the worker does.
    turn = turn_of(redis_client, running)
    assert (turn.status, turn.error, turn.answer) == ("failed", "cancelled", "已停止。")
    thread.join(10)
    assert not thread.is_alive()
    assert agent.cancelled == 1
    assert more == [TAG], "the waiting message is not left to the sweeper"
    runner.drain(TAG)
    assert turn_of(redis_client, waiting).status == "done"
    assert bodies(redis_client) == ["已停止。", "答:二"]
    assert agent.histories == [[], []]


def test_stop_works_on_a_turn_whose_worker_died(redis_client: redis.Redis) -> None:
    (turn_id,) = ask(redis_client, "一")
    lease = Leases(redis_client, "turn").acquire(TAG)
    assert lease
    Turns(redis_client).begin(lease, turn_id)
    assert command(redis_client, "stop", "已停止。", "没有").stopped == turn_id
    assert bodies(redis_client) == ["已停止。"]
    assert Inbox(redis_client).head(TAG) is None


def test_stop_with_nothing_running_says_so_and_keeps_what_waits(redis_client: redis.Redis) -> None:
    (turn_id,) = ask(redis_client, "一")
    assert command(redis_client, "stop", "已停止。", "没有").stopped == ""
    assert bodies(redis_client) == ["没有"]
    assert turn_of(redis_client, turn_id).status == "queued"


def test_unreadable_memory_does_not_stop_the_answer(redis_client: redis.Redis) -> None:
    redis_client.rpush(UserKeys(TAG).session(), '[{"speaker": "old format"}]')
    ask(redis_client, "一")
    TurnRunner(redis_client, FakeAgent()).drain(TAG)
    assert bodies(redis_client) == ["答:一"]


def test_fifty_interleaved_users_never_see_each_others_words(redis_client: redis.Redis) -> None:
    agent = FakeAgent()
    runner = TurnRunner(redis_client, agent)
    for number in range(3):
        for user in range(50):
            ask(redis_client, f"秘密{user}-{number}", user=f"u{user}")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(runner.drain, [tag_of(f"u{n % 50}") for n in range(150)]))
    wait_for(lambda: _drained(redis_client, runner, 50))
    for (user, _), history in zip(agent.runs, agent.histories, strict=True):
        number = user.removeprefix("u")
        assert all(f"秘密{number}-" in message.content for message in history)
    assert sum(bool(history) for history in agent.histories) == 100, "memory is at work"
    for user in range(50):
        assert bodies(redis_client, f"u{user}") == [f"答:秘密{user}-{n}" for n in range(3)]
    wecom = FakeWeCom()
    sender = Sender(redis_client, {(CORP_ID, AGENT_ID): wecom}, DeliveryLimits(gap_s=0.0))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(sender.deliver, [tag_of(f"u{n}") for n in range(50)]))
    assert len(wecom.sent) == 150
    assert all(text.startswith(f"答:秘密{user.removeprefix('u')}-") for user, text in wecom.sent)


def _drained(client: redis.Redis, runner: TurnRunner, users: int) -> bool:
    tags = [tag_of(f"u{n}") for n in range(users)]
    waiting = [tag for tag, ids in Inbox(client).pending(tags).items() if ids]
    for tag in waiting:
        runner.drain(tag)
    return not waiting


def test_1000_turns_by_four_workers_run_once_and_in_order(redis_client: redis.Redis) -> None:
    """Every wake is doubled, and several workers get it at the same time."""
    users, each = 40, 25
    agents = [FakeAgent() for _ in range(4)]
    runners = [TurnRunner(redis_client, agent) for agent in agents]
    order: list[str] = []
    for number in range(each):
        for user in range(users):
            order += ask(redis_client, str(number), user=f"u{user}")
    tags = [tag_of(f"u{n}") for n in range(users)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(each):
            calls = [pool.submit(r.drain, tag) for tag in tags for r in (runners[0], runners[1])]
            calls += [pool.submit(r.drain, tag) for tag in tags for r in (runners[2], runners[3])]
            for call in calls:
                call.result()
    wait_for(lambda: _drained(redis_client, runners[0], users))
    assert sum(len(agent.runs) for agent in agents) == users * each
    for user in range(users):
        assert bodies(redis_client, f"u{user}") == [f"答:{n}" for n in range(each)]
    outbox, sessions = Outbox(redis_client), Sessions(redis_client)
    assert outbox.head(tags[0]) is not None
    assert len(sessions.load(tags[0])) == 20
    assert all(turn.attempts == 1 for turn in (turn_of(redis_client, i) for i in order))


def test_complaint_28_markdown_of_the_model_becomes_text(redis_client: redis.Redis) -> None:
    ask(redis_client, "markdown:**华东**最好\n|区|额|\n|-|-|\n|华东|9|")
    TurnRunner(redis_client, FakeAgent()).drain(TAG)
    assert bodies(redis_client) == ["华东最好\n区：华东，额：9"]
    part = Outbox(redis_client).head(TAG)
    assert part is not None
    assert not part.markdown


def test_complaint_27_markdown_is_sent_only_where_it_was_opted_in(
    redis_client: redis.Redis,
) -> None:
    first, second = ask(redis_client, "markdown:**华东**最好", "")
    runner = TurnRunner(redis_client, FakeAgent(), markdown=True)
    runner.drain(TAG)
    runner.drain(TAG)
    parts = [Outbox(redis_client).read(TAG, f"{turn_id}:1") for turn_id in (first, second)]
    assert [(p.body, p.markdown) for p in parts if p] == [
        ("**华东**最好", True),
        (replies.EMPTY, False),
    ]

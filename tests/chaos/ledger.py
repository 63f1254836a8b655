"""What was said against what was answered: nothing lost, doubled, swapped or misdirected.

Takes three sources that know nothing of each other: what the callers saw (``Said``), the chats of
the simulator, and the turns and parts in Redis. Owns the rules; knows no processes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import redis

from app.simulator.conversations import ChatMessage
from app.store import keys
from app.store.outbox import Outbox, Part
from app.store.turns import Turn, Turns
from tests.chaos.driver import Said

_MARK = re.compile(r"(u\d{4}m\d{4})r([0-9a-f]{6})l(\d{3})")


@dataclass
class Verdict:
    """Counts of what must not be (the first six) and of what may; examples for people."""

    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    wrong_user: int = 0
    parts_missing: int = 0
    parts_repeated: int = 0
    unacknowledged: int = 0
    parts_unknown: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not any(
            (
                *(self.lost, self.duplicated, self.out_of_order, self.wrong_user),
                *(self.parts_missing, self.parts_repeated),
            )
        )

    def add(self, what: str, example: str) -> None:
        """Count one breach of a promise."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.examples) < 40:
            self.examples.append(f"{what}: {example}")


@dataclass(frozen=True)
class Stored:
    """What Redis holds of one user: turns and parts."""

    turns: Mapping[str, Turn]
    parts: Mapping[str, Part]


def read_store(client: redis.Redis) -> dict[str, Stored]:
    """By user: every turn and every part."""
    turns: dict[str, dict[str, Turn]] = defaultdict(dict)
    parts: dict[str, dict[str, Part]] = defaultdict(dict)
    known_turns, outbox = Turns(client), Outbox(client)
    for raw in client.scan_iter(match=f"{keys.PREFIX}{{*}}:*", count=1000):
        tag, _, rest = raw.decode().removeprefix(keys.PREFIX + "{").partition("}:")
        user = keys.split_tag(tag).user
        kind, _, name = rest.partition(":")
        if kind == "turn" and (turn := known_turns.read(tag, name)):
            turns[user][name] = turn
        if kind == "part" and (part := outbox.read(tag, name)):
            parts[user][name] = part
    return {user: Stored(turns[user], parts[user]) for user in {*turns, *parts}}


def check(
    said: Sequence[Said], chats: Iterable[ChatMessage], stored: Mapping[str, Stored]
) -> Verdict:
    """Compare. ``chats`` are the app's bubbles of all users, oldest first."""
    verdict = Verdict()
    shown: dict[str, list[str]] = defaultdict(list)
    for bubble in chats:
        shown[bubble.user_id].append(bubble.text)
    said_by: dict[str, list[Said]] = defaultdict(list)
    for one in said:
        said_by[one.user].append(one)
        verdict.unacknowledged += not one.acknowledged
    for user, lines in said_by.items():
        store = stored.get(user, Stored({}, {}))
        _check_turns(verdict, lines, shown[user], store)
        _check_parts(verdict, user, shown[user], store)
        _check_marks(verdict, user, shown[user])
    return verdict


def _check_turns(verdict: Verdict, lines: list[Said], chat: list[str], store: Stored) -> None:
    """One ended turn per acknowledged message, its whole answer in the chat, in order."""
    by_msg_id: dict[str, list[Turn]] = defaultdict(list)
    for turn in store.turns.values():
        by_msg_id[turn.msg_id].append(turn)
    free = defaultdict(list)
    for position, text in enumerate(chat):
        free[text].append(position)
    last = -1
    for one in lines:
        turns = by_msg_id[one.msg_id]
        if len(turns) > 1:
            verdict.add("duplicated", f"{one.text}: {len(turns)} turns")
        if not turns:
            if one.acknowledged:
                verdict.add("lost", f"{one.text}: no turn")
            continue
        turn = turns[0]
        verdict.statuses[turn.status] += 1
        verdict.attempts[turn.attempts] += 1
        answer = _answer_parts(turn, store)
        places = [free[part.body].pop(0) for part in answer if free[part.body]]
        if not turn.ended or not answer or len(places) < len(answer):
            if one.acknowledged:
                states = [part.state for part in answer]
                verdict.add("lost", f"{one.text}: turn {turn.id} {turn.status}, parts {states}")
            continue
        if places != sorted(places) or (one.in_order and places[0] < last):
            verdict.add("out_of_order", f"{one.text}: at {places}, after {last}")
        if one.in_order:
            last = max(last, places[-1])


def _answer_parts(turn: Turn, store: Stored) -> list[Part]:
    parts = [part for part in store.parts.values() if part.turn_id == turn.id]
    return sorted((part for part in parts if part.kind == "answer"), key=lambda part: part.seq)


def _check_parts(verdict: Verdict, user: str, chat: list[str], store: Stored) -> None:
    """Every sent part once; one of unknown fate at most once."""
    times = Counter(chat)
    sent = Counter(part.body for part in store.parts.values() if part.state == "sent")
    unknown = Counter(part.body for part in store.parts.values() if part.state == "unknown")
    verdict.parts_unknown += unknown.total()
    for body in {*times, *sent}:
        if times[body] < sent[body]:
            verdict.add("parts_missing", f"{user}: {body[:40]!r} {times[body]} of {sent[body]}")
        if times[body] > sent[body] + unknown[body]:
            verdict.add("parts_repeated", f"{user}: {body[:40]!r} {times[body]} of {sent[body]}")


def _check_marks(verdict: Verdict, user: str, chat: list[str]) -> None:
    """What the fake model wrote into its answers: whose, which run, which line."""
    runs: dict[str, set[str]] = defaultdict(set)
    for text in chat:
        for question, run, _ in _MARK.findall(text):
            runs[question].add(run)
            if not question.startswith(user):
                verdict.add("wrong_user", f"{user} got the answer to {question}")
    for question, different in runs.items():
        if len(different) > 1:
            verdict.add("duplicated", f"{question}: answered by runs {sorted(different)}")

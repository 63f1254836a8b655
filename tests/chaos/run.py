"""One run: the stack up, messages and disturbance at once, then calm, then the ledger."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis

from app.simulator.conversations import ChatMessage
from app.store.inbox import Inbox
from app.store.keys import user_tag
from app.store.outbox import Outbox
from app.store.server import connect
from tests.chaos.disturbance import Disturbance, Intensity
from tests.chaos.driver import Driver
from tests.chaos.ledger import Verdict, check, read_store
from tests.chaos.stack import AGENT_ID, Stack, wait_for


@dataclass(frozen=True)
class Load:
    """Who says what, and how hard the processes are shaken meanwhile.

    ``texts``: one list of messages per user. ``calm_limit_s``: how long the rest may take at the
    end; what is unanswered then is lost. ``variables`` join the environment of the processes.
    """

    texts: Sequence[Sequence[str]]
    worker: tuple[str, ...]
    intensity: Intensity
    workers: int = 2
    seed: int = 1
    most_open: int = 250
    calm_limit_s: float = 300.0
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """How many messages are said in all."""
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class Report:
    """What a run has shown. ``disturbed`` counts by action and part."""

    messages: int
    deliveries: int
    kills: int
    disturbed: dict[str, int]
    restarted_by_themselves: int
    faults: int
    sending_s: float
    calm_s: float
    verdict: Verdict

    def last_line(self) -> dict[str, int]:
        """The figures that are promised."""
        return {
            "messages": self.messages,
            "kills": self.kills,
            "lost": self.verdict.lost,
            "duplicated": self.verdict.duplicated,
            "out_of_order": self.verdict.out_of_order,
            "wrong_user": self.verdict.wrong_user,
            "unacknowledged": self.verdict.unacknowledged,
        }


def fake_texts(users: int, each: int) -> list[list[str]]:
    """Messages that the fake model knows by name: ``u0003m0012`` is the 13th of the fourth user."""
    return [[f"u{user:04d}m{number:04d}" for number in range(each)] for user in range(users)]


def run(load: Load, folder: Path) -> Report:
    """Do it. Raises only when the processes do not come up at all."""
    stack = Stack(folder, len(load.texts), load.worker, load.workers, load.variables)
    with stack.running(), connect(stack.server.url, timeout_s=10) as client:
        answers = _Answers(stack)
        disturbance = Disturbance(stack, load.intensity, load.seed, lambda: driver.progress)
        driver = Driver(
            *(stack.simulator, load.texts, load.seed),
            *(answers.count, load.most_open, disturbance.behind),
        )
        disturbance.spread_faults()
        shaking = threading.Thread(target=disturbance.run, name="disturbance", daemon=True)
        started_s = time.monotonic()
        shaking.start()
        driver.run()
        sending_s = time.monotonic() - started_s
        shaking.join(120)
        assert not shaking.is_alive(), "the disturbance did not end"
        stack.simulator.faults.clear()
        stack.simulator.trusted_ips = None
        started_s = time.monotonic()
        calm = wait_for(lambda: _nothing_left(client, stack), load.calm_limit_s)
        calm_s = time.monotonic() - started_s
        if not calm:
            print(f"  not calm after {calm_s:.0f} s", file=sys.stderr)
        verdict = check(driver.said, answers.bubbles(), read_store(client))
    return Report(
        messages=load.messages,
        deliveries=sum(said.deliveries for said in driver.said),
        kills=sum(n for name, n in disturbance.counts.items() if name.startswith("kill")),
        disturbed=dict(disturbance.counts),
        restarted_by_themselves=sum(part.exits for part in stack.parts),
        faults=stack.simulator.faults.hits,
        sending_s=sending_s,
        calm_s=calm_s,
        verdict=verdict,
    )


class _Answers:
    """The app's bubbles so far."""

    def __init__(self, stack: Stack) -> None:
        self._conversations = stack.simulator.conversations
        self._lock = threading.Lock()
        self._after = 0
        self._found: list[ChatMessage] = []
        self._looked_s = 0.0

    def count(self) -> int:
        """About how many messages have their answer; looked up twice a second."""
        with self._lock:
            if time.monotonic() - self._looked_s > 0.5:
                self._look()
                self._looked_s = time.monotonic()
            return len(self._found)

    def bubbles(self) -> list[ChatMessage]:
        """All of them, oldest first."""
        with self._lock:
            self._look()
            return list(self._found)

    def _look(self) -> None:
        for event in self._conversations.since(self._after):
            self._after = event.seq
            if isinstance(event, ChatMessage) and event.sender == "app":
                self._found.append(event)


def _nothing_left(client: redis.Redis, stack: Stack) -> bool:
    """Whether every inbox and every outbox is empty."""
    corp = stack.corp
    tags = [user_tag(corp.corp_id, str(AGENT_ID), e.user_id) for e in corp.employees]
    try:
        if any(Inbox(client).pending(tags).values()):
            return False
        outbox = Outbox(client)
        return all(outbox.head(tag) is None for tag in tags)
    except redis.RedisError:
        return False

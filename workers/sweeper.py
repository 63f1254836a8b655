"""Finds what was left lying and wakes somebody for it; tells users who wait that they are heard.

Owns the repetition of lost wakes and the acknowledgement. Knows nothing of how turns are answered
or parts are sent. Any number may run: each of its deeds is done once by a script.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import redis

from app.dispatch import SEND_QUEUE, TURNS_QUEUE, queue_key
from app.log import fields
from app.metrics import Metrics
from app.store.app_state import AppState
from app.store.inbox import Inbox
from app.store.outbox import Outbox
from app.store.pending import PendingIndex, Waiting
from app.store.turns import Turn, Turns
from workers import replies

log = logging.getLogger(__name__)


class Wakes(Protocol):
    """Where wakes go; see ``app.dispatch.Dispatcher``."""

    def wake(self, tag: str) -> bool: ...

    def deliver(self, tag: str) -> bool: ...


@dataclass(frozen=True)
class SweepTimes:
    """Seconds. A wake is repeated sooner while the broker's queue is empty: then none is on its
    way. A filled queue gets few repetitions, or they would pile up while all workers are away."""

    interval_s: float = 0.5
    grace_s: float = 1.0
    again_empty_s: float = 2.0
    again_filled_s: float = 15.0
    repair_s: float = 60.0
    ack_after_s: float = 3.0
    progress_after_s: float = 20.0
    progress_every_s: float = 40.0


class Sweeper:
    """One pass is ``sweep``; ``run`` repeats it."""

    def __init__(
        self,
        client: redis.Redis,
        wakes: Wakes,
        times: SweepTimes | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._redis = client
        self._wakes = wakes
        self._times = times or SweepTimes()
        self._metrics = metrics or Metrics()
        self._users = PendingIndex(client, "turn")
        self._outboxes = PendingIndex(client, "send")
        self._inbox = Inbox(client)
        self._turns = Turns(client)
        self._outbox = Outbox(client)
        self._app = AppState(client)
        self._repaired_s = float("-inf")
        self._due_s: dict[str, float] = {}
        """When a waiting turn is to be looked at for an acknowledgement (Redis time)."""
        self._progress_due_s: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        """Sweep until ``stop`` is set; goes on when Redis is away for a while."""
        while not stop.is_set():
            try:
                self.sweep()
            except redis.RedisError as error:
                log.warning("sweep broken off", extra=fields(error=type(error).__name__))
            stop.wait(self._times.interval_s)

    def sweep(self) -> None:
        """One pass over everything that waits."""
        self._repair()
        seconds, micros = self._redis.time()
        now_s = seconds + micros / 1e6
        users = self._users.waiting()
        pending = self._inbox.pending([user.tag for user in users])
        self._acknowledge(pending, now_s)
        busy = [user.tag for user in users if user.busy and pending[user.tag]]
        self._progress([(tag, pending[tag][0]) for tag in busy], now_s)
        self._repeat(self._users, users, TURNS_QUEUE, self._wakes.wake, now_s)
        outboxes = self._sendable(self._outboxes.waiting())
        self._repeat(self._outboxes, outboxes, SEND_QUEUE, self._wakes.deliver, now_s)

    def _sendable(self, waiting: list[Waiting]) -> list[Waiting]:
        """Without the users of apps that are paused: waking a sender for them is in vain."""
        first_of = {user.tag.rpartition(":")[0]: user.tag for user in waiting}
        paused = {app for app, tag in first_of.items() if self._app.paused(tag)}
        return [user for user in waiting if user.tag.rpartition(":")[0] not in paused]

    def _repair(self) -> None:
        """Once in a while, look for what a crash at the worst moment may have left out."""
        if time.monotonic() - self._repaired_s < self._times.repair_s:
            return
        repaired = self._users.repair() + self._outboxes.repair() + self._turns.trim_queue()
        if repaired:
            log.warning("index repaired", extra=fields(entries=repaired))
        self._repaired_s = time.monotonic()

    def _repeat(
        self,
        index: PendingIndex,
        waiting: list[Waiting],
        queue: str,
        wake: Callable[[str], bool],
        now_s: float,
    ) -> None:
        """Wake somebody for each user nobody works for."""
        queued = self._redis.llen(queue_key(queue))
        again_s = self._times.again_filled_s if queued else self._times.again_empty_s
        room = 2 * len(waiting) + 10 - queued
        settled_s = now_s - self._times.grace_s
        for user in waiting:
            if room <= 0:
                return
            if user.busy or user.touched_s > settled_s:
                continue
            if index.mark_woken(user.tag, again_s):
                room -= 1
                self._metrics.count("hutong_wakes_repeated", queue=queue)
                wake(user.tag)

    def _acknowledge(self, pending: Mapping[str, list[str]], now_s: float) -> None:
        """One line for all messages of a user that have waited long enough."""
        waiting = [(tag, turn_id) for tag, ids in pending.items() for turn_id in ids]
        self._due_s = {i: self._due_s[i] for _, i in waiting if i in self._due_s}
        due = [(t, i) for t, i in waiting if self._due_s.get(i, -math.inf) <= now_s]
        late: dict[str, list[Turn]] = {}
        for turn in self._turns.read_many(due):
            due_s = turn.created_ms / 1000 + self._times.ack_after_s
            # Nobody waits for a dry run in a chat, and events are not said by people.
            if turn.acked_ms or turn.ended or turn.dry_run or turn.msg_type == "event":
                due_s = math.inf
            elif due_s <= now_s:
                late.setdefault(turn.tag, []).append(turn)
            self._due_s[turn.id] = due_s
        for tag, turns in late.items():
            first, *rest = turns
            position = 0 if first.status == "running" else self._turns.position(first.id)
            if self._outbox.acknowledge(tag, first.id, replies.ack(position)):
                self._wakes.deliver(tag)
            for turn in rest:
                self._outbox.acknowledge(tag, turn.id, "")

    def _progress(self, running: list[tuple[str, str]], now_s: float) -> None:
        """Tell the users of long turns, now and then, what is being done."""
        known = self._progress_due_s
        self._progress_due_s = {i: known[i] for _, i in running if i in known}
        due = [(t, i) for t, i in running if known.get(i, -math.inf) <= now_s]
        for turn in self._turns.read_many(due):
            begun_s = turn.started_ms / 1000
            due_s = max(
                begun_s + self._times.progress_after_s,
                turn.progress_ms / 1000 + self._times.progress_every_s,
            )
            if turn.status != "running" or turn.dry_run:
                due_s = now_s + self._times.interval_s
            elif due_s <= now_s:
                text = replies.progress(_running_tool(turn.steps), int(now_s - begun_s))
                if self._outbox.progress(turn.tag, turn.id, text):
                    self._wakes.deliver(turn.tag)
                due_s = now_s + self._times.progress_every_s
            self._progress_due_s[turn.id] = due_s


def _running_tool(steps: str) -> str:
    """The tool a turn waits for: called by its last step, a model step. "" when there is none."""
    done = json.loads(steps)
    calls = done[-1].get("tool_calls") if done else None
    return str(calls[0].get("name", "")) if calls else ""

"""What is done to the processes and to WeCom while messages flow, in an order drawn by a seed.

Owns the schedule. A step comes when a share of the messages was sent, so a slow machine gets the
same disturbance as a fast one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from app.simulator.faults import Fault
from tests.chaos.stack import HOST, Part, Stack

PARTS = ("web", "worker", "sender", "redis")


@dataclass(frozen=True)
class Intensity:
    """How often each of the four parts is killed, stopped (SIGSTOP) and restarted (SIGTERM)."""

    kills: int
    stops: int
    restarts: int
    longest_stop_s: float
    untrusted_s: float = 0.0
    """For so long WeCom does not know our address (60020)."""
    frequency_blocks: int = 0
    """Answers of 45009; each holds a member's or the app's messages back for a minute."""


class Disturbance:
    """One run of the schedule; ``counts`` says what was done, as ``kill web`` and so on."""

    def __init__(
        self, stack: Stack, intensity: Intensity, seed: int, progress: Callable[[], float]
    ) -> None:
        """``progress`` is the share of messages sent, 0 to 1."""
        self._stack = stack
        self._intensity = intensity
        self._random = random.Random(seed)
        self._progress = progress
        self._steps = self._schedule()
        self._done = 0
        self.counts: Counter[str] = Counter()
        self.stop = threading.Event()

    def behind(self, progress: float) -> bool:
        """Whether messages come faster than the disturbance: the next should wait for it."""
        return self._done < len(self._steps) and progress > self._due(self._done + 1)

    def _due(self, number: int) -> float:
        return (number + 0.5) / len(self._steps) * 0.97

    def _schedule(self) -> list[tuple[str, str]]:
        """Pairs of action and part."""
        steps = [
            (action, part)
            for part in PARTS
            for action, times in (
                ("kill", self._intensity.kills),
                ("stop", self._intensity.stops),
                ("restart", self._intensity.restarts),
            )
            for _ in range(times)
        ]
        steps += [("kill", "sweeper"), ("token", "wecom")]
        if self._intensity.untrusted_s:
            steps.append(("untrusted", "wecom"))
        self._random.shuffle(steps)
        return steps

    def run(self) -> None:
        """Work through the schedule; ends with everything running."""
        for number, (action, part) in enumerate(self._steps):
            while self._progress() < self._due(number):
                if self.stop.wait(0.05):
                    return
            self._do(action, part)
            self._done += 1
            self.counts[f"{action} {part}"] += 1
            print(f"  {self._progress():4.0%} {action} {part}", file=sys.stderr, flush=True)

    def spread_faults(self) -> None:
        """WeCom's own troubles, each for a few calls in a hundred."""
        for fault in (
            Fault("message/send", "errcode", -1, 0, 0.01),
            Fault("message/send", "errcode", 45033, 0, 0.005),
            Fault("message/send", "errcode", 42001, 0, 0.005),
            Fault("message/send", "http", 502, 0, 0.01),
            Fault("message/send", "reset", 0, 0, 0.01),
            Fault("message/send", "reset_after", 0, 0, 0.015),
            Fault("message/send", "slow", 1.5, 0, 0.01),
            Fault("message/send", "slow", 6, 10, 0.002),
            Fault("message/send", "late", 6, 10, 0.002),
            Fault("gettoken", "http", 503, 0, 0.2),
            Fault("gettoken", "reset", 0, 0, 0.1),
            Fault("callback", "lost", 0, 0, 0.15),
        ):
            self._stack.simulator.faults.add(fault)
        if self._intensity.frequency_blocks:
            fault = Fault("message/send", "errcode", 45009, self._intensity.frequency_blocks, 0.002)
            self._stack.simulator.faults.add(fault)

    def _do(self, action: str, kind: str) -> None:
        if action == "token":
            self._stack.simulator.tokens.expire_now()
        elif action == "untrusted":
            self._stack.simulator.trusted_ips = frozenset({"203.0.113.7"})
            self.stop.wait(self._intensity.untrusted_s)
            self._stack.simulator.trusted_ips = frozenset({HOST})
        elif kind == "redis":
            self._redis(action)
        else:
            self._process(action, self._random.choice(self._stack.of_kind(kind)))

    def _process(self, action: str, part: Part) -> None:
        if action == "stop":
            part.signal(signal.SIGSTOP)
            self.stop.wait(self._stop_s())
            part.signal(signal.SIGCONT)
            return
        with part.lock:
            part.end(signal.SIGKILL if action == "kill" else signal.SIGTERM)
            time.sleep(self._random.uniform(0.1, 1.0))
            part.start()

    def _redis(self, action: str) -> None:
        server = self._stack.server
        if action == "stop":
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            self.stop.wait(min(self._stop_s(), 4.0))
            os.kill(pid, signal.SIGCONT)
            return
        (server.kill if action == "kill" else server.stop)()
        time.sleep(self._random.uniform(0.0, 2.0))
        server.start()

    def _stop_s(self) -> float:
        return self._random.uniform(0.5, self._intensity.longest_stop_s)

"""Faults by script: which call fails next, and how.

Owns the list of rules and their order. Does not know HTTP: ``api.py`` and ``caller.py`` act on
the fault they are given.

::

    kind         what the caller of the API sees                          carried out?
    errcode      an answer with ``value`` as errcode                      no
    http         HTTP status ``value`` with an HTML page                  no
    reset        connection reset, no answer                              no
    slow         the call waits ``value`` seconds, then goes its way      yes, late
    late         carried out at once, answered ``value`` seconds later    yes
    reset_after  carried out, then the connection is reset                yes
    lost         (callbacks only) the app's 200 is lost; sent again       -
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, replace
from typing import Literal, get_args

FaultKind = Literal["errcode", "http", "reset", "slow", "late", "reset_after", "lost"]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
CALLBACK = "callback"
"""Name of the service's own calls to the app, beside the names of the APIs."""
MAX_RULES = 100


class FaultError(Exception):
    """A rule that cannot be; the text says why, for the person who wrote it."""


@dataclass(frozen=True)
class Fault:
    """One rule. ``api`` is a path such as ``message/send``, ``callback``, or ``*`` for any API.

    ``value`` is an errcode, an HTTP status or seconds. ``times`` is how many calls it still hits,
    0 for without end; ``probability`` is the chance of each call to be hit.
    """

    api: str
    kind: FaultKind
    value: float = 0.0
    times: int = 1
    probability: float = 1.0

    def checked(self) -> Fault:
        """Itself. Raises ``FaultError`` for values that mean nothing."""
        if self.kind not in KINDS:
            raise FaultError(f"没有这种故障：{self.kind}，可用：{'、'.join(KINDS)}")
        if self.kind == "lost" and self.api != CALLBACK:
            raise FaultError("lost 只用于 callback")
        if self.api == CALLBACK and self.kind != "lost":
            raise FaultError("callback 只能用 lost")
        if self.kind == "http" and not 300 <= self.value < 600:
            raise FaultError("http 的 value 是 300-599 的状态码")
        if self.kind in ("slow", "late") and not 0 < self.value <= 60:
            raise FaultError("slow、late 的 value 是秒，不超过 60")
        if self.kind == "errcode" and (not self.value or self.value != int(self.value)):
            raise FaultError("errcode 的 value 是非零整数")
        if self.times < 0 or not 0 < self.probability <= 1:
            raise FaultError("times 不小于 0，probability 在 0 和 1 之间")
        return self


class FaultScript:
    """The rules in force; the oldest that fits and whose coin falls right hits a call."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._rules: list[Fault] = []
        self.hits = 0

    def add(self, fault: Fault) -> None:
        """Append a rule. Raises ``FaultError``."""
        fault.checked()
        with self._lock:
            if len(self._rules) >= MAX_RULES:
                raise FaultError(f"已有 {MAX_RULES} 条故障，请先清空")
            self._rules.append(fault)

    def clear(self) -> None:
        """Drop every rule."""
        with self._lock:
            self._rules.clear()

    @property
    def rules(self) -> tuple[Fault, ...]:
        """What is in force now, oldest first."""
        with self._lock:
            return tuple(self._rules)

    def take(self, api: str) -> Fault | None:
        """The fault of this call, if any; counts it."""
        with self._lock:
            for index, rule in enumerate(self._rules):
                fits = rule.api == api or (rule.api == "*" and api != CALLBACK)
                if not fits or self._random.random() >= rule.probability:
                    continue
                self.hits += 1
                if rule.times == 1:
                    del self._rules[index]
                elif rule.times:
                    self._rules[index] = replace(rule, times=rule.times - 1)
                return rule
        return None

"""Frequency limits: what is refused with 45009 or 45033, and what is dropped without a word.

Owns counters and block times. Knows no HTTP and no messages. Sources: documents 90454 and 90236;
where they give no number (concurrency, gettoken) the default is a guess, named in the README.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0
SEND_APIS = frozenset({"message/send"})
"""Not counted in the base quota."""


@dataclass(frozen=True)
class Limits:
    """How often is too often. ``concurrency`` is calls at the same time, 0 for no limit."""

    member_per_minute: int = 30
    member_per_hour: int = 1000
    app_per_day_and_account: int = 200
    api_per_minute: int = 10_000
    api_per_hour: int = 150_000
    gettoken_per_minute: int = 2_000
    concurrency: int = 0


class _Window:
    """Times of the last calls within a span; one that is full blocks for the block time."""

    def __init__(self, limit: int, span_s: float, block_s: float) -> None:
        self._limit = limit
        self._span_s = span_s
        self._block_s = block_s
        self._times: deque[float] = deque()
        self._blocked_until_s = 0.0

    def allows(self, now_s: float, weight: int = 1) -> bool:
        """Count ``weight`` calls at ``now_s``, or refuse them."""
        if now_s < self._blocked_until_s:
            return False
        while self._times and now_s - self._times[0] >= self._span_s:
            self._times.popleft()
        if len(self._times) + weight > self._limit:
            self._blocked_until_s = now_s + self._block_s
            return False
        self._times.extend([now_s] * weight)
        return True


class Throttle:
    """The counters of one app."""

    def __init__(self, limits: Limits, accounts: int, clock: Callable[[], float]) -> None:
        """``accounts`` is the number of members; it sets the app's messages a day."""
        self.limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._day = -1
        self._sent_today = 0
        self._per_day = limits.app_per_day_and_account * accounts
        self._apis: dict[str, tuple[_Window, ...]] = {}
        self._members: dict[str, tuple[_Window, ...]] = defaultdict(self._member_windows)

    def refuses_call(self, api: str) -> bool:
        """Whether this call is one too many (45009); counts it otherwise."""
        if api in SEND_APIS:
            return False
        with self._lock:
            windows = self._apis.setdefault(api, self._api_windows(api))
            now_s = self._clock()
            return not all(window.allows(now_s) for window in windows)

    def refuses_messages(self, count: int) -> bool:
        """Whether the app's messages of the day are used up (45009 until the day ends)."""
        with self._lock:
            day = int(self._clock() // DAY_S)
            if day != self._day:
                self._day, self._sent_today = day, 0
            if self._sent_today + count > self._per_day:
                return True
            self._sent_today += count
            return False

    def reaches_member(self, user_id: str) -> bool:
        """Whether one more message reaches this member; the service tells nobody if not."""
        with self._lock:
            now_s = self._clock()
            return all(window.allows(now_s) for window in self._members[user_id])

    @contextmanager
    def running(self) -> Iterator[bool]:
        """Around a call; yields False when too many run already (45033)."""
        with self._lock:
            self._running += 1
            within = not self.limits.concurrency or self._running <= self.limits.concurrency
        try:
            yield within
        finally:
            with self._lock:
                self._running -= 1

    def _api_windows(self, api: str) -> tuple[_Window, ...]:
        if api == "gettoken":
            return (_Window(self.limits.gettoken_per_minute, MINUTE_S, MINUTE_S),)
        return (
            _Window(self.limits.api_per_minute, MINUTE_S, MINUTE_S),
            _Window(self.limits.api_per_hour, HOUR_S, HOUR_S),
        )

    def _member_windows(self) -> tuple[_Window, ...]:
        # What is dropped is not counted and blocks nobody: the next minute starts anew.
        return (
            _Window(self.limits.member_per_minute, MINUTE_S, 0.0),
            _Window(self.limits.member_per_hour, HOUR_S, 0.0),
        )

"""``python -m app top``: what happens now, in a terminal.

Owns the loop and its end. Redis may come and go meanwhile; the view says so and goes on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

import redis
from rich.console import Console
from rich.live import Live

from app.settings import Settings
from app.store.server import RedisServer, connect
from app.top.snapshot import Reading, Snapshot, compare, read
from app.top.view import render

WINDOW_S = 60.0
"""Rates and durations are those of about the last minute."""
_PLAIN_WIDTH = 100
_SLICE_S = 0.1


def main(settings: Settings, *, once: bool, interval_s: float) -> int:
    """Show it until Ctrl-C, or ``once``; 1 when Redis did not answer that one time.

    Where the output is no terminal, frames of plain text follow each other.
    """
    url = RedisServer(settings.data_dir, settings.redis_url).url
    with connect(url, timeout_s=2.0) as client:
        watch = Watch(client)
        if once:
            snapshot = watch.look()
            _plain_console().print(render(snapshot))
            return 0 if snapshot.up else 1
        with _asked_to_end() as ended:
            _show(watch, interval_s, ended)
    return 0


class Watch:
    """Remembers the readings of a window to compare the newest with."""

    def __init__(
        self,
        client: redis.Redis,
        clock: Callable[[], float] = time.time,
        window_s: float = WINDOW_S,
    ) -> None:
        self._redis = client
        self._clock = clock
        self._window_s = window_s
        self._readings: deque[Reading] = deque()

    def look(self) -> Snapshot:
        """What is true now and what happened within the window. Never raises for Redis."""
        now_s = self._clock()
        try:
            reading = read(self._redis, now_s)
        except redis.RedisError as error:
            return Snapshot(now_s, problem=type(error).__name__)
        while len(self._readings) > 1 and now_s - self._readings[1].taken_s >= self._window_s:
            self._readings.popleft()
        before = self._readings[0] if self._readings else None
        self._readings.append(reading)
        return compare(before, reading)


def _show(watch: Watch, interval_s: float, ended: Callable[[], bool]) -> None:
    if not sys.stdout.isatty():
        console = _plain_console()
        while not ended():
            console.print(render(watch.look()))
            console.file.flush()
            _sleep(interval_s, ended)
        return
    with Live(screen=True, auto_refresh=False) as live:
        while not ended():
            live.update(render(watch.look()), refresh=True)
            _sleep(interval_s, ended)


def _sleep(seconds: float, ended: Callable[[], bool]) -> None:
    until_s = time.monotonic() + seconds
    while not ended() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _SLICE_S))


def _plain_console() -> Console:
    return Console(
        file=sys.stdout,
        width=_PLAIN_WIDTH,
        color_system=None,
        force_terminal=False,
        highlight=False,
    )


@contextlib.contextmanager
def _asked_to_end() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came. An exception in their place is lost when it comes while a
    library collects its garbage."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

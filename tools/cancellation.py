"""Ends what a tool waits for when the user stops the turn.

Owns how often that is asked. Knows no tool: what to end is passed in.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from tools.base import Cancelled, ToolCancelledError, never

POLL_S = 0.2


def refuse_cancelled(cancelled: Cancelled) -> None:
    """Raises ``ToolCancelledError`` once the turn was stopped."""
    if cancelled():
        raise ToolCancelledError("提问已被停止")


def acquire(place: threading.Semaphore, timeout_s: float, cancelled: Cancelled) -> bool:
    """Take a place; False when none is free in time. Raises ``ToolCancelledError``."""
    deadline_s = time.monotonic() + timeout_s
    while not place.acquire(timeout=max(0.0, min(POLL_S, deadline_s - time.monotonic()))):
        refuse_cancelled(cancelled)
        if time.monotonic() >= deadline_s:
            return False
    return True


@contextlib.contextmanager
def ended_when(cancelled: Cancelled, end: Callable[[], None]) -> Iterator[None]:
    """Call ``end`` from another thread when the turn is stopped inside the block.

    ``end`` runs at most once and never after the block.
    """
    if cancelled is never:
        yield
        return
    left = threading.Event()

    def watch() -> None:
        while not left.wait(POLL_S):
            if cancelled():
                end()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        watcher.join()

"""``python -m tests.soak``: 10,000 different users, a message each; do the processes grow?

Everything is real but WeCom and the model. Resident memory (MB, a process and its children) is
read while it runs. Last line: JSON {users, answered, growth_mb, flat}; growth is the most that any
process gained from 30 % of the users to the end, flat means less than 10 MB. Status 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from app.simulator.conversations import ChatMessage
from tests.chaos.driver import Driver
from tests.chaos.stack import Stack, wait_for

FLAT_MB = 10.0
FROM_SHARE = 0.3
MARKS = 10


class Memory:
    """Resident memory by process over time."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.rows: list[tuple[float, dict[str, float]]] = []

    def read(self, share: float) -> None:
        """Add a row for ``share`` of the users done, and print it."""
        row = {}
        for part in self._stack.parts:
            if part.process is not None:
                row[part.log.stem] = round(_rss_mb(part.process.pid), 1)
        row["redis"] = round(_rss_mb(self._stack.server.pid or 0), 1)
        self.rows.append((share, row))
        shown = "  ".join(f"{name} {value:6.1f}" for name, value in row.items())
        print(f"{share:5.0%}  {shown}", flush=True)

    def growth_mb(self) -> dict[str, float]:
        """By process, gained since ``FROM_SHARE``. Redis keeps answers for a week: left out."""
        first = next(row for share, row in self.rows if share >= FROM_SHARE)
        last = self.rows[-1][1]
        return {name: round(last[name] - first[name], 1) for name in first if name != "redis"}


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--users", type=int, default=10_000)
    options = parser.parse_args(argv)
    # So that what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="hutong-soak-") as temporary:
        # An acknowledgement for everybody would only make it longer.
        variables = {"HUTONG_ACK_AFTER_S": "3600", "HUTONG_LOG_LEVEL": "WARNING"}
        stack = Stack(
            Path(temporary),
            options.users,
            ("-m", "tests.soak.echo_model"),
            workers=1,
            variables=variables,
        )
        with stack.running():
            return _soak(stack, options.users)


def _soak(stack: Stack, users: int) -> int:
    counted = _Counter(stack)
    texts = [[f"第 {number} 位的问题"] for number in range(users)]
    driver = Driver(stack.simulator, texts, 1, counted.count, 500, lambda _: False, most_copies=1)
    memory = Memory(stack)
    saying = threading.Thread(target=driver.run, daemon=True)
    started_s = time.monotonic()
    saying.start()
    for mark in range(1, MARKS + 1):
        share = mark / MARKS
        moving = wait_for(lambda share=share: counted.count() >= share * users, 600)  # type: ignore[misc]
        if not moving:
            driver.stop.set()
            break
        memory.read(share)
    saying.join(60)
    took_s = time.monotonic() - started_s
    growth = memory.growth_mb()
    print(f"{counted.count()} answers in {took_s:.0f} s; gained since 30 %: {growth}")
    answered, most = counted.count(), max(growth.values())
    flat = most < FLAT_MB
    print(json.dumps({"users": users, "answered": answered, "growth_mb": most, "flat": flat}))
    return 0 if flat and answered >= users else 1


class _Counter:
    """How many answers the chats hold."""

    def __init__(self, stack: Stack) -> None:
        self._conversations = stack.simulator.conversations
        self._lock = threading.Lock()
        self._after = 0
        self._found = 0

    def count(self) -> int:
        with self._lock:
            for event in self._conversations.since(self._after):
                self._after = event.seq
                self._found += isinstance(event, ChatMessage) and event.sender == "app"
            return self._found


def _rss_mb(pid: int) -> float:
    """Of a process and its children; 0 when it is gone."""
    total = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        total = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        total += sum(_rss_mb(int(child)) for child in children)
    return total


if __name__ == "__main__":
    sys.exit(main())

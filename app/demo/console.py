"""Lines on the terminal for people who wait: what is done, and for how long already."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_QUIET_S = 2.0
_REPEAT_S = 5.0


class Console:
    """Writes steps and their progress to ``stream`` (stderr by default)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._title = ""
        self._started_s = 0.0
        self._shown_s = 0.0

    def say(self, text: str) -> None:
        """A whole line."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def begin(self, title: str) -> None:
        """A step begins."""
        self._title = title
        self._started_s = self._shown_s = time.monotonic()
        if self._live:
            print(f"  · {title} …", end="", file=self._stream, flush=True)

    def tick(self, detail: str = "") -> None:
        """The step goes on: shown after two seconds, then again and again."""
        now_s = time.monotonic()
        waited_s = now_s - self._started_s
        if waited_s < _QUIET_S:
            return
        note = f"（{detail}，" if detail else "（"
        text = f"  · {self._title} … {note}已 {waited_s:.0f} 秒）"
        if self._live:
            print(f"\r\033[K{text}", end="", file=self._stream, flush=True)
        elif now_s - self._shown_s >= _REPEAT_S or self._shown_s == self._started_s:
            self._shown_s = now_s
            print(text, file=self._stream, flush=True)

    def done(self, result: str = "好") -> None:
        """The step has ended."""
        waited_s = time.monotonic() - self._started_s
        took = f"（{waited_s:.1f} 秒）" if waited_s >= 0.1 else ""
        self._clear()
        print(f"  ✓ {self._title}：{result}{took}", file=self._stream, flush=True)
        self._title = ""

    def _clear(self) -> None:
        if self._live and self._title:
            print("\r\033[K", end="", file=self._stream, flush=True)

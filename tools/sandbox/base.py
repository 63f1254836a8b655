"""The interface of a sandbox back end: one job in, its output and last value back as text.

Owns the types and the limits both back ends keep. Knows nothing of how they keep them.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tools.base import Cancelled, Table, ToolError, ToolTimeoutError, never

TIME_LIMIT_S = 3.0
OUTPUT_LIMIT_BYTES = 100_000
NO_SUCH_MODULE = "只有math、datetime、json、re等计算用的模块可用"


class SandboxGapError(ToolError):
    """The back end lacks what the code uses; another back end may run the same code."""

    code = "sandbox_gap"


class SandboxMemoryError(ToolError):
    """The code needed more memory than it may have."""

    code = "memory"


class SandboxOutputError(ToolError):
    """The code printed more than ``OUTPUT_LIMIT_BYTES``."""

    code = "output"


@dataclass(frozen=True)
class Job:
    """One run. ``inputs``: name -> tables, bound as lists of dicts, column to value."""

    code: str
    inputs: Mapping[str, tuple[Table, ...]]
    today: datetime.date
    time_s: float
    cancelled: Cancelled = never


@dataclass(frozen=True)
class Outcome:
    """What was printed, and the last expression's value as text (None when there is none)."""

    printed: str
    value: str | None


@dataclass(frozen=True)
class Status:
    """Whether a back end protects on this machine, and in words why (not)."""

    name: str
    active: bool
    reason: str


class Backend(Protocol):
    """A way to run code. Safe to call from many threads.

    ``run`` raises ``SandboxGapError`` and ``SandboxMemoryError`` (another back end may do it),
    ``ToolTimeoutError``, ``ToolCancelledError``, ``SandboxOutputError``, ``ToolUnavailableError``
    when no worker starts, else ``ToolError`` with the code's own error as one line.
    """

    @property
    def name(self) -> str: ...

    def status(self) -> Status: ...

    def run(self, job: Job) -> Outcome: ...

    def close(self) -> None: ...


def too_slow(time_s: float) -> ToolTimeoutError:
    """The error of a run past its time."""
    return ToolTimeoutError(f"代码超过了{time_s:g}秒，已停止；请减少计算量，或先用SQL汇总")


def too_big(limit_bytes: int) -> SandboxMemoryError:
    """The error of a run past its memory."""
    size = limit_bytes >> 20
    return SandboxMemoryError(f"代码超过了{size} MB内存上限，已停止；请分批处理，或先用SQL汇总")


def too_loud() -> SandboxOutputError:
    """The error of a run past its output."""
    return SandboxOutputError(f"输出超过{OUTPUT_LIMIT_BYTES // 1000}kB，已停止；请少打印一些")


def one_line(text: str) -> str:
    """An error's text as one line of at most 300 characters."""
    return " ".join(text.split())[:300]

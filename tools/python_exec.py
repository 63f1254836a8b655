"""Runs the model's Python in a sandbox: monty first, real CPython where monty has a gap.

Owns the order of the back ends and the wording of results. Knows nothing of how a back end
protects (``tools.sandbox``). Where no back end protects the tool is off: never ``exec`` here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tools import schemas
from tools.base import (
    ToolContext,
    ToolError,
    ToolResult,
    ToolTimeoutError,
    ToolUnavailableError,
)
from tools.sandbox.base import (
    TIME_LIMIT_S,
    Backend,
    Job,
    Outcome,
    SandboxGapError,
    SandboxMemoryError,
    Status,
)
from tools.sandbox.monty import MontyBackend
from tools.sandbox.native import NativeBackend
from tools.sandbox.text import shortened, value_text

__all__ = ["CODE_LIMIT_CHARS", "SHOWN_CHARS", "PythonTool", "describe", "value_text"]

SHOWN_CHARS = 2000
"""Characters of output the model reads; the head and the tail are kept."""
CODE_LIMIT_CHARS = 20_000


class PythonTool:
    """``python_exec``. Safe to call from many threads; ``close`` ends the workers."""

    name = schemas.PYTHON_EXEC.name
    description = schemas.PYTHON_EXEC.description
    parameters: Mapping[str, Any] = schemas.PYTHON_EXEC.parameters

    def __init__(
        self,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        max_workers: int = 2,
        backends: Sequence[Backend] | None = None,
    ) -> None:
        """``backends``: in the order they are tried; None means monty, then native."""
        self._time_limit_s = time_limit_s
        self._backends: tuple[Backend, ...] = (
            (MontyBackend(max_workers=max_workers), NativeBackend(max_workers=max_workers))
            if backends is None
            else tuple(backends)
        )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run ``arguments["code"]`` with ``tables`` bound to the tables of this turn.

        ``tables[i]`` is a list of dicts, column to value. ``content`` is what was printed, then
        the value of the last expression. Raises ``ToolTimeoutError`` past the time limit,
        ``ToolCancelledError`` within a second after the turn was stopped,
        ``ToolUnavailableError`` when no back end protects, else ``ToolError`` with the error's
        line.
        """
        code = _unfenced(str(arguments["code"]))
        if not code.strip():
            raise ToolError("代码是空的")
        if len(code) > CODE_LIMIT_CHARS:
            raise ToolError(f"代码太长，最多{CODE_LIMIT_CHARS}个字符")
        job = Job(
            code,
            {"tables": context.tables},
            context.today,
            self._time_limit_s,
            context.cancelled,
        )
        outcome = self._run(job, context)
        return ToolResult(content_of(outcome.printed, outcome.value))

    def describe(self) -> tuple[Status, ...]:
        """Which back ends are active, in the order they are tried, and why (not)."""
        return tuple(backend.status() for backend in self._backends)

    def close(self) -> None:
        """End the worker processes; the tool starts new ones when it is used again."""
        for backend in self._backends:
            backend.close()

    def _run(self, job: Job, context: ToolContext) -> Outcome:
        """The first back end's outcome; the next one's where it has a gap, no room or is off."""
        gap: ToolError | None = None
        off: list[str] = []
        for backend in self._backends:
            status = backend.status()
            if not status.active:
                off.append(f"{status.name}：{status.reason}")
                continue
            time_s = min(job.time_s, context.remaining_s())
            if time_s <= 0:
                raise ToolTimeoutError("已到时限，没有运行")
            try:
                return backend.run(dataclasses.replace(job, time_s=time_s))
            except (SandboxGapError, SandboxMemoryError) as error:
                gap = error
            except ToolUnavailableError as error:
                if backend.status().active:
                    raise
                off.append(str(error))
        if gap is not None:
            raise gap
        raise ToolUnavailableError(f"Python沙箱在这台机器上不能保护，已停用（{'；'.join(off)}）")


def describe() -> tuple[Status, ...]:
    """The back ends of this machine, for health checks; starts no process."""
    return MontyBackend().status(), NativeBackend().status()


def content_of(printed: str, value: str | None) -> str:
    """What the model reads: printed text, then the last value unless it is None."""
    parts = [printed.rstrip("\n")] if printed.strip() else []
    if value is not None:
        parts.append(value)
    if not parts:
        return "运行完毕，没有输出；请print结果，或把它写成最后一行表达式"
    return shortened("\n".join(parts), SHOWN_CHARS)


def _unfenced(code: str) -> str:
    """The code inside a Markdown fence, or the text itself."""
    text = code.strip("\n")
    lines = text.strip().split("\n")
    if len(lines) >= 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text

"""Runs the model's Python in pydantic-monty, an interpreter in a worker process of its own.

Owns limits, inputs and the wording of results and errors. Covered: no files, sockets, processes,
environment or host objects; time, memory and output are capped; a worker that overruns is killed
and replaced. NOT covered: numpy, pandas, generators and most of the standard library, which monty
lacks; the error says so and the model rewrites. Never falls back to ``exec``.
"""

from __future__ import annotations

import datetime
import decimal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic_monty

from tools import schemas
from tools.base import (
    Table,
    ToolContext,
    ToolError,
    ToolResult,
    ToolTimeoutError,
    ToolUnavailableError,
    Value,
)

TIME_LIMIT_S = 3.0
MEMORY_LIMIT_BYTES = 256 * 1024 * 1024
OUTPUT_LIMIT_BYTES = 100_000
SHOWN_CHARS = 2000
"""Characters of output the model reads; the head and the tail are kept."""
CODE_LIMIT_CHARS = 20_000
_TIME_ZONE = datetime.timezone(datetime.timedelta(hours=8), "CST")


class PythonTool:
    """``python_exec``. Safe to call from many threads; ``close`` ends the workers."""

    name = schemas.PYTHON_EXEC.name
    description = schemas.PYTHON_EXEC.description
    parameters: Mapping[str, Any] = schemas.PYTHON_EXEC.parameters

    def __init__(self, *, time_limit_s: float = TIME_LIMIT_S, max_workers: int = 2) -> None:
        self._time_limit_s = time_limit_s
        self._max_workers = max_workers
        self._pool: pydantic_monty.Monty | None = None
        self._lock = threading.Lock()

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run ``arguments["code"]`` with ``tables`` bound to the tables of this turn.

        ``tables[i]`` is a list of dicts, column to value. ``content`` is what was printed, then
        the value of the last expression. Raises ``ToolTimeoutError`` past the time limit,
        ``ToolUnavailableError`` when no worker starts, else ``ToolError`` with the error's line.
        """
        code = _unfenced(str(arguments["code"]))
        if not code.strip():
            raise ToolError("代码是空的")
        if len(code) > CODE_LIMIT_CHARS:
            raise ToolError(f"代码太长，最多{CODE_LIMIT_CHARS}个字符")
        time_s = min(self._time_limit_s, context.remaining_s())
        if time_s <= 0:
            raise ToolTimeoutError("已到时限，没有运行")
        printed = pydantic_monty.CollectString(max_bytes=OUTPUT_LIMIT_BYTES)
        value = self._run(code, inputs_of(context), printed, time_s, context.today)
        return ToolResult(content_of(printed.output, value))

    def close(self) -> None:
        """End the worker processes; the tool starts new ones when it is used again."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None, None, None)

    def _started(self) -> pydantic_monty.Monty:
        with self._lock:
            if self._pool is None:
                pool = pydantic_monty.Monty(
                    min_processes=1,
                    max_processes=self._max_workers,
                    checkout_timeout=10.0,
                    max_checkouts_per_worker=200,
                )
                try:
                    pool.__enter__()
                except (OSError, RuntimeError, pydantic_monty.MontyError) as error:
                    raise ToolUnavailableError(f"Python沙箱没能启动：{error}") from error
                self._pool = pool
            return self._pool

    def _run(
        self,
        code: str,
        inputs: dict[str, Any],
        printed: pydantic_monty.CollectString,
        time_s: float,
        today: datetime.date,
    ) -> Any:
        limits = pydantic_monty.ResourceLimits(
            max_feed_duration_secs=time_s,
            max_memory=MEMORY_LIMIT_BYTES,
            max_recursion_depth=500,
            max_suspensions=50_000,
        )
        noon = datetime.datetime.combine(today, datetime.time(12), _TIME_ZONE)
        policy = pydantic_monty.OSPolicy(datetime=noon, sleep="zero")
        try:
            with self._started().checkout(limits=limits, os_policy=policy) as session:
                return session.feed_run(code, inputs=inputs, print_callback=printed)
        except pydantic_monty.MontySyntaxError as error:
            raise ToolError(f"语法错误：{_line(error)}") from error
        except pydantic_monty.MontyRuntimeError as error:
            raise self._typed(error, printed.output) from error
        except pydantic_monty.MontyCrashedError as error:
            raise ToolTimeoutError(
                f"代码超过了{time_s:g}秒或内存上限，进程已被终止；请减少计算量"
            ) from error
        except TimeoutError as error:
            raise ToolUnavailableError("Python沙箱正忙，请稍后再试") from error
        except pydantic_monty.MontyError as error:
            raise ToolError(_line(error)) from error

    def _typed(self, error: pydantic_monty.MontyRuntimeError, printed: str) -> ToolError:
        inner = error.exception()
        line = _line(error)
        if isinstance(inner, TimeoutError):
            return ToolTimeoutError(f"代码超过了{self._time_limit_s:g}秒，已停止；请减少计算量")
        if isinstance(inner, MemoryError):
            if len(printed.encode()) > OUTPUT_LIMIT_BYTES // 2:
                return ToolError(f"输出超过{OUTPUT_LIMIT_BYTES // 1000}kB，已停止；请少打印一些")
            return ToolError("代码超过了256 MB内存上限，已停止")
        if isinstance(inner, ModuleNotFoundError):
            return ToolError(f"{line}；只有math、datetime、json、re等少数模块可用")
        if isinstance(inner, NotImplementedError):
            return ToolError(f"{line}；请换一种写法")
        return ToolError(line)


def inputs_of(context: ToolContext) -> dict[str, Any]:
    """``{"tables": [[{column: value, ...}, ...], ...]}``, oldest table first."""
    return {"tables": [_records(table) for table in context.tables]}


def _records(table: Table) -> list[dict[str, Any]]:
    return [
        dict(zip(table.columns, (_plain(value) for value in row), strict=True))
        for row in table.rows
    ]


def _plain(value: Value) -> Any:
    # monty has no Decimal; a float keeps 15 digits, the exact value stays in the table.
    return float(value) if isinstance(value, decimal.Decimal) else value


def content_of(printed: str, value: Any) -> str:
    """What the model reads: printed text, then the last value unless it is None."""
    parts = [printed.rstrip("\n")] if printed.strip() else []
    if value is not None:
        parts.append(value_text(value))
    if not parts:
        return "运行完毕，没有输出；请print结果，或把它写成最后一行表达式"
    return _shortened("\n".join(parts))


def value_text(value: Any) -> str:
    """A value as Python would show it, floats without binary noise (0.1 + 0.2 is 0.3)."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inner(k)}: {_inner(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_inner(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return "[" + ", ".join(_inner(v) for v in value) + "]"
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return str(value)


def _inner(value: Any) -> str:
    return repr(value) if isinstance(value, str) else value_text(value)


def _float_text(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    rounded = float(f"{value:.12g}")
    if rounded.is_integer() and abs(rounded) < 1e15:
        return str(int(rounded))
    if 1e-6 <= abs(rounded) < 1e15:
        return f"{rounded:.12f}".rstrip("0").rstrip(".")
    return repr(rounded)


def _shortened(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    return f"{text[:half]}\n…（略去{len(text) - 2 * half}个字符）…\n{text[-half:]}"


def _line(error: pydantic_monty.MontyError) -> str:
    """The error as one line, without the trace: ``ZeroDivisionError: division by zero``."""
    return " ".join(str(error).split())[:300]


def _unfenced(code: str) -> str:
    """The code inside a Markdown fence, or the text itself."""
    text = code.strip("\n")
    lines = text.strip().split("\n")
    if len(lines) >= 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text

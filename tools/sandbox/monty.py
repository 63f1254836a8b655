"""The monty back end: pydantic-monty, an interpreter in Rust in a worker process of its own.

Owns the pool, its limits and the meaning of its errors. Covered: no files, sockets, processes,
environment or host objects; a worker that overruns is killed and replaced. On Linux a worker also
starts through a script that bounds its address space and empties its environment, in case a
release forgets ``max_memory``. NOT covered: what monty lacks; that raises ``SandboxGapError``.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tools.base import Table, ToolError, ToolTimeoutError, ToolUnavailableError, Value
from tools.cancellation import acquire, ended_when, refuse_cancelled
from tools.sandbox.base import (
    NO_SUCH_MODULE,
    OUTPUT_LIMIT_BYTES,
    Job,
    Outcome,
    SandboxGapError,
    Status,
    one_line,
    too_big,
    too_loud,
    too_slow,
)
from tools.sandbox.gaps import is_gap
from tools.sandbox.text import value_text

try:
    import pydantic_monty
except ImportError:  # no wheel for this machine: the back end says it is off
    pydantic_monty = None  # type: ignore[assignment]

MEMORY_LIMIT_BYTES = 64 << 20
"""Small: the last value and an error's text come whole into this process. More is native's."""
ADDRESS_SPACE_BYTES = 1 << 30
"""The kernel's bound on a worker, above monty's own limit and what its binary maps."""
_KILL_GRACE_S = 0.3
_MAX_CHECKOUTS = 200
_CHECKOUT_TIMEOUT_S = 10.0
_TIME_ZONE = datetime.timezone(datetime.timedelta(hours=8), "CST")


class MontyBackend:
    """``monty``. Safe to call from many threads; workers start with the first run."""

    name = "monty"

    def __init__(self, *, max_workers: int = 2) -> None:
        self._max_workers = max_workers
        self._places = threading.Semaphore(max_workers)
        self._pool: Any = None
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._reason = "" if pydantic_monty else "没有安装pydantic-monty"

    def status(self) -> Status:
        """Active or not, and why."""
        if self._reason:
            return Status(self.name, False, self._reason)
        bound = "，地址空间由内核限制" if sys.platform == "linux" else ""
        return Status(self.name, True, f"pydantic-monty {pydantic_monty.__version__}{bound}")

    def run(self, job: Job) -> Outcome:
        """See ``Backend.run``."""
        pool = self._started()
        if not acquire(self._places, _CHECKOUT_TIMEOUT_S, job.cancelled):
            raise ToolUnavailableError("Python沙箱正忙，请稍后再试")
        try:
            return self._run(pool, job)
        finally:
            self._places.release()

    def _run(self, pool: Any, job: Job) -> Outcome:
        printed = pydantic_monty.CollectString(max_bytes=OUTPUT_LIMIT_BYTES)
        limits = pydantic_monty.ResourceLimits(
            max_feed_duration_secs=job.time_s,
            max_memory=MEMORY_LIMIT_BYTES,
            max_recursion_depth=500,
            max_suspensions=50_000,
        )
        noon = datetime.datetime.combine(job.today, datetime.time(12), _TIME_ZONE)
        policy = pydantic_monty.OSPolicy(datetime=noon, sleep="zero")
        try:
            with pool.checkout(limits=limits, os_policy=policy) as session:
                worker = session.worker_pid
                with ended_when(job.cancelled, lambda: _end(worker)):
                    value = session.feed_run(job.code, inputs=_inputs(job), print_callback=printed)
        except pydantic_monty.MontySyntaxError as error:
            raise ToolError(f"语法错误：{one_line(str(error))}") from error
        except pydantic_monty.MontyRuntimeError as error:
            raise _typed(error, printed.output, job.time_s) from error
        except pydantic_monty.MontyCrashedError as error:
            refuse_cancelled(job.cancelled)
            raise ToolTimeoutError(
                f"代码超过了{job.time_s:g}秒或内存上限，进程已被终止；请减少计算量"
            ) from error
        except TimeoutError as error:
            raise ToolUnavailableError("Python沙箱正忙，请稍后再试") from error
        except pydantic_monty.MontyError as error:
            raise ToolError(one_line(str(error))) from error
        return Outcome(printed.output, None if value is None else value_text(value))

    def close(self) -> None:
        """End the worker processes; the next run starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
            folder, self._folder = self._folder, None
        if pool is not None:
            pool.__exit__(None, None, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _started(self) -> Any:
        with self._lock:
            if self._reason:
                raise ToolUnavailableError(f"Python沙箱不可用：{self._reason}")
            if self._pool is None:
                try:
                    self._pool = self._entered()
                except (OSError, RuntimeError, pydantic_monty.MontyError) as error:
                    self._reason = one_line(f"没能启动：{error}")
                    raise ToolUnavailableError(f"Python沙箱{self._reason}") from error
            return self._pool

    def _entered(self) -> Any:
        binary = None
        if sys.platform == "linux":
            self._folder = Path(tempfile.mkdtemp(prefix="hutong-monty-"))
            binary = bounded_binary(self._folder)
        pool = pydantic_monty.Monty(
            binary_path=binary,
            min_processes=1,
            max_processes=self._max_workers,
            checkout_timeout=_CHECKOUT_TIMEOUT_S,
            max_checkouts_per_worker=_MAX_CHECKOUTS,
            feed_duration_limit_grace=_KILL_GRACE_S,
        )
        pool.__enter__()
        return pool


def bounded_binary(folder: Path) -> Path:
    """A script in ``folder`` that starts monty with bounded memory and no environment."""
    from pydantic_monty._binary import find_monty_binary

    script = folder / "monty"
    script.write_text(
        "#!/bin/sh\n"
        f"ulimit -v {ADDRESS_SPACE_BYTES // 1024} && ulimit -c 0 || exit 1\n"
        f'exec env -i {shlex.quote(find_monty_binary())} "$@" 2>/dev/null\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    return script


def _end(worker: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGTERM)  # ends a process on every system


def _typed(error: Any, printed: str, time_s: float) -> ToolError:
    inner = error.exception()
    line = one_line(str(error))
    if isinstance(inner, TimeoutError):
        return too_slow(time_s)
    if isinstance(inner, MemoryError):
        loud = len(printed.encode()) > OUTPUT_LIMIT_BYTES // 2
        return too_loud() if loud else too_big(MEMORY_LIMIT_BYTES)
    if is_gap(inner):
        return SandboxGapError(f"{line}；请换一种写法")
    if isinstance(inner, ModuleNotFoundError):
        return ToolError(f"{line}；{NO_SUCH_MODULE}")
    return ToolError(line)


def _inputs(job: Job) -> dict[str, Any]:
    return {name: [_records(table) for table in tables] for name, tables in job.inputs.items()}


def _records(table: Table) -> list[dict[str, Any]]:
    return [
        dict(zip(table.columns, (_plain(value) for value in row), strict=True))
        for row in table.rows
    ]


def _plain(value: Value) -> Any:
    # A float keeps 15 digits; code that mixes Decimal and float would fail.
    return float(value) if isinstance(value, decimal.Decimal) else value

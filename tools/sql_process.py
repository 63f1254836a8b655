"""Keeps warm ``sql_worker`` processes and ends those that overrun.

Owns starting, time limits and killing. Knows nothing of SQL: it sends a request and returns the
answer. A progress handler cannot stop one long opcode, so the wall clock here is the last word.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import sql_worker
from tools.base import Cancelled, ToolTimeoutError, ToolUnavailableError, never
from tools.cancellation import POLL_S, acquire, refuse_cancelled

KILL_GRACE_S = 0.5
"""How long past its time limit a worker may answer before it is killed."""
MEMORY_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class WorkerRequest:
    """One checked statement. ``names``: what WITH clauses define.

    ``readable``: table to columns, what this statement may read; None for all that is listed. A
    server goes by the rights of its account.
    """

    sql: str
    names: tuple[str, ...]
    timeout_s: float
    max_rows: int
    max_bytes: int
    readable: Mapping[str, tuple[str, ...]] | None = None

    def line(self) -> bytes:
        """The request as one JSON line."""
        return (json.dumps(vars(self), ensure_ascii=False) + "\n").encode()


class _Worker:
    """One child process. Not shared between threads while it works."""

    def __init__(self, database: Path, tables: Mapping[str, tuple[str, ...]]) -> None:
        config = {"tables": tables, "memory_bytes": MEMORY_LIMIT_BYTES}
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", sql_worker.__file__]
        self._process = subprocess.Popen(
            [*command, str(database), json.dumps(config, ensure_ascii=False)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            close_fds=True,
        )
        self._finalizer = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        """Process id, for logs and tests."""
        return self._process.pid

    def ask(self, request: WorkerRequest, cancelled: Cancelled) -> dict[str, Any] | None:
        """The answer; None when the worker died or overran and was ended.

        Raises ``ToolCancelledError``; the worker was ended then too.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.line())
            self._process.stdin.flush()
        except OSError:
            self.close()
            return None
        line = None
        try:
            line = self._line(time.monotonic() + request.timeout_s + KILL_GRACE_S, cancelled)
        finally:
            if line is None:
                self.close()
        if line is None:
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill the process and reap it."""
        self._finalizer()

    def _line(self, deadline_s: float, cancelled: Cancelled) -> bytes | None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        received = bytearray()
        while not received.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            if not poller.poll(min(left_s, POLL_S) * 1000):
                refuse_cancelled(cancelled)
                continue
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return None
            received += piece
        return bytes(received)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


class WorkerPool:
    """At most ``size`` workers over one database file; safe to use from many threads."""

    def __init__(
        self, database: Path, tables: Mapping[str, tuple[str, ...]], *, size: int = 4
    ) -> None:
        self._database = database
        self._tables = dict(tables)
        self._free = threading.BoundedSemaphore(size)
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    def ask(self, request: WorkerRequest, cancelled: Cancelled = never) -> dict[str, Any]:
        """Run one request.

        Raises ``ToolTimeoutError`` when the worker had to be killed or died of a limit,
        ``ToolCancelledError`` when it was killed because the turn was stopped, and
        ``ToolUnavailableError`` when all workers stay busy.
        """
        if not acquire(self._free, request.timeout_s + KILL_GRACE_S, cancelled):
            raise ToolUnavailableError("数据库查询正忙，请稍后再试")
        try:
            worker = self._take()
            started_s = time.monotonic()
            answer = worker.ask(request, cancelled)
            if answer is None and time.monotonic() - started_s < request.timeout_s:
                # It may have died while idle; a statement that kills it dies twice.
                worker = _Worker(self._database, self._tables)
                answer = worker.ask(request, cancelled)
            if answer is None:
                raise ToolTimeoutError("查询超过了时间或内存上限，已被终止；请缩小范围")
            with self._lock:
                self._idle.append(worker)
            return answer
        finally:
            self._free.release()

    def close(self) -> None:
        """End the idle workers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return _Worker(self._database, self._tables)
        except OSError as error:
            raise ToolUnavailableError(f"查询进程没能启动：{error.strerror}") from error

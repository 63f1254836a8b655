"""The native back end: real CPython, one child of the warm zygote per run. Linux only.

Owns starting the zygote, the wall clock, the output cap and killing. The child's answer is
untrusted bytes. Off, with the reason in ``status``, where the protections do not hold.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from tools.base import Table, ToolError, ToolUnavailableError, Value
from tools.cancellation import POLL_S, acquire, refuse_cancelled
from tools.sandbox import frames, support
from tools.sandbox.base import (
    NO_SUCH_MODULE,
    OUTPUT_LIMIT_BYTES,
    Job,
    Outcome,
    Status,
    one_line,
    too_big,
    too_loud,
    too_slow,
)

MEMORY_LIMIT_BYTES = 256 << 20
"""What a run may add to the address space that its child starts with."""
START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 2.0
_BUSY_TIMEOUT_S = 10.0
# The value, the frames' headers and the error's line come on top of what is printed.
_ANSWER_LIMIT_BYTES = OUTPUT_LIMIT_BYTES + 4 * frames.VALUE_LIMIT_CHARS + 10_000


class _Zygote:
    """One zygote process and its control socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8"]
        script = str(Path(__file__).with_name("zygote.py"))
        with theirs:
            self._process = subprocess.Popen(
                [*command, script, *package_dirs()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                close_fds=True,
            )
        self._control = ours
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _end, self._process, ours)

    @property
    def pid(self) -> int:
        """Process id, for tests."""
        return self._process.pid

    def wait_ready(self) -> str:
        """ "" when it serves, else the reason it does not."""
        self._control.settimeout(START_TIMEOUT_S)
        line = b""
        try:
            while not line.endswith(b"\n"):
                part = self._control.recv(4096)
                if not part:
                    return "沙箱进程没能启动"
                line += part
        except OSError:
            return f"沙箱进程{START_TIMEOUT_S:g}秒内没有准备好"
        return str(json.loads(line).get("error", ""))

    def fork(self) -> tuple[socket.socket, int]:
        """A connection to a new child, its pidfd. Raises ``OSError`` when there is no zygote."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"r"], [theirs.fileno()])
                    message, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
            except OSError:
                ours.close()
                raise
        if not message or not descriptors:
            ours.close()
            raise OSError("the zygote ended")
        return ours, int(descriptors[0])

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._finalizer()


def package_dirs() -> list[str]:
    """Where numpy and pandas are installed; the zygote starts without ``site`` and .pth files."""
    specs = (importlib.util.find_spec(name) for name in ("numpy", "pandas"))
    found = (Path(spec.origin).parents[1] for spec in specs if spec is not None and spec.origin)
    return [str(path) for path in dict.fromkeys(found)]


class NativeBackend:
    """``native``. Safe to call from many threads; the zygote starts with the first run."""

    name = "native"

    def __init__(self, *, max_workers: int = 2) -> None:
        self._slots = threading.Semaphore(max_workers)
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self._missing = support.missing()

    def status(self) -> Status:
        """Active or not, and why; a zygote that refused at its start counts as not."""
        if self._missing:
            return Status(self.name, False, self._missing)
        return Status(self.name, True, f"CPython，每次一个子进程；{support.strength()}")

    def run(self, job: Job) -> Outcome:
        """See ``Backend.run``; never raises ``SandboxGapError``: this is CPython."""
        if not acquire(self._slots, _BUSY_TIMEOUT_S, job.cancelled):
            raise ToolUnavailableError("Python沙箱正忙，请稍后再试")
        try:
            connection, pidfd = self._forked()
            with connection:
                try:
                    return self._answer(connection, job)
                finally:
                    _kill(pidfd)
        finally:
            self._slots.release()

    def close(self) -> None:
        """End the zygote and its children; the next run starts a new one."""
        with self._lock:
            zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()

    def _forked(self) -> tuple[socket.socket, int]:
        for _ in range(2):
            zygote = self._started()
            try:
                return zygote.fork()
            except OSError:
                with self._lock:
                    if self._zygote is zygote:
                        self._zygote = None
                zygote.close()
        raise ToolUnavailableError("Python沙箱进程意外退出，请稍后再试")

    def _started(self) -> _Zygote:
        with self._lock:
            if self._missing:
                raise ToolUnavailableError(f"Python沙箱不可用：{self._missing}")
            if self._zygote is None or not self._zygote.alive():
                zygote = _Zygote()
                reason = zygote.wait_ready()
                if reason:
                    zygote.close()
                    self._missing = reason
                    raise ToolUnavailableError(f"Python沙箱不可用：{reason}")
                self._zygote = zygote
            return self._zygote

    def _answer(self, connection: socket.socket, job: Job) -> Outcome:
        deadline_s = time.monotonic() + job.time_s
        answer = _Answer()
        try:
            connection.settimeout(job.time_s)
            connection.sendall(_request(job))
            while not answer.complete:
                refuse_cancelled(job.cancelled)
                connection.settimeout(max(0.001, min(POLL_S, deadline_s - time.monotonic())))
                try:
                    part = connection.recv(65536)
                except TimeoutError:
                    part = None
                if time.monotonic() > deadline_s:
                    raise too_slow(job.time_s)
                if part is None:
                    continue
                if not part:
                    break
                answer.add(part)
        except TimeoutError:
            raise too_slow(job.time_s) from None
        except ConnectionError:
            answer.complete = False
        if answer.fatal:
            self._missing = one_line(answer.fatal)
            raise ToolUnavailableError(f"Python沙箱不可用：{self._missing}")
        return answer.outcome()


class _Answer:
    """Frames of a child, cut out of untrusted bytes."""

    def __init__(self) -> None:
        self.complete = False
        self.fatal = ""
        self._ready = False
        self._buffer = bytearray()
        self._size_bytes = 0
        self._printed = bytearray()
        self._value: str | None = None
        self._error: str | None = None

    def add(self, part: bytes) -> None:
        """Take bytes in. Raises ``SandboxOutputError`` past the caps, ``ToolError`` on nonsense."""
        self._size_bytes += len(part)
        if self._size_bytes > 2 * _ANSWER_LIMIT_BYTES:
            raise too_loud()
        self._buffer += part
        while not self.complete and len(self._buffer) >= frames.HEADER.size:
            kind, size = frames.HEADER.unpack_from(self._buffer)
            if size > _ANSWER_LIMIT_BYTES:
                raise too_loud()
            if len(self._buffer) < frames.HEADER.size + size:
                return
            payload = bytes(self._buffer[frames.HEADER.size : frames.HEADER.size + size])
            del self._buffer[: frames.HEADER.size + size]
            self._take(kind, payload)

    def _take(self, kind: bytes, payload: bytes) -> None:
        content = payload.decode("utf-8", "replace")
        if kind == frames.OUTPUT:
            self._printed += payload
            if len(self._printed) > OUTPUT_LIMIT_BYTES:
                raise too_loud()
        elif kind == frames.VALUE:
            self._value = content
        elif kind == frames.ERROR:
            self._error = content
        elif kind == frames.READY and not self._ready:
            self._ready = True
        elif kind == frames.FATAL and not self._ready:
            self.fatal = content or "保护没有生效"
            self.complete = True
        elif kind == frames.DONE:
            self.complete = True
        else:
            raise ToolError("代码写坏了沙箱的通道，已停止")

    def outcome(self) -> Outcome:
        """The result, or the error it amounts to."""
        if self._error is not None:
            kind, _, line = self._error.partition("\n")
            if kind == "memory":
                raise too_big(MEMORY_LIMIT_BYTES)
            if line.startswith("ModuleNotFoundError"):
                raise ToolError(f"{one_line(line)}；{NO_SUCH_MODULE}")
            raise ToolError(("语法错误：" if kind == "syntax" else "") + one_line(line))
        if not self.complete:
            raise ToolError("运行代码的进程意外退出，多半是内存不足或递归过深；请换一种写法")
        return Outcome(self._printed.decode("utf-8", "replace"), self._value)


def _request(job: Job) -> bytes:
    payload = json.dumps(
        {
            "code": job.code,
            "inputs": {name: [_table(t) for t in tables] for name, tables in job.inputs.items()},
            "today": job.today.isoformat(),
            "time_s": job.time_s,
            "memory_bytes": MEMORY_LIMIT_BYTES,
        }
    ).encode()
    return frames.LENGTH.pack(len(payload)) + payload


def _table(table: Table) -> dict[str, Any]:
    return {"columns": table.columns, "rows": [[_cell(v) for v in row] for row in table.rows]}


def _cell(value: Value) -> Any:
    if isinstance(value, decimal.Decimal):
        return float(value)  # as monty gets it: the same code must mean the same
    if isinstance(value, datetime.datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"date": value.isoformat()}
    return value


def _kill(pidfd: int) -> None:
    """End the child whatever it does, and wait until it is gone."""
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(_END_TIMEOUT_S * 1000)
    finally:
        os.close(pidfd)


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

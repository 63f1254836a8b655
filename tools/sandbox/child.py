"""One run of untrusted code, in a process that the zygote forked for it alone.

Reads the job, gives up every right for good, checks that they are gone, then runs the code and
sends what it printed and its last value. Runs nothing if a protection fails. The answer is plain
frames (kind, length, text), never pickle: the parent trusts none of it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import datetime
import gc
import io
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import Any

from tools.sandbox import landlock, seccomp, text
from tools.sandbox.frames import (
    DONE,
    ERROR,
    FATAL,
    HEADER,
    LENGTH,
    OUTPUT,
    READY,
    VALUE,
    VALUE_LIMIT_CHARS,
)
from tools.sandbox.syscalls import Architecture

_FLUSH_CHARS = 8192
_MAX_OPEN_FILES = 32
_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION_3 = 0x20080522
_TIME_ZONE = datetime.timezone(datetime.timedelta(hours=8), "CST")


class _Stream(io.TextIOBase):
    """``sys.stdout`` of the code: sends what is written in frames."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parts: list[str] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, written: str) -> int:
        if not isinstance(written, str):
            raise TypeError(f"write() argument must be str, not {type(written).__name__}")
        for start in range(0, len(written), _FLUSH_CHARS):
            part = written[start : start + _FLUSH_CHARS]
            self._parts.append(part)
            self._size += len(part)
            if self._size >= _FLUSH_CHARS:
                self.flush()
        return len(written)

    def flush(self) -> None:
        if self._parts:
            content = "".join(self._parts)
            self._parts, self._size = [], 0
            send(self._descriptor, OUTPUT, content)


def send(descriptor: int, kind: bytes, content: str = "") -> None:
    """Write one frame, whole."""
    payload = content.encode("utf-8", "replace")
    view = memoryview(HEADER.pack(kind, len(payload)) + payload)
    while view:
        view = view[os.write(descriptor, view) :]


def receive(descriptor: int) -> dict[str, Any]:
    """Read the job: a length, then JSON. Raises ``EOFError``."""
    (size,) = LENGTH.unpack(_exactly(descriptor, LENGTH.size))
    job: dict[str, Any] = json.loads(_exactly(descriptor, size))
    return job


def _exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def die_with(parent: int) -> None:
    """Be killed when the zygote ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def protect(
    architecture: Architecture, readable: Iterable[str], *, memory_bytes: int, time_s: float
) -> None:
    """Limits, no privileges, Landlock, seccomp, in this order. Raises ``OSError``."""
    with open("/proc/self/statm", "rb") as statm:
        used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    cpu_s = math.ceil(time_s) + 1
    for limit, value in (
        (resource.RLIMIT_AS, used_bytes + memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    seccomp.no_new_privs()
    landlock.restrict(readable)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(architecture.capset, ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))):
        raise OSError(ctypes.get_errno(), "capset")
    seccomp.load(architecture)


def verify() -> None:
    """Try what must fail. Raises ``RuntimeError`` when it does not."""
    for path, flags in (("/", os.O_RDONLY), ("/proc/self/environ", os.O_RDONLY)):
        with contextlib.suppress(OSError):
            os.close(os.open(path, flags))
            raise RuntimeError(f"{path} can be read")
    for family in (socket.AF_UNIX, socket.AF_INET):
        with contextlib.suppress(OSError):
            socket.socket(family, socket.SOCK_STREAM).close()
            raise RuntimeError("a socket can be made")
    try:
        os.kill(os.getpid(), 0)
    except OSError:
        return
    raise RuntimeError("a signal can be sent")


def run(
    connection: socket.socket, parent: int, architecture: Architecture, readable: tuple[str, ...]
) -> None:
    """The child's whole life; never returns."""
    descriptor = connection.detach()
    try:
        die_with(parent)
        job = receive(descriptor)
        try:
            protect(architecture, readable, memory_bytes=job["memory_bytes"], time_s=job["time_s"])
            verify()
        except (OSError, RuntimeError) as error:
            send(descriptor, FATAL, f"{error}")
            return
        send(descriptor, READY)
        _execute(descriptor, job)
        send(descriptor, DONE)
    except BaseException:  # noqa: BLE001 - the process boundary: the parent sees no DONE
        os._exit(1)
    finally:
        os._exit(0)


def _execute(descriptor: int, job: dict[str, Any]) -> None:
    _freeze_clock(datetime.date.fromisoformat(job["today"]))
    _seed()
    stream = _Stream(descriptor)
    sys.stdin = io.StringIO("")
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        setattr(sys, name, stream)
    gc.enable()
    names: dict[str, Any] = {
        name: [_records(table) for table in tables] for name, tables in job["inputs"].items()
    }
    names |= {"__name__": "__main__", "__builtins__": builtins}
    try:
        value = _evaluate(job["code"], names)
        shown = None if value is None else text.value_text(value)
    except SystemExit:
        shown = None
    except BaseException as error:  # noqa: BLE001 - every error of the code is its result
        names.clear()
        failure = _failure(error)
        del error
        with contextlib.suppress(BaseException):
            stream.flush()
        send(descriptor, ERROR, failure)
        return
    stream.flush()
    if shown is not None:
        send(descriptor, VALUE, text.shortened(shown, VALUE_LIMIT_CHARS))


def _evaluate(code: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<code>", "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, "<code>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<code>", "eval"), names)


def _failure(error: BaseException) -> str:
    """``kind``, a line break, one line of text."""
    if isinstance(error, MemoryError):
        return "memory\n"
    kind = "syntax" if isinstance(error, SyntaxError) else "error"
    try:
        message = str(error)[:1000]
    except BaseException:  # noqa: BLE001 - the code's own __str__
        message = ""
    name = type(error).__name__
    return f"{kind}\n{name}: {message}" if message else f"{kind}\n{name}"


def _records(table: dict[str, Any]) -> list[dict[str, Any]]:
    columns = table["columns"]
    return [dict(zip(columns, map(_cell, row), strict=True)) for row in table["rows"]]


def _cell(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "date" in value:
        return datetime.date.fromisoformat(value["date"])
    return datetime.datetime.fromisoformat(value["datetime"])


def _freeze_clock(today: datetime.date) -> None:
    """Noon of ``today`` in China, as in monty; sleeping takes no time.

    The types of ``datetime`` are C types: their method tables are reached through the proxy.
    """
    noon = datetime.datetime.combine(today, datetime.time(12), _TIME_ZONE)
    frozen_s = noon.timestamp()
    local = time.struct_time((*noon.timetuple()[:8], 0))

    def now(cls: Any, tz: datetime.tzinfo | None = None) -> Any:
        there = noon.replace(tzinfo=None) if tz is None else noon.astimezone(tz)
        return cls(*there.timetuple()[:6], 0, there.tzinfo)

    for kind, methods in (
        (datetime.date, {"today": lambda cls: cls(today.year, today.month, today.day)}),
        (
            datetime.datetime,
            {
                "now": now,
                "today": now,
                "utcnow": lambda cls: now(cls, datetime.UTC).replace(tzinfo=None),
            },
        ),
    ):
        table = next(r for r in gc.get_referents(vars(kind)) if isinstance(r, dict))
        table.update({name: classmethod(method) for name, method in methods.items()})
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    real_strftime, real_localtime = time.strftime, time.localtime
    time.time = lambda: frozen_s
    time.time_ns = lambda: int(frozen_s) * 10**9
    time.localtime = lambda s=None: local if s is None else real_localtime(s)
    time.strftime = lambda form, t=None: real_strftime(form, local if t is None else t)
    time.sleep = lambda _seconds: None


def _seed() -> None:
    """A fork would repeat numpy's random numbers; the standard module seeds itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "big"))

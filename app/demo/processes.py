"""Child processes: started with logs of their own, watched, and all stopped again.

Owns process groups and log files. Does not know what the commands do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 10.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOG_LINES = 12
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Child:
    """A started process. ``title`` is for people, ``log`` holds its stdout and stderr."""

    name: str
    title: str
    log: Path
    process: subprocess.Popen[bytes]


class ChildDiedError(Exception):
    """A process ended by itself; the text says which, its last log lines and what to do."""

    def __init__(self, child: Child, status: int) -> None:
        how = f"退出状态 {status}" if status >= 0 else f"收到信号 {-status}"
        tail = "\n".join(f"    {line}" for line in last_lines(child.log))
        super().__init__(
            f"「{child.title}」意外退出（{how}）。日志的最后几行：\n{tail}\n完整日志：{child.log}"
        )
        self.child = child


def last_lines(path: Path, count: int = _LOG_LINES, width: int = 240) -> list[str]:
    """The end of a log, at most ``count`` lines of ``width`` characters."""
    with contextlib.suppress(OSError):
        lines = path.read_text("utf-8", "replace").splitlines()[-count:]
        return [line if len(line) <= width else line[:width] + "…" for line in lines]
    return []


def free_port(preferred: int, host: str = "127.0.0.1") -> int:
    """``preferred`` when nobody listens there, else one that is free now."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                return int(probe.getsockname()[1])
    raise OSError(f"no free port on {host}")


class Processes:
    """The children of one demo. Each runs in its own process group, so Ctrl-C reaches only us."""

    def __init__(self, environment: Mapping[str, str], log_dir: Path) -> None:
        self._environment = dict(environment)
        self._log_dir = log_dir
        self._children: list[Child] = []
        log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, title: str, argv: Sequence[str]) -> Child:
        """Start ``argv`` with a fresh log ``<name>.log``."""
        log = self._log_dir / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_end_with_parent(),
            )
        child = Child(name, title, log, process)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises ``ChildDiedError`` for the first child that is not running any more."""
        for child in self._children:
            status = child.process.poll()
            if status is not None:
                raise ChildDiedError(child, status)

    def end(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM to the child ``name`` alone, then SIGKILL; nothing when there is none."""
        for child in [child for child in self._children if child.name == name]:
            _signal_group(child, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(timeout_s)
            _signal_group(child, signal.SIGKILL)
            child.process.wait()
            self._children.remove(child)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """SIGTERM to every group, a bounded wait, then SIGKILL; titles of those that needed it."""
        for child in reversed(self._children):
            _signal_group(child, signal.SIGTERM)
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit and self._alive():
            time.sleep(0.05)
        stubborn = [child.title for child in self._alive()]
        for child in self._children:
            # Also where the leader has ended: its group may hold processes it left behind.
            _signal_group(child, signal.SIGKILL)
            child.process.wait()
        self._children.clear()
        return stubborn

    def _alive(self) -> list[Child]:
        return [child for child in self._children if child.process.poll() is None]


def _signal_group(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


def _end_with_parent() -> Callable[[], None] | None:
    """On Linux: have the kernel end the child when we are killed and cannot do it ourselves."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

    return before_exec

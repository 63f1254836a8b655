"""What must stay out of reach, and whether it was reached: files, secrets, sockets, signals.

Owns the things around the sandbox that an escape would touch. ``sprung`` names real effects only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import secrets
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

ENVIRONMENT_NAME = "HUTONG_ESCAPE_SECRET"
SECRET_START = "hutong-" + "secret-"
_SECRET = re.compile(SECRET_START + "[0-9a-f]{32}")
_WATCHED_SIGNALS = (
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGIO, signal.SIGALRM,
    signal.SIGCONT,
)  # fmt: skip
_SHARED_MEMORY = Path("/dev/shm/hutong-escape")
_PR_SET_CHILD_SUBREAPER = 36
_REAP_TIMEOUT_S = 2.0


def secret() -> str:
    """A secret that no code can guess; all start alike, so that a leak of any is seen."""
    return SECRET_START + secrets.token_hex(16)


class Traps:
    """A context manager around all attempts; ``arm`` before each, ``sprung`` after it."""

    def __enter__(self) -> Traps:
        self.folder = Path(tempfile.mkdtemp(prefix="hutong-escape-"))
        self.canary = self.folder / "canary"
        self.target = self.folder / "target"
        self._content = secret()
        self.in_memory = secret()
        with contextlib.closing(sqlite3.connect(self.folder / "company.db")) as database:
            database.execute("create table secrets as select ? as word", (self._content,))
            database.commit()
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(str(self.folder / "socket"))
        self._abstract_name = f"hutong-escape-{os.getpid()}"
        self._abstract = socket.socket(socket.AF_UNIX)
        self._abstract.bind("\0" + self._abstract_name)
        for listener in (self._unix, self._abstract):
            listener.listen()
        self._listeners = (self._tcp, self._udp, self._unix, self._abstract)
        for listener in self._listeners:
            listener.setblocking(False)
        self._signals: list[int] = []
        self._handlers = {n: signal.signal(n, self._note) for n in _WATCHED_SIGNALS}
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self, code: str) -> str:
        """``code`` with its placeholders replaced."""
        for name, value in {
            "CANARY": self.canary,
            "TARGET": self.target,
            "FOLDER": self.folder,
            "TCP": self._tcp.getsockname()[1],
            "UDP": self._udp.getsockname()[1],
            "UNIX": self.folder / "socket",
            "ABSTRACT": self._abstract_name,
            "PARENT": os.getpid(),
        }.items():
            code = code.replace(f"@{name}@", str(value))
        return code

    def arm(self) -> None:
        """Put everything back as it was."""
        if self.target.is_dir() and not self.target.is_symlink():
            shutil.rmtree(self.target)
        for path in (self.target, _SHARED_MEMORY, *self._strays()):
            path.unlink(missing_ok=True)
        self.canary.write_text(self._content, encoding="utf-8")
        self.canary.chmod(0o644)
        self._listing = sorted(self._strays())
        self._stat = self.canary.stat()
        self._own = self._own_settings()
        self._signals.clear()
        self._connections()

    def sprung(self, said: str, workers: frozenset[int]) -> list[str]:
        """The real effects since ``arm``: ``said`` is all that came back, ``workers`` may live."""
        effects = []
        if _SECRET.search(said):
            effects.append("secret read")
        if "root:x:" in said or "uid=" in said:
            effects.append("system file read or command run")
        if "company.db" in said.replace(str(self.folder / "company.db"), ""):
            effects.append("folder listed")
        if os.path.lexists(self.target) or _SHARED_MEMORY.exists():
            effects.append("file made")
        if not self.canary.exists() or not _same(self._stat, self.canary.stat()):
            effects.append("file changed")
        if sorted(self._strays()) != self._listing:
            effects.append("file made elsewhere")
        if self._connections():
            effects.append("network reached")
        if self._signals:
            effects.append(f"signal {self._signals[0]} delivered")
        if self._own_settings() != self._own:
            effects.append("limits of the asker changed")
        left = self._left_behind(workers)
        if left:
            effects.append(f"process left behind: {left}")
        return effects

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _strays(self) -> list[Path]:
        places = (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__))
        strays = [Path(place) / "hutong-escape" for place in places]
        known = {"canary", "target", "company.db", "socket"}
        return [path for path in strays if path.exists()] + [
            path for path in self.folder.iterdir() if path.name not in known
        ]

    def _own_settings(self) -> tuple[object, ...]:
        return (
            resource.getrlimit(resource.RLIMIT_CORE),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getaffinity(0),
        )

    def _connections(self) -> int:
        count = 0
        for listener in self._listeners:
            with contextlib.suppress(BlockingIOError):
                while True:
                    if listener is self._udp:
                        listener.recv(100)
                    else:
                        listener.accept()[0].close()
                    count += 1
        return count

    def _left_behind(self, workers: frozenset[int]) -> list[str]:
        """Descendants that are neither ``workers`` nor gone within a moment."""
        deadline_s = time.monotonic() + _REAP_TIMEOUT_S
        while True:
            left = descendants(os.getpid()) - workers
            if not left or time.monotonic() > deadline_s:
                return [f"{pid} {command_of(pid)[:80]}" for pid in left]
            time.sleep(0.005)


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_ino, before.st_size, before.st_mode, before.st_mtime_ns) == (
        after.st_ino,
        after.st_size,
        after.st_mode,
        after.st_mtime_ns,
    )


def descendants(root: int) -> set[int]:
    """Every process below ``root``, zombies included; orphans come to it as their reaper."""
    found: set[int] = set()
    ahead = [root]
    while ahead:
        more = children(ahead.pop()) - found
        found |= more
        ahead += more
    return found


def children(pid: int) -> set[int]:
    """The processes that ``pid`` and its threads are the parents of."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found |= set(map(int, (task / "children").read_text().split()))
    return found


def command_of(pid: int) -> str:
    """The process's command line, "" when it is gone or a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def is_zombie(pid: int) -> bool:
    """Whether ``pid`` has ended and only waits to be reaped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

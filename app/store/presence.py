"""Which processes are alive, and what each says of itself.

Owns the heartbeat keys: one per process and role, written by a thread of it, gone shortly after
it. Knows nothing of what a process does.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, get_args

import redis

from app.log import fields
from app.store import keys

log = logging.getLogger(__name__)

TTL_S = 15.0
WARM_S = 120.0
"""A process that has run this long holds what it needs; what it gains later is growth."""
Role = Literal["web", "turns", "sender", "sweeper"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class ProcessReport:
    """What one process last said. ``facts`` is for people and panels; ``age_s`` since then.

    ``warm_rss_bytes`` is its memory once it was warm, 0 before that.
    """

    role: str
    process_id: str
    host: str
    pid: int
    started_s: float
    rss_bytes: int
    warm_rss_bytes: int
    age_s: float
    facts: Mapping[str, Any]


class Presence:
    """Says that this process is ready, until it is closed or dies. A context manager.

    A thread writes it: a worker busy with a long answer is alive too. ``facts`` is asked at every
    beat for what the process tells of itself (JSON values, no secrets, no message text).
    """

    def __init__(
        self,
        client: redis.Redis,
        role: Role,
        facts: Callable[[], Mapping[str, Any]] = dict,
        *,
        ttl_s: float = TTL_S,
    ) -> None:
        self.role = role
        self.process_id = f"{socket.gethostname()}-{os.getpid()}"
        self._redis = client
        self._facts = facts
        self._ttl_s = ttl_s
        self._started_s = time.time()
        self._warm_rss_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="presence", daemon=True)

    def __enter__(self) -> Presence:
        self._announce()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        try:
            self._redis.delete(keys.process(self.role, self.process_id))
        except redis.RedisError:
            log.warning("heartbeat key not removed; it expires", extra=fields(ttl_s=self._ttl_s))

    def _announce(self) -> None:
        now_s, rss = time.time(), rss_bytes()
        if not self._warm_rss_bytes and now_s - self._started_s >= WARM_S:
            self._warm_rss_bytes = rss
        report = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_s": self._started_s,
            "written_s": now_s,
            "rss_bytes": rss,
            "warm_rss_bytes": self._warm_rss_bytes,
            "facts": dict(self._facts()),
        }
        key, ttl_ms = keys.process(self.role, self.process_id), int(self._ttl_s * 1000)
        try:
            self._redis.set(key, json.dumps(report, ensure_ascii=False), px=ttl_ms)
        except redis.RedisError as error:
            log.warning("heartbeat not written", extra=fields(error=type(error).__name__))

    def _beat(self) -> None:
        while not self._done.wait(self._ttl_s / 3):
            self._announce()


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory of a process (this one), 0 where the system does not say."""
    try:
        with open(f"/proc/{pid or os.getpid()}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def alive(client: redis.Redis, role: Role = "turns") -> list[str]:
    """Ids of the live processes of ``role``."""
    prefix = keys.process(role, "")
    found = client.scan_iter(match=prefix + "*", count=1000)
    return sorted(key.decode().removeprefix(prefix) for key in found)


def reports(client: redis.Redis) -> list[ProcessReport]:
    """What all live processes said last, by role and id."""
    prefix = keys.process("", "").removesuffix(":")
    names = sorted(key.decode() for key in client.scan_iter(match=prefix + "*", count=1000))
    values = client.mget(names) if names else []
    now_s = time.time()
    found = []
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, bytes):
            continue
        role, _, process_id = name.removeprefix(prefix).partition(":")
        said = json.loads(value)
        found.append(
            ProcessReport(
                role,
                process_id,
                said["host"],
                said["pid"],
                said["started_s"],
                said["rss_bytes"],
                said["warm_rss_bytes"],
                max(0.0, now_s - said["written_s"]),
                said["facts"],
            )
        )
    return found

"""Which turn workers are alive and ready.

Owns the heartbeat keys: one per process, written by a thread of it, gone shortly after it. Knows
nothing of what a worker does.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from types import TracebackType

import redis

from app.log import fields
from app.store import keys

log = logging.getLogger(__name__)

TTL_S = 15.0


class Presence:
    """Says that this process is ready, until it is closed or dies. A context manager.

    A thread writes it: a worker busy with a long answer is alive too. ``detail`` is for people.
    """

    def __init__(self, client: redis.Redis, detail: str, *, ttl_s: float = TTL_S) -> None:
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}"
        self._redis = client
        self._detail = detail
        self._ttl_s = ttl_s
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
            self._redis.delete(keys.worker(self.worker_id))
        except redis.RedisError:
            log.warning("heartbeat key not removed; it expires", extra=fields(ttl_s=self._ttl_s))

    def _announce(self) -> None:
        try:
            self._redis.set(keys.worker(self.worker_id), self._detail, px=int(self._ttl_s * 1000))
        except redis.RedisError as error:
            log.warning("heartbeat not written", extra=fields(error=type(error).__name__))

    def _beat(self) -> None:
        while not self._done.wait(self._ttl_s / 3):
            self._announce()


def alive(client: redis.Redis) -> list[str]:
    """Ids of the live turn workers."""
    found = client.scan_iter(match=keys.WORKER_PATTERN, count=1000)
    return sorted(key.decode().removeprefix(keys.worker("")) for key in found)

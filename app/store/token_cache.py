"""The access token that all processes of an app share.

Owns storage and locking (``app.wecom.access_token.TokenCache``). Does not know how a token is
fetched. The token is a value and never part of a key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis
from redis.exceptions import LockError

from app.store import keys
from app.store.scripts import script


class RedisTokenCache:
    """A ``TokenCache`` in Redis. ``name`` is ``corp_id:agent_id``."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._set_if = script(client, "token_set_if")

    def get(self, name: str) -> str | None:
        """The value, or None when there is none or it has expired."""
        value = self._redis.get(keys.access_token(name))
        return value.decode() if isinstance(value, bytes) else None

    def set_if(self, name: str, expected: str | None, value: str | None, ttl_s: float) -> bool:
        """Atomically: if the value is ``expected`` (None: absent), replace it; True when done."""
        done = self._set_if(
            keys=[keys.access_token(name)],
            args=[expected or "", value or "", max(1, int(ttl_s * 1000))],
        )
        return bool(done)

    @contextlib.contextmanager
    def lock(self, name: str, *, hold_s: float, wait_s: float) -> Iterator[bool]:
        """A lock across processes that frees itself after ``hold_s``; False when not had."""
        lock = self._redis.lock(
            keys.access_token(name) + ":lock", timeout=hold_s, sleep=0.05, thread_local=False
        )
        held = lock.acquire(blocking_timeout=wait_s)
        try:
            yield bool(held)
        finally:
            if held:
                # It ran out while we held it: somebody else's now.
                with contextlib.suppress(LockError):
                    lock.release()

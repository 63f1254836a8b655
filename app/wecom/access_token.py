"""The access token of one app: one value shared by all processes, refreshed once.

Owns single flight and "discard only the token that failed". Does not know Redis (a ``TokenCache``
is passed in) nor HTTP (``fetch`` is).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from app.wecom.errors import TransportError

LOCK_HOLD_S = 15.0
"""A dead holder blocks others no longer than this; above the time-out of one gettoken."""
LOCK_WAIT_S = 20.0
_EARLY_S = 300


@dataclass(frozen=True)
class FetchedToken:
    """An answer of gettoken."""

    value: str
    expires_in_s: int


class TokenCache(Protocol):
    """A small cache shared by all processes. ``name`` holds no secret."""

    def get(self, name: str) -> str | None:
        """The value, or None when there is none or it has expired."""

    def set_if(self, name: str, expected: str | None, value: str | None, ttl_s: float) -> bool:
        """Atomically: if the value is ``expected`` (None: absent), replace it; True when done.

        ``value`` None deletes, and ``ttl_s`` is then not used.
        """

    def lock(self, name: str, *, hold_s: float, wait_s: float) -> AbstractContextManager[bool]:
        """A lock across processes that frees itself after ``hold_s``. Yields False when it was
        not had within ``wait_s``."""


class AccessToken:
    """Gives the token of one app; the cache key is ``corp_id:agent_id`` and holds no secret."""

    def __init__(
        self, corp_id: str, agent_id: str, fetch: Callable[[], FetchedToken], cache: TokenCache
    ) -> None:
        self._name = f"{corp_id}:{agent_id}"
        self._fetch = fetch
        self._cache = cache

    def get(self) -> str:
        """A token believed to be valid.

        Raises ``ApiError`` or ``TransportError`` from the fetch, and ``TransportError`` when
        another process keeps the lock too long.
        """
        cached = self._cache.get(self._name)
        if cached is not None:
            return cached
        with self._cache.lock(self._name, hold_s=LOCK_HOLD_S, wait_s=LOCK_WAIT_S) as held:
            cached = self._cache.get(self._name)
            if cached is not None:
                return cached
            if not held:
                raise TransportError("another process is refreshing the access token; try again")
            fetched = self._fetch()
            self._cache.set_if(self._name, None, fetched.value, _lifetime_s(fetched.expires_in_s))
            return fetched.value

    def discard(self, failed: str) -> None:
        """Forget ``failed`` because the API refused it; a newer token stays."""
        self._cache.set_if(self._name, failed, None, 0)


def _lifetime_s(expires_in_s: int) -> float:
    """How long to keep a token: it is renewed before its end, and may die early anyway."""
    return max(1.0, expires_in_s - min(_EARLY_S, expires_in_s // 10 + 1))

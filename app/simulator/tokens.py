"""Access tokens as gettoken gives them: one per app, the same until it expires.

Knows a clock; neither credentials nor HTTP.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

LIFETIME_S = 7200


class TokenVerdict(Enum):
    """What a token in a request turned out to be; the value is the service's errcode."""

    OK = 0
    MISSING = 41001
    INVALID = 40014
    EXPIRED = 42001


@dataclass(frozen=True)
class IssuedToken:
    """A token and the seconds it still has."""

    access_token: str
    expires_in_s: int


class AccessTokens:
    """Issues and checks the token of the one app."""

    def __init__(self, clock: Callable[[], float], lifetime_s: float = LIFETIME_S) -> None:
        self._clock = clock
        self.lifetime_s = lifetime_s
        self._lock = threading.Lock()
        self._current = ""
        self._expires_at_s = 0.0
        self._ended: set[str] = set()
        self.issued = 0

    def issue(self) -> IssuedToken:
        """The live token; a new one once the last has expired or was revoked."""
        with self._lock:
            now_s = self._clock()
            if not self._current or now_s >= self._expires_at_s:
                if self._current:
                    self._ended.add(self._current)
                self._current = secrets.token_urlsafe(48)
                self._expires_at_s = now_s + self.lifetime_s
                self.issued += 1
            return IssuedToken(self._current, max(1, int(self._expires_at_s - now_s)))

    def check(self, access_token: str) -> TokenVerdict:
        """Which errcode, if any, a request with ``access_token`` earns."""
        with self._lock:
            if not access_token:
                return TokenVerdict.MISSING
            if access_token in self._ended:
                return TokenVerdict.EXPIRED
            if access_token != self._current:
                return TokenVerdict.INVALID
            if self._clock() >= self._expires_at_s:
                return TokenVerdict.EXPIRED
            return TokenVerdict.OK

    def expire_now(self) -> None:
        """Early death: the service may end a token before its time."""
        with self._lock:
            self._expires_at_s = self._clock()

"""Response codes of interactive cards: good for one update within 72 hours.

Knows whose card a code is for; not what is on the card.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

LIFETIME_S = 72 * 3600
MAX_KEPT = 10_000


@dataclass(frozen=True)
class ResponseCode:
    """One code. ``msgid`` names the message with the card, ``user_ids`` those who have it."""

    code: str
    msgid: str
    user_ids: tuple[str, ...]
    issued_at_s: float


class ResponseCodes:
    """Gives codes out and takes each back once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, ResponseCode] = {}

    def issue(self, msgid: str, user_ids: tuple[str, ...]) -> str:
        """A new code for a card that was shown."""
        code = ResponseCode(secrets.token_urlsafe(32), msgid, user_ids, self._clock())
        with self._lock:
            self._live[code.code] = code
            while len(self._live) > MAX_KEPT:
                del self._live[next(iter(self._live))]
        return code.code

    def use(self, code: str) -> ResponseCode | None:
        """The card behind ``code``, the first time and in time; else None."""
        with self._lock:
            found = self._live.pop(code, None)
        if found is None or self._clock() - found.issued_at_s >= LIFETIME_S:
            return None
        return found

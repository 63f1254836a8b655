"""Which sessions of the admin page were ended before they expired.

Owns the mark of an ended session. Knows nothing of cookies or of how a session is proved.
"""

from __future__ import annotations

import redis

from app.store import keys


class EndedSessions:
    """Sessions that signed out; a copy of their cookie is worth nothing any more."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def end(self, session_id: str, expiry_s: int) -> None:
        """End a session; remembered for ``expiry_s``, by when its cookie is too old anyway."""
        self._redis.set(keys.admin_ended(session_id), b"1", ex=expiry_s)

    def has(self, session_id: str) -> bool:
        """True when the session was ended."""
        return bool(self._redis.exists(keys.admin_ended(session_id)))

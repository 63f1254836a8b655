"""What a user and the assistant said lately.

Owns reading and forgetting; a turn's messages are appended by the script that ends the turn, so
a turn that is tried again is never remembered twice. Knows nothing of what a message holds: each
document is the JSON of one turn's messages.
"""

from __future__ import annotations

from typing import cast

import redis

from app.store.keys import UserKeys


class Sessions:
    """The sessions of all users."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def load(self, tag: str) -> list[str]:
        """One JSON document per remembered turn, oldest first; empty when expired."""
        items = cast("list[bytes]", self._redis.lrange(UserKeys(tag).session, 0, -1))
        return [item.decode() for item in items]

    def forget(self, tag: str) -> None:
        """Empty the session."""
        self._redis.delete(UserKeys(tag).session)

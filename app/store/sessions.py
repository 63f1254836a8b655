"""What a user and the assistant said lately.

Owns reading; a turn's messages are appended by the script that ends the turn, so a turn that is
tried again is never remembered twice. Every "/new" begins another epoch with an empty session,
and a message belongs to the epoch it was sent in. Knows nothing of what a message holds: each
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

    def load(self, tag: str, epoch: int = 0) -> list[str]:
        """One JSON document per remembered turn, oldest first; empty when expired."""
        items = cast("list[bytes]", self._redis.lrange(UserKeys(tag).session(epoch), 0, -1))
        return [item.decode() for item in items]

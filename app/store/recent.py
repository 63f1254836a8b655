"""The newest turns, for people who look: a capped list beside the truth.

Owns the index and its size. A crash at the wrong moment may leave a turn out of it; nothing but
the admin page reads it.
"""

from __future__ import annotations

from typing import Any, cast

import redis

from app.store import keys
from app.store.turns import Turn, Turns

MOST_TURNS = 1000


def note(pipe: redis.client.Pipeline, turn_id: str, created_ms: int) -> None:
    """Add a turn to the index as part of ``pipe``; two answers join its results."""
    pipe.zadd(keys.RECENT_TURNS, {turn_id: created_ms}, nx=True)
    pipe.zremrangebyrank(keys.RECENT_TURNS, 0, -MOST_TURNS - 1)


class RecentTurns:
    """The newest ``MOST_TURNS`` turns of all users."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._turns = Turns(client)

    def count(self) -> int:
        """Number of turns in the index."""
        return self._redis.zcard(keys.RECENT_TURNS)

    def newest(self, most: int, skip: int = 0) -> list[Turn]:
        """At most ``most`` turns, newest first, after leaving out ``skip``; expired ones are
        left out."""
        ids = self._redis.zrevrange(keys.RECENT_TURNS, skip, skip + most - 1)
        return self._turns.get_many([item.decode() for item in cast("list[bytes]", ids)])

    def oldest_waiting(self, most: int) -> list[Turn]:
        """At most ``most`` turns that are not ended, in the order of their arrival."""
        ids: Any = self._redis.zrange(keys.QUEUE, 0, most - 1)
        found = self._turns.get_many([item.decode() for item in ids])
        return [turn for turn in found if not turn.ended]

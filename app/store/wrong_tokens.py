"""How many wrong tokens an address has sent lately, counted for all web processes together.

Owns the key and its minute. Knows nothing of tokens or of HTTP.
"""

from __future__ import annotations

from typing import cast

import redis

from app.store import keys

WINDOW_S = 60


class WrongTokens:
    """Counts per address; a window begins with its first wrong token and lasts ``WINDOW_S``."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def count(self, address: str) -> int:
        """Add one; how many there are in this window."""
        key = keys.wrong_tokens(address)
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(key, 0, nx=True, ex=WINDOW_S)
            pipe.incr(key)
            return cast(int, pipe.execute()[1])

    def blocked_s(self, address: str, most: int) -> int:
        """Seconds until ``address`` may try again, 0 when it may now."""
        key = keys.wrong_tokens(address)
        sent = self._redis.get(key)
        if not isinstance(sent, bytes) or int(sent) < most:
            return 0
        return max(1, self._redis.ttl(key))

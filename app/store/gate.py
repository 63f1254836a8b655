"""What the gateway remembers about who writes: rates, refusals, departments.

Owns the keys of these. Knows no rules: limits and answers are passed in.
"""

from __future__ import annotations

import hashlib
from typing import cast

import redis

from app.store import keys
from app.store.keys import UserKeys
from app.store.scripts import script

TOLD_AGAIN_S = 60
DEPARTMENTS_EXPIRY_S = 3600
_UNKNOWN_EXPIRY_S = 60


def oldest_waiting_s(client: redis.Redis, now_s: float) -> float:
    """Age of the oldest turn of all users that is not ended, 0.0 when there is none."""
    oldest = cast("list[tuple[bytes, float]]", client.zrange(keys.QUEUE, 0, 0, withscores=True))
    return max(0.0, now_s - oldest[0][1] / 1000) if oldest else 0.0


class Gate:
    """The limits in front of the inbox."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._rate = script(client, "rate")

    def within_rate(self, tag: str, dedupe_key: str, most_a_minute: int) -> bool:
        """Count a message; False when the user has sent too many in the last minute."""
        digest = hashlib.sha256(dedupe_key.encode()).hexdigest()
        return bool(self._rate(keys=[UserKeys(tag).rate], args=[digest, most_a_minute]))

    def queued(self) -> int:
        """Number of turns of all users that are not ended."""
        return self._redis.zcard(keys.QUEUE)

    def tells_now(self, tag: str) -> bool:
        """True when the user was not told of a refusal within the last minute."""
        return bool(self._redis.set(UserKeys(tag).refused, b"1", nx=True, ex=TOLD_AGAIN_S))


class DepartmentCache:
    """Departments of members as WeCom told them, for an hour."""

    def __init__(self, client: redis.Redis, corp_id: str) -> None:
        self._redis = client
        self._corp_id = corp_id

    def get(self, user: str) -> frozenset[str] | None:
        """Department ids, None when not known (any more)."""
        raw = self._redis.get(keys.departments(self._corp_id, user))
        if not isinstance(raw, bytes):
            return None
        return frozenset(part for part in raw.decode().split(",") if part)

    def put(self, user: str, departments: frozenset[str]) -> None:
        """Remember ``departments``; none at all is asked again after a minute."""
        expiry_s = DEPARTMENTS_EXPIRY_S if departments else _UNKNOWN_EXPIRY_S
        key = keys.departments(self._corp_id, user)
        self._redis.set(key, ",".join(sorted(departments)), ex=expiry_s)

"""Which users have work waiting: the sweeper's view of inboxes and outboxes.

Owns reading, trimming and repairing the two indexes. Knows nothing of what the work is.

An entry is dropped only if nobody touched it since it was read, and the list is looked at once
more afterwards; what a crash between two commands may still leave out, ``repair`` finds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import redis

from app.store import keys
from app.store.keys import UserKeys
from app.store.scripts import script

Kind = Literal["turn", "send"]
_BATCH = 500


@dataclass(frozen=True)
class Waiting:
    """A user with waiting work.

    ``busy``: somebody works for them or was just woken to, or they must wait.
    """

    tag: str
    length: int
    busy: bool
    touched_s: float


class PendingIndex:
    """Users with a non-empty inbox (``turn``) or outbox (``send``)."""

    def __init__(self, client: redis.Redis, kind: Kind) -> None:
        self._redis = client
        self._kind: Kind = kind
        self._index = keys.PENDING_USERS if kind == "turn" else keys.PENDING_OUTBOXES
        self._unindex = script(client, "unindex")

    def waiting(self) -> list[Waiting]:
        """All users with waiting work, longest untouched first; empty entries are dropped."""
        found: list[Waiting] = []
        entries = cast(
            "list[tuple[bytes, float]]", self._redis.zrange(self._index, 0, -1, withscores=True)
        )
        for start in range(0, len(entries), _BATCH):
            found += self._look(entries[start : start + _BATCH])
        return found

    def mark_woken(self, tag: str, again_after_s: float) -> bool:
        """True when nobody was woken for ``tag`` lately; then remembers that somebody is now."""
        key = UserKeys(tag).woken(self._kind)
        return bool(self._redis.set(key, b"1", nx=True, px=int(again_after_s * 1000)))

    def repair(self) -> int:
        """Look at every list of every user and index what is missing; returns how many."""
        name = "inbox" if self._kind == "turn" else "outbox"
        added = 0
        for key in self._redis.scan_iter(match=f"{keys.PREFIX}{{*}}:{name}", count=1000):
            tag = key.decode().removeprefix(keys.PREFIX + "{").removesuffix("}:" + name)
            added += cast(int, self._redis.zadd(self._index, {tag: time.time()}, nx=True))
        return added

    def _look(self, entries: Sequence[tuple[bytes, float]]) -> list[Waiting]:
        with self._redis.pipeline(transaction=False) as pipe:
            for raw, _ in entries:
                user = UserKeys(raw.decode())
                pipe.llen(self._list(user))
                pipe.exists(user.lease(self._kind), user.woken(self._kind), *self._hold(user))
            answers: list[Any] = pipe.execute()
        found = []
        for (raw, score), length, busy in zip(entries, answers[::2], answers[1::2], strict=True):
            tag = raw.decode()
            if length:
                found.append(Waiting(tag, length, bool(busy), score))
            else:
                self._drop(tag, score)
        return found

    def _drop(self, tag: str, score: float) -> None:
        dropped = self._unindex(keys=[self._index], args=[tag, repr(score)])
        if dropped and self._redis.llen(self._list(UserKeys(tag))):
            self._redis.zadd(self._index, {tag: time.time()}, nx=True)

    def _list(self, user: UserKeys) -> str:
        return user.inbox if self._kind == "turn" else user.outbox

    def _hold(self, user: UserKeys) -> list[str]:
        return [] if self._kind == "turn" else [user.send_wait]

"""What is not said yet, and what will not be unless an administrator puts it back.

Owns the reading of outboxes by state, of the index of refused and given up parts, and the replay
of such a part. Knows nothing of WeCom or of why a part was refused. The index is written beside
the scripts, so a crash may leave a part out of it; the part itself is never touched by that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import redis

from app.store import keys
from app.store.keys import UserKeys, split_tag
from app.store.outbox import Outbox, Part
from app.store.pending import PendingIndex
from app.store.scripts import script


@dataclass(frozen=True)
class Waiting:
    """A user with unsent parts. ``head`` is the next one; ``held_s`` how long it must wait."""

    tag: str
    length: int
    head: Part
    held_s: float

    @property
    def user(self) -> str:
        """The member's user id."""
        return split_tag(self.tag).user


@dataclass(frozen=True)
class Problem:
    """A part that was refused (``state``) or, still unknown, given up; nobody will send it."""

    tag: str
    part: Part
    since_ms: int

    @property
    def user(self) -> str:
        """The member's user id."""
        return split_tag(self.tag).user


class Unsent:
    """The outboxes of all users, seen from outside."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._outbox = Outbox(client)
        self._pending = PendingIndex(client, "send")
        self._replay = script(client, "replay_part")
        self._unindex = script(client, "unindex")

    def waiting(self) -> list[Waiting]:
        """All users with unsent parts, longest untouched first."""
        found = self._pending.waiting()
        with self._redis.pipeline(transaction=False) as pipe:
            for entry in found:
                user = UserKeys(entry.tag)
                pipe.lindex(user.outbox, 0)
                pipe.pttl(user.send_wait)
            answers = pipe.execute()
        heads = self._outbox.read_many(
            [
                (entry.tag, (part_id or b"").decode())
                for entry, part_id in zip(found, answers[::2], strict=True)
            ]
        )
        return [
            Waiting(entry.tag, entry.length, head, max(0, wait_ms) / 1000)
            for entry, head, wait_ms in zip(found, heads, answers[1::2], strict=True)
            if head is not None
        ]

    def problems(self) -> list[Problem]:
        """Refused and given up parts, newest first; what is none any more leaves the index."""
        entries = cast(
            "list[tuple[bytes, float]]",
            self._redis.zrevrange(keys.PROBLEM_PARTS, 0, -1, withscores=True),
        )
        names = [
            (tag, part_id) for tag, _, part_id in (e[0].decode().partition(" ") for e in entries)
        ]
        found = []
        for (tag, part_id), (member, score), part in zip(
            names, entries, self._outbox.read_many(names), strict=True
        ):
            if part is None or part.state in ("sent", "pending"):
                self._unindex(keys=[keys.PROBLEM_PARTS], args=[member, repr(score)])
            elif part.state == "refused" or not self._in_hand(tag, part_id):
                found.append(Problem(tag, part, int(score)))
        return found

    def replay(self, tag: str, part_id: str, replays: int) -> bool:
        """Put a problem part back to be sent, at its place before younger ones.

        ``replays`` is the number of its replays the caller saw: of two calls with the same number
        one does it. False when it did not, or when the part is no problem (any more).
        """
        user = UserKeys(tag)
        self._redis.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})
        done = self._replay(
            keys=[user.part(part_id), user.outbox, user.part(""), user.image(part_id)],
            args=[part_id, replays],
        )
        self._redis.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})
        return bool(done)

    def _in_hand(self, tag: str, part_id: str) -> bool:
        """True while the part is in its list: the sender goes on with it by itself."""
        return self._redis.lpos(UserKeys(tag).outbox, part_id) is not None

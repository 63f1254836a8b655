"""What is still to be said to a user: parts in order, each with what is known of its fate.

Owns the part hash, its states and the member's send budget. Knows nothing of WeCom's API; the
caller brings the verdict of each send.

::

    pending ──claim──> unknown ──settle──> sent | refused     ended, leaves the list
                          │ └────settle──> pending            surely not taken: try again
                          └─ nothing known: again byte for byte under the duplicate check

What ended as refused, or as unknown for too long, an administrator may put back
(``app.store.unsent``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import redis

from app.store import keys
from app.store.keys import UserKeys
from app.store.lease import Lease
from app.store.scripts import script
from app.wecom.reply import TEXT_LIMIT_BYTES

State = Literal["pending", "sent", "unknown", "refused"]
Verdict = Literal["claimed", "wait", "ended", "dropped", "gone", "moved", "lost"]

DUPLICATE_WINDOW_S = 4 * 3600
"""How long WeCom remembers a request for its duplicate check (the most it offers)."""
_CLOCK_MARGIN_S = 300
MEDIA_LIFE_S = 3 * 86_400 - 3600
"""WeCom keeps an uploaded image for three days."""
MAX_AGE_S = 24 * 3600
"""A part that could not be sent for a day is given up."""


@dataclass(frozen=True)
class Part:
    """One message to send. Times are ms since 1970, ``errcode`` is WeCom's, 0 when there is none.

    ``kind`` is ``answer``, ``notice`` (said besides), or ``ack`` or ``progress``, which may be
    left out; ``seq`` counts from 1 to ``total`` within an answer. An ``image`` is sent as one, and
    its ``body`` says in words what it shows.
    """

    id: str
    turn_id: str
    kind: str
    seq: int
    total: int
    body: str
    state: State
    attempts: int
    msgid: str
    errcode: int
    errmsg: str
    created_ms: int
    markdown: bool = False
    replays: int = 0
    image: bool = False

    @property
    def bridges(self) -> bool:
        """True for a line that only bridges the waiting."""
        return self.kind in ("ack", "progress")


@dataclass(frozen=True)
class Claim:
    """Whether a part may be sent now. ``claimed``: yes, and its outcome must be settled.

    Then ``body`` is the text: a repeated one got spaces at its end to be told from the first; and
    ``media_id`` is what WeCom calls the image, "" when it has none (any more).
    ``ended``: given up. ``dropped``: only bridged the waiting, which is over.
    """

    verdict: Verdict
    duplicate_check: bool = False
    wait_s: float = 0.0
    body: str = ""
    media_id: str = ""


@dataclass(frozen=True)
class Outcome:
    """What is known after a send. ``wait_s`` holds this user's deliveries back for a while;
    ``unreachable`` marks the user, who gets no bridging lines until something arrives again;
    ``media_gone``: WeCom has the image no more, it must be uploaded again."""

    state: State
    msgid: str = ""
    errcode: int = 0
    errmsg: str = ""
    wait_s: float = 0.0
    unreachable: bool = False
    media_gone: bool = False


class Outbox:
    """The outboxes of all users. Settled parts stay readable for ``ended_expiry_s``."""

    def __init__(self, client: redis.Redis, *, ended_expiry_s: int = keys.ENDED_EXPIRY_S) -> None:
        self._redis = client
        self._ended_expiry_s = ended_expiry_s
        self._claim = script(client, "claim_part")
        self._settle = script(client, "settle_part")
        self._acknowledge = script(client, "acknowledge")
        self._notice = script(client, "notice")
        self._keep_media = script(client, "keep_media")

    def head(self, tag: str) -> Part | None:
        """The oldest unsettled part of ``tag``. One that expired is skipped."""
        while True:
            part_id = self._redis.lindex(UserKeys(tag).outbox, 0)
            if not isinstance(part_id, bytes):
                return None
            part = self.read(tag, part_id.decode())
            if part is not None:
                return part
            self._redis.lrem(UserKeys(tag).outbox, 1, part_id.decode())

    def read(self, tag: str, part_id: str) -> Part | None:
        """A part by id; ended ones until they expire."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(UserKeys(tag).part(part_id)))
        return _part(raw) if raw else None

    def read_many(self, parts: Sequence[tuple[str, str]]) -> list[Part | None]:
        """As ``read`` for many pairs of tag and id in one go."""
        with self._redis.pipeline(transaction=False) as pipe:
            for tag, part_id in parts:
                pipe.hgetall(UserKeys(tag).part(part_id))
            answers: list[dict[bytes, bytes]] = pipe.execute()
        return [_part(raw) if raw else None for raw in answers]

    def of_turn(self, tag: str, turn_id: str) -> list[Part]:
        """The parts of one answer in order."""
        first = self.read(tag, f"{turn_id}:1")
        if first is None:
            return []
        rest = (self.read(tag, f"{turn_id}:{seq}") for seq in range(2, first.total + 1))
        return [first, *(part for part in rest if part is not None)]

    def about_turn(self, tag: str, turn_id: str) -> list[Part]:
        """Everything said about a turn: lines that bridged the waiting, its answer, notices."""
        bridging = [self.read(tag, f"{turn_id}:ack")]
        while bridging[-1] is not None or len(bridging) == 1:
            bridging.append(self.read(tag, f"{turn_id}:progress{len(bridging)}"))
        notice = self.read(tag, f"{turn_id}:unsendable")
        found = [*bridging, *self.of_turn(tag, turn_id), notice]
        return [part for part in found if part is not None]

    def claim(self, lease: Lease, part: Part) -> Claim:
        """Count an attempt at ``part`` and say whether and how it may be sent."""
        user = UserKeys(lease.tag)
        verdict, number, *text = self._claim(
            keys=[
                *(*self._keys(lease, part), user.sent_body(part.body), user.turn(part.turn_id)),
                user.image(part.id),
            ],
            args=[
                *(lease.token, part.id, (DUPLICATE_WINDOW_S - _CLOCK_MARGIN_S) * 1000),
                *(MAX_AGE_S * 1000, self._ended_expiry_s, TEXT_LIMIT_BYTES, MEDIA_LIFE_S * 1000),
            ],
        )
        name = cast(Verdict, verdict.decode())
        if name == "ended":
            self._note_problem(lease.tag, part)
        return Claim(
            name,
            duplicate_check=name == "claimed" and bool(number),
            wait_s=number / 1000 if name == "wait" else 0.0,
            body=text[0].decode() if text else "",
            media_id=text[1].decode() if text else "",
        )

    def image(self, tag: str, part_id: str) -> bytes | None:
        """The PNG of an image part."""
        png = self._redis.get(UserKeys(tag).image(part_id))
        return png if isinstance(png, bytes) else None

    def keep_media(self, lease: Lease, part: Part, media_id: str) -> bool:
        """Remember the upload of a claimed image before it is sent. False when the lease was lost:
        it must then not be sent under this id."""
        return bool(
            self._keep_media(keys=self._keys(lease, part), args=[lease.token, part.id, media_id])
        )

    def settle(self, lease: Lease, part: Part, outcome: Outcome) -> bool:
        """Record the outcome of a claimed part; False when the lease was lost meanwhile."""
        user = UserKeys(lease.tag)
        if outcome.state == "refused":
            self._note_problem(lease.tag, part)
        done = self._settle(
            keys=[
                *(*self._keys(lease, part), user.sent_body(part.body), user.send_wait),
                *(user.unreachable, user.image(part.id)),
            ],
            args=[
                *(lease.token, part.id, outcome.state, outcome.msgid, outcome.errcode),
                *(outcome.errmsg, int(outcome.wait_s * 1000), self._ended_expiry_s),
                *(int(outcome.unreachable), int(outcome.media_gone)),
            ],
        )
        return bool(done)

    def hold(self, tag: str, wait_s: float) -> None:
        """Send nothing to this user for ``wait_s``."""
        self._redis.set(UserKeys(tag).send_wait, b"1", px=max(1, int(wait_s * 1000)))

    def held(self, tag: str) -> bool:
        """True while deliveries to this user must wait."""
        return bool(self._redis.exists(UserKeys(tag).send_wait))

    def acknowledge(self, tag: str, turn_id: str, text: str) -> bool:
        """Append an acknowledgement, once per turn and only while it has no answer.

        "" marks the turn as acknowledged without a part. True when a part was added.
        """
        return self._bridge(tag, turn_id, "ack", text)

    def progress(self, tag: str, turn_id: str, text: str) -> bool:
        """Append a line about how a running turn gets on, or renew one that is not sent yet.

        True when a part was added.
        """
        return self._bridge(tag, turn_id, "progress", text)

    def notice(self, tag: str, turn_id: str, name: str, text: str) -> bool:
        """Append one more line about a turn, once for each ``name``. True when added."""
        user = UserKeys(tag)
        part_id = f"{turn_id}:{name}"
        added = self._notice(keys=[user.outbox, user.part(part_id)], args=[part_id, turn_id, text])
        self._redis.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})
        return bool(added)

    def unreachable(self, tag: str) -> int:
        """The error code with which WeCom refused this user lately, 0 when it did not."""
        code = self._redis.get(UserKeys(tag).unreachable)
        return int(code) if isinstance(code, bytes) else 0

    def _bridge(self, tag: str, turn_id: str, kind: str, text: str) -> bool:
        user = UserKeys(tag)
        self._redis.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})
        added = self._acknowledge(
            keys=[
                *(user.turn(turn_id), user.outbox, user.part(""), user.send_times),
                user.unreachable,
            ],
            args=[turn_id, kind, text],
        )
        self._redis.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})
        return bool(added)

    def _note_problem(self, tag: str, part: Part) -> None:
        """Show the part to an administrator; see ``app.store.unsent``."""
        if not part.bridges:
            problem = keys.problem_part(tag, part.id)
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.zadd(keys.PROBLEM_PARTS, {problem: int(time.time() * 1000)})
                pipe.zremrangebyrank(keys.PROBLEM_PARTS, 0, -keys.MOST_PROBLEM_PARTS - 1)
                pipe.execute()

    @staticmethod
    def _keys(lease: Lease, part: Part) -> list[str]:
        user = UserKeys(lease.tag)
        return [lease.fence_key, user.outbox, user.part(part.id), user.send_times]


def _part(raw: Mapping[bytes, bytes]) -> Part:
    fields = {k.decode(): v.decode() for k, v in raw.items()}
    return Part(
        id=fields["id"],
        turn_id=fields["turn_id"],
        kind=fields["kind"],
        seq=int(fields["seq"]),
        total=int(fields["total"]),
        body=fields["body"],
        state=cast(State, fields["state"]),
        attempts=int(fields["attempts"]),
        msgid=fields.get("msgid", ""),
        errcode=int(fields.get("errcode") or 0),
        errmsg=fields.get("errmsg", ""),
        created_ms=int(fields["created_ms"]),
        markdown=fields.get("markdown") == "1",
        replays=int(fields.get("replays") or 0),
        image=fields.get("image") == "1",
    )

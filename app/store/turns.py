"""The life of a turn: queued, running, then done, failed or parked.

Owns the turn hash and the one script that ends a turn. Knows nothing of the model, of how an
answer is made or of how it is sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import redis

from app.store import keys
from app.store.keys import UserAddress, UserKeys, split_tag
from app.store.lease import Lease
from app.store.scripts import script

Status = Literal["queued", "running", "done", "failed", "parked"]
Verdict = Literal["begun", "parked", "gone", "moved", "lost"]

MAX_ATTEMPTS = 3
MAX_SESSION_TURNS = 20


@dataclass(frozen=True)
class Turn:
    """One message and what became of it. Times are ms since 1970, 0 when not reached.

    ``steps`` is a JSON list, the model's reasoning included; ``error`` is a code or "".
    """

    id: str
    tag: str
    msg_type: str
    text: str
    status: Status
    event: str = ""
    event_key: str = ""
    media_id: str = ""
    msg_id: str = ""
    dry_run: bool = False
    attempts: int = 0
    epoch: int = 0
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    acked_ms: int = 0
    progress_ms: int = 0
    steps: str = "[]"
    answer: str = ""
    error: str = ""

    @property
    def address(self) -> UserAddress:
        """Whose turn it is."""
        return split_tag(self.tag)

    @property
    def user(self) -> str:
        """The member's user id."""
        return self.address.user

    @property
    def ended(self) -> bool:
        """True when nothing will change any more."""
        return self.status in ("done", "failed", "parked")


@dataclass(frozen=True)
class Begin:
    """Whether a turn may be worked on, and the number of attempts so far.

    ``begun``: work. ``parked``: it was tried too often; end it with an honest line. ``gone``: it
    had expired and was dropped. ``moved``: it is not the oldest any more. ``lost``: the lease is.
    """

    verdict: Verdict
    attempts: int


MAX_IMAGE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Image:
    """A PNG of at most ``MAX_IMAGE_BYTES``; ``caption`` says in words what it shows."""

    png: bytes
    caption: str

    def __post_init__(self) -> None:
        assert 0 < len(self.png) <= MAX_IMAGE_BYTES, "Redis keeps it until the part expires"


@dataclass(frozen=True)
class Finish:
    """How a turn ends. ``parts`` are texts of at most 2048 bytes each, in order; ``image`` comes
    after them.

    ``markdown``: the parts are sent as messages of that type. ``session_document`` (JSON, ""
    for none) joins the session of the time the message came.
    """

    status: Status
    answer: str
    parts: tuple[str, ...] = ()
    steps: str = "[]"
    error: str = ""
    session_document: str = ""
    session_expiry_s: float = 7200.0
    markdown: bool = False
    image: Image | None = None


class Turns:
    """All turns. Ended ones stay readable for ``ended_expiry_s``."""

    def __init__(self, client: redis.Redis, *, ended_expiry_s: int = keys.ENDED_EXPIRY_S) -> None:
        self._redis = client
        self._ended_expiry_s = ended_expiry_s
        self._begin = script(client, "begin_turn")
        self._record_steps = script(client, "record_steps")
        self._finish = script(client, "finish_turn")

    def get(self, turn_id: str) -> Turn | None:
        """The turn, or ``None`` when it is unknown or ended so long ago that it expired."""
        tag = self._redis.get(keys.turn_index(turn_id))
        return self.read(tag.decode(), turn_id) if isinstance(tag, bytes) else None

    def read(self, tag: str, turn_id: str) -> Turn | None:
        """As ``get``, for a known user."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(UserKeys(tag).turn(turn_id)))
        return _turn(raw) if raw else None

    def read_many(self, turns: Sequence[tuple[str, str]]) -> list[Turn]:
        """As ``read`` for many pairs of tag and id in one go; unknown ones are left out."""
        with self._redis.pipeline(transaction=False) as pipe:
            for tag, turn_id in turns:
                pipe.hgetall(UserKeys(tag).turn(turn_id))
            answers: list[dict[bytes, bytes]] = pipe.execute()
        return [_turn(raw) for raw in answers if raw]

    def get_many(self, ids: Sequence[str]) -> list[Turn]:
        """As ``get`` for many ids in two goes; unknown ones are left out."""
        with self._redis.pipeline(transaction=False) as pipe:
            for turn_id in ids:
                pipe.get(keys.turn_index(turn_id))
            tags: list[bytes | None] = pipe.execute()
        known = [(tag.decode(), turn_id) for tag, turn_id in zip(tags, ids, strict=True) if tag]
        return self.read_many(known)

    def last_answered(self, tag: str, *, dry_run: bool = False) -> Turn | None:
        """The last turn of ``tag`` that the model answered since the memory was cleared.

        With ``dry_run`` the last dry run, where there is one; otherwise dry runs do not count.
        """
        user = UserKeys(tag)
        kinds = ("dry", "real") if dry_run else ("real",)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(user.answered, *kinds)
            pipe.get(user.epoch)
            ids, epoch = pipe.execute()
        turn_id = next((found for found in ids if found), None)
        turn = self.read(tag, turn_id.decode()) if turn_id else None
        return turn if turn and turn.epoch == int(epoch or 0) else None

    def begin(self, lease: Lease, turn_id: str) -> Begin:
        """Count an attempt at ``turn_id``; must be called before any work is done for it."""
        user = UserKeys(lease.tag)
        verdict, attempts = self._begin(
            keys=[lease.fence_key, user.inbox, user.turn(turn_id)],
            args=[lease.token, turn_id, MAX_ATTEMPTS],
        )
        if verdict == b"gone":
            self._redis.zrem(keys.QUEUE, turn_id)
        return Begin(verdict.decode(), int(attempts))

    def record_steps(self, lease: Lease, turn_id: str, steps: str) -> bool:
        """Show ``steps`` (a JSON list) while the turn runs; False when the lease is lost."""
        user = UserKeys(lease.tag)
        done = self._record_steps(
            keys=[lease.fence_key, user.turn(turn_id)], args=[lease.token, steps]
        )
        return bool(done)

    def finish(self, lease: Lease, turn_id: str, finish: Finish) -> bool:
        """End a turn in one script: result, session, outbox and inbox together.

        False, and nothing written, when the lease was lost: another worker has the turn. The
        parts of a dry run are left out.
        """
        user = UserKeys(lease.tag)
        if finish.parts:
            self._index_outbox(lease.tag)
        ended = self._finish(
            keys=[
                *(lease.fence_key, user.inbox, user.turn(turn_id)),
                *(user.session(), user.outbox, user.part(""), user.image(""), user.answered),
            ],
            args=[
                *(lease.token, turn_id, finish.status, finish.answer, finish.steps, finish.error),
                *(finish.session_document, max(1, int(finish.session_expiry_s))),
                *(MAX_SESSION_TURNS, self._ended_expiry_s, int(finish.markdown)),
                finish.image.png if finish.image else "",
                finish.image.caption if finish.image else "",
                *finish.parts,
            ],
        )
        if not ended:
            return False
        if finish.parts:
            self._index_outbox(lease.tag)
        self._redis.zrem(keys.QUEUE, turn_id)
        return True

    def ended(self, lease: Lease, turn_id: str) -> bool:
        """True when a turn was ended while it ran: the user stopped it."""
        status = self._redis.hget(UserKeys(lease.tag).turn(turn_id), "status")
        return status in (b"done", b"failed", b"parked")

    def position(self, turn_id: str) -> int:
        """Number of turns ahead in the queue; 0 when it is next, running or ended."""
        rank = self._redis.zrank(keys.QUEUE, turn_id)
        return rank if isinstance(rank, int) else 0

    def trim_queue(self) -> int:
        """Take turns out of the queue that a crash left there after their end; returns how many."""
        ids = [item.decode() for item in cast("list[bytes]", self._redis.zrange(keys.QUEUE, 0, -1))]
        live = {turn.id for turn in self.get_many(ids) if not turn.ended}
        ended = [turn_id for turn_id in ids if turn_id not in live]
        return self._redis.zrem(keys.QUEUE, *ended) if ended else 0

    def _index_outbox(self, tag: str) -> None:
        self._redis.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})


def _turn(raw_fields: Mapping[bytes, bytes]) -> Turn:
    raw = {k.decode(): v.decode() for k, v in raw_fields.items()}
    return Turn(
        id=raw.get("id", ""),
        tag=raw.get("tag", ""),
        msg_type=raw.get("msg_type", ""),
        text=raw.get("text", ""),
        status=cast(Status, raw["status"]),
        event=raw.get("event", ""),
        event_key=raw.get("event_key", ""),
        media_id=raw.get("media_id", ""),
        msg_id=raw.get("msg_id", ""),
        dry_run=raw.get("dry_run") == "1",
        attempts=int(raw.get("attempts", 0)),
        epoch=int(raw.get("epoch", 0)),
        created_ms=int(raw.get("created_ms", 0)),
        started_ms=int(raw.get("started_ms", 0)),
        ended_ms=int(raw.get("ended_ms", 0)),
        acked_ms=int(raw.get("acked_ms", 0)),
        progress_ms=int(raw.get("progress_ms", 0)),
        steps=raw.get("steps", "[]"),
        answer=raw.get("answer", ""),
        error=raw.get("error", ""),
    )

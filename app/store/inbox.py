"""Takes messages in: each once, in order, so that an acknowledged one cannot be lost.

Owns the de-duplication, the inbox of each user and the index of users with pending work. Knows
nothing of HTTP, Celery or what an answer is.

The index lives outside the user's hash tag, so it cannot be part of the script. It is written
before and after: a message that was acknowledged is always indexed, and an index entry without
a message does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import redis

from app.store import keys, recent
from app.store.keys import UserKeys
from app.store.scripts import script
from app.wecom.message import InboundMessage
from app.wecom.reply import marked_parts


@dataclass(frozen=True)
class Put:
    """What became of a message.

    ``over_rate``: it was not taken. ``position`` is the number of turns ahead of it, 0 for a
    duplicate or when it is next.
    """

    turn_id: str
    tag: str
    duplicate: bool
    position: int
    over_rate: bool = False


Action = Literal["say", "new", "stop"]


@dataclass(frozen=True)
class Answered:
    """What became of a message answered beside the inbox. ``stopped`` is the turn it ended."""

    turn_id: str
    tag: str
    duplicate: bool
    stopped: str = ""


class Inbox:
    """The inboxes of all users. What is answered at once stays readable for ``ended_expiry_s``."""

    def __init__(self, client: redis.Redis, *, ended_expiry_s: int = keys.ENDED_EXPIRY_S) -> None:
        self._redis = client
        self._ended_expiry_s = ended_expiry_s
        self._put = script(client, "put")
        self._answer = script(client, "answer")

    def put(
        self,
        message: InboundMessage,
        turn_id: str,
        *,
        dry_run: bool = False,
        most_a_minute: int = 0,
    ) -> Put:
        """Take ``message`` as turn ``turn_id``, unless it was taken before, or its user has sent
        ``most_a_minute`` others (0: any number) in the last minute.

        A ``dry_run`` turn goes the whole way but its answer is not put into the outbox. Raises
        ``redis.RedisError`` when the message may not have been taken; the caller must then make
        the sender try again (a repeated put does no harm).
        """
        tag = keys.user_tag(message.corp_id, message.agent_id, message.from_user_name)
        user = UserKeys(tag)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zadd(keys.PENDING_USERS, {tag: time.time()})
            pipe.set(keys.turn_index(turn_id), tag, ex=2 * self._ended_expiry_s)
            pipe.execute()
        taken, first_id, now_ms = self._put(
            keys=[
                user.dedupe(message.dedupe_key),
                user.inbox,
                user.turn(turn_id),
                user.epoch,
                user.rate,
            ],
            args=[
                *(turn_id, keys.DEDUPE_EXPIRY_S, most_a_minute),
                *_fields(message, tag, dry_run),
            ],
        )
        if taken == 2:
            self._redis.delete(keys.turn_index(turn_id))
            return Put(turn_id, tag, duplicate=False, position=0, over_rate=True)
        # The same id again: this very call succeeded before its connection broke.
        new = bool(taken) or first_id.decode() == turn_id
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zadd(keys.PENDING_USERS, {tag: time.time()})
            if new:
                pipe.zadd(keys.QUEUE, {turn_id: now_ms}, nx=True)
                pipe.zrank(keys.QUEUE, turn_id)
                recent.note(pipe, turn_id, now_ms)
            else:
                pipe.delete(keys.turn_index(turn_id))
            result = pipe.execute()
        return Put(first_id.decode(), tag, not new, int(result[2] or 0) if new else 0)

    def answer(
        self,
        message: InboundMessage,
        turn_id: str,
        action: Action,
        text: str,
        *,
        idle_text: str = "",
        dry_run: bool = False,
    ) -> Answered:
        """Take ``message`` and answer it at once, unless it was taken before; needs no worker.

        ``say`` puts ``text`` into the outbox, cut as answers are; ``new`` begins an empty session
        as well. ``stop`` ends the running turn of the user with ``text``, so that nothing it still
        gives is kept; with none running the answer is ``idle_text``. Waiting messages stay. Raises
        ``redis.RedisError`` as ``put`` does.
        """
        tag = keys.user_tag(message.corp_id, message.agent_id, message.from_user_name)
        user = UserKeys(tag)
        parts = marked_parts(text)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})
            pipe.set(keys.turn_index(turn_id), tag, ex=2 * self._ended_expiry_s)
            pipe.execute()
        taken, first_id, stopped = self._answer(
            keys=[
                *(user.dedupe(message.dedupe_key), user.inbox, user.outbox),
                *(user.turn(""), user.part(""), user.epoch),
            ],
            args=[
                *(turn_id, keys.DEDUPE_EXPIRY_S, self._ended_expiry_s, action, text, idle_text),
                *(len(parts), *parts),
                *_fields(message, tag, dry_run),
            ],
        )
        new = bool(taken) or first_id.decode() == turn_id
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zadd(keys.PENDING_OUTBOXES, {tag: time.time()})
            if stopped:
                pipe.zrem(keys.QUEUE, stopped)
            if new:
                recent.note(pipe, turn_id, int(time.time() * 1000))
            else:
                pipe.delete(keys.turn_index(turn_id))
            pipe.execute()
        return Answered(first_id.decode(), tag, not new, stopped.decode())

    def pending(self, tags: Sequence[str]) -> dict[str, list[str]]:
        """Per tag, the ids of the turns that are not ended, oldest first."""
        with self._redis.pipeline(transaction=False) as pipe:
            for tag in tags:
                pipe.lrange(UserKeys(tag).inbox, 0, -1)
            answers: list[list[bytes]] = pipe.execute()
        return {
            tag: [item.decode() for item in items] for tag, items in zip(tags, answers, strict=True)
        }

    def head(self, tag: str) -> str | None:
        """Id of the oldest turn of ``tag`` that is not ended."""
        item = self._redis.lindex(UserKeys(tag).inbox, 0)
        return item.decode() if isinstance(item, bytes) else None


def _fields(message: InboundMessage, tag: str, dry_run: bool) -> list[str | bytes]:
    """Field, value, ... of the turn hash."""
    fields = {
        "tag": tag,
        "msg_id": message.msg_id,
        "msg_type": message.msg_type,
        "text": message.content,
        "event": message.event,
        "event_key": message.event_key,
        "media_id": message.media_id,
        "dry_run": "1" if dry_run else "0",
    }
    flat: list[str | bytes] = []
    for name, value in fields.items():
        # Half of a surrogate pair, possible in JSON, has no UTF-8 form.
        flat += [name, value.encode("utf-8", "replace")]
    return flat

"""What happens to a message before any worker sees it: rights, rate, commands, the inbox.

Owns the order of these and which fixed text answers what. Knows nothing of HTTP, of encryption or
of the model. Everything said here goes out through the outbox, so it is said once, even when all
turn workers are down.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import redis

from app import replies
from app.access import AccessPolicy, DepartmentsOf
from app.last_sql import LastSql, asks_for_sql
from app.log import fields
from app.metrics import Metrics
from app.plain_text import fold_full_width
from app.store import keys
from app.store.gate import Gate
from app.store.inbox import Inbox
from app.wecom.message import InboundMessage

logger = logging.getLogger(__name__)

NEW_COMMANDS = frozenset({"/new", "#清除记忆"})
HELP_COMMANDS = frozenset({"/help"})
STOP_COMMANDS = frozenset({"/stop"})
SQL_COMMAND = "/sql"
_LIKE_A_COMMAND = re.compile(r"/[a-z][a-z0-9_-]{0,31}")

Outcome = Literal["queued", "answered", "refused", "duplicate"]


@dataclass(frozen=True)
class Taken:
    """What became of a message. ``reason`` says why it was refused, "" otherwise."""

    turn_id: str
    outcome: Outcome
    position: int = 0
    reason: str = ""


@dataclass(frozen=True)
class IntakeLimits:
    """0 turns a limit off. ``most_queued`` counts the turns of all users, and a count may be
    ``queue_look_s`` old. Messages answered here stay readable for ``ended_expiry_s``."""

    user_rate_per_min: int = 60
    most_queued: int = 5000
    queue_look_s: float = 0.5
    ended_expiry_s: int = keys.ENDED_EXPIRY_S


def nobody_knows(user: str) -> frozenset[str] | None:
    """For installations without rules about departments."""
    return None


class Intake:
    """Takes messages. ``wake`` and ``deliver`` are hints that an inbox or outbox got something."""

    def __init__(
        self,
        client: redis.Redis,
        wake: Callable[[str], object],
        deliver: Callable[[str], object],
        policy: AccessPolicy | None = None,
        limits: IntakeLimits | None = None,
        departments_of: DepartmentsOf = nobody_knows,
        metrics: Metrics | None = None,
    ) -> None:
        self._limits = limits or IntakeLimits()
        self._inbox = Inbox(client, ended_expiry_s=self._limits.ended_expiry_s)
        self._gate = Gate(client)
        self._last_sql = LastSql(client)
        self._metrics = metrics or Metrics()
        self._wake = wake
        self._deliver = deliver
        self._policy = policy or AccessPolicy()
        self._departments_of = departments_of
        self._looked_s = float("-inf")
        self._seen = 0

    def take(self, message: InboundMessage, turn_id: str, *, dry_run: bool = False) -> Taken:
        """Refuse, answer or queue ``message``. Raises ``redis.RedisError`` when it may not have
        been stored; a repeated call does no harm."""
        taken = self._take(message, turn_id, dry_run)
        self._metrics.count("hutong_messages", outcome=taken.outcome, reason=taken.reason)
        logger.info(
            "duplicate ignored" if taken.outcome == "duplicate" else f"message {taken.outcome}",
            extra=fields(
                turn_id=taken.turn_id,
                user=message.from_user_name,
                msg_type=message.msg_type,
                characters=len(message.content),
                position=taken.position,
                reason=taken.reason,
                message_text=message.content,
            ),
        )
        return taken

    def _take(self, message: InboundMessage, turn_id: str, dry_run: bool) -> Taken:
        tag = keys.user_tag(message.corp_id, message.agent_id, message.from_user_name)
        command = _command(message)
        refusal = self._refusal(message, tag, command)
        if refusal:
            return self._refuse(message, turn_id, tag, dry_run, *refusal)
        if command in HELP_COMMANDS:
            return self._say(message, turn_id, replies.HELP, dry_run)
        if command == SQL_COMMAND:
            return self._say(message, turn_id, self._last_sql.text(tag, dry_run=dry_run), dry_run)
        if command in NEW_COMMANDS or command in STOP_COMMANDS:
            new = command in NEW_COMMANDS
            answered = self._inbox.answer(
                message,
                turn_id,
                "new" if new else "stop",
                replies.NEW_SESSION if new else replies.STOPPED,
                idle_text=replies.NOTHING_TO_STOP,
                dry_run=dry_run,
            )
            self._deliver(tag)
            return Taken(answered.turn_id, "duplicate" if answered.duplicate else "answered")
        if command:
            return self._say(message, turn_id, replies.UNKNOWN_COMMAND, dry_run)
        most = (
            0 if self._policy.is_admin(message.from_user_name) else self._limits.user_rate_per_min
        )
        put = self._inbox.put(message, turn_id, dry_run=dry_run, most_a_minute=most)
        if put.over_rate:
            return self._refuse(message, turn_id, tag, dry_run, "rate", replies.TOO_OFTEN)
        if put.duplicate:
            return Taken(put.turn_id, "duplicate")
        self._wake(tag)
        return Taken(put.turn_id, "queued", put.position)

    def _refusal(self, message: InboundMessage, tag: str, command: str) -> tuple[str, str] | None:
        """Reason and text when the message is not to be worked on."""
        user = message.from_user_name
        allowed = self._policy.may_write(user, self._departments_of)
        if allowed is None:
            return "rights_unknown", replies.RIGHTS_UNKNOWN
        if not allowed:
            return "not_allowed", replies.NOT_ALLOWED
        if command in STOP_COMMANDS or self._policy.is_admin(user):
            return None
        rate, most = self._limits.user_rate_per_min, self._limits.most_queued
        if command and rate and not self._gate.within_rate(tag, message.dedupe_key, rate):
            return "rate", replies.TOO_OFTEN
        if most and not command and self._queued() >= most:
            return "overload", replies.OVERLOADED
        return None

    def _queued(self) -> int:
        """Length of the queue, at most ``queue_look_s`` old."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._limits.queue_look_s:
            self._looked_s, self._seen = now_s, self._gate.queued()
        return self._seen

    def _refuse(
        self,
        message: InboundMessage,
        turn_id: str,
        tag: str,
        dry_run: bool,
        reason: str,
        text: str,
    ) -> Taken:
        """One line a minute at most; an event (somebody opened the app) gets none. Of a dry run
        the user hears nothing."""
        if message.msg_type == "event" or not (dry_run or self._gate.tells_now(tag)):
            return Taken(turn_id, "refused", reason=reason)
        said = self._say(message, turn_id, text, dry_run)
        if said.outcome == "duplicate":
            return said
        return Taken(said.turn_id, "refused", reason=reason)

    def _say(self, message: InboundMessage, turn_id: str, text: str, dry_run: bool) -> Taken:
        answered = self._inbox.answer(message, turn_id, "say", text, dry_run=dry_run)
        self._deliver(answered.tag)
        return Taken(answered.turn_id, "duplicate" if answered.duplicate else "answered")


def _command(message: InboundMessage) -> str:
    """The command a text consists of, also one that does not exist; "" for other texts. A plain
    sentence that asks for the SQL is ``/sql``."""
    if message.msg_type != "text":
        return ""
    text = fold_full_width(message.content).strip().lower()
    if asks_for_sql(text):
        return SQL_COMMAND
    return text if text in NEW_COMMANDS or _LIKE_A_COMMAND.fullmatch(text) else ""

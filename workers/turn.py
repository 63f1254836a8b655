"""One turn of one user: from the inbox to an ended turn with its reply in the outbox.

Owns the order of things: lease, attempt counted, work, one script that ends the turn. Knows
nothing of Celery, of the model behind the agent or of how a reply is sent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import redis

from app.log import fields
from app.metrics import Metrics
from app.plain_text import fold_full_width, has_words
from app.store import keys
from app.store.inbox import Inbox
from app.store.lease import Lease, Leases
from app.store.sessions import Sessions
from app.store.turns import Finish, Image, Turn, Turns
from app.wecom.markdown import to_text, to_wecom_markdown
from app.wecom.reply import marked_parts
from inference.errors import InferenceError
from inference.protocol import Message
from workers import replies
from workers.agent.steps import AgentResult, Step
from workers.agent.transcript import from_json, to_json
from workers.step_metrics import count_step

if TYPE_CHECKING:
    # The sender's image, which imports this module, has no tools.
    from tools.base import Table

log = logging.getLogger(__name__)

GREETING_INTERVAL_S = 86_400
STOP_POLL_S = 0.3
FINISH_PATIENCE_S = 60.0
"""An answer in hand is kept this long while Redis is away."""


class Agent(Protocol):
    """Answers one question; see ``workers.agent.loop.Agent``."""

    def run(
        self,
        question: str,
        history: Sequence[Message] = (),
        *,
        user: str,
        deadline_s: float,
        cancelled: Callable[[], bool],
        on_step: Callable[[Step], None],
    ) -> AgentResult:
        """Blocks until answered, cancelled or out of time (``time.monotonic()``)."""
        ...


@dataclass(frozen=True)
class TurnLimits:
    """Times of a turn and of what is remembered of it, in seconds."""

    turn_timeout_s: float = 120.0
    session_expiry_s: float = 7200.0
    lease_ttl_s: float = 10.0
    ended_expiry_s: int = keys.ENDED_EXPIRY_S


Draw = Callable[["Table"], bytes]
"""A PNG of a table that chat text cannot show well, b"" for any other table."""


class TurnRunner:
    """Works on users' inboxes; safe to call from many threads and many processes.

    ``markdown`` answers in WeCom's Markdown rather than text; ``draw`` makes images of tables.
    ``on_reply(tag)`` and ``on_more(tag)`` are told that an outbox got a reply and that an inbox
    holds more; both are hints. ``on_broken()`` is told that this process can answer nobody.
    """

    def __init__(
        self,
        client: redis.Redis,
        agent: Agent,
        limits: TurnLimits | None = None,
        *,
        markdown: bool = False,
        draw: Draw | None = None,
        on_reply: Callable[[str], object] = lambda tag: None,
        on_more: Callable[[str], object] = lambda tag: None,
        on_broken: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        metrics: Metrics | None = None,
    ) -> None:
        self._redis = client
        self._agent = agent
        self._limits = limits or TurnLimits()
        self._markdown = markdown
        self._draw = draw
        self._inbox = Inbox(client)
        self._turns = Turns(client, ended_expiry_s=self._limits.ended_expiry_s)
        self._sessions = Sessions(client)
        self._leases = Leases(client, "turn", self._limits.lease_ttl_s)
        self._on_reply = on_reply
        self._on_more = on_more
        self._on_broken = on_broken
        self._clock = clock
        self._metrics = metrics or Metrics()
        self._broken = threading.Event()

    def drain(self, tag: str) -> None:
        """Work on the oldest message of ``tag``; returns at once when somebody else does.

        One message per call, and a hint for the rest, so that users take turns. Raises
        ``redis.RedisError`` when Redis is away; nothing is lost then.
        """
        if self._broken.is_set():
            return
        lease = self._leases.acquire(tag)
        if lease is None:
            return
        with lease:
            going_on = self._work(lease)
        if going_on and self._inbox.head(tag) is not None:
            self._on_more(tag)

    def _work(self, lease: Lease) -> bool:
        """One message; False when the next one should not be tried right away."""
        turn_id = self._inbox.head(lease.tag)
        if turn_id is None:
            return False
        begin = self._turns.begin(lease, turn_id)
        if begin.verdict in ("lost", "moved", "gone"):
            return begin.verdict != "lost"
        turn = self._turns.read(lease.tag, turn_id)
        assert turn is not None, "begin saw the hash and ended turns only expire"
        if begin.verdict == "parked":
            log.error("turn parked", extra=fields(turn_id=turn_id, attempts=begin.attempts))
            text = replies.PARKED.format(turn_id=turn_id)
            return self._end(lease, turn, _said("parked", text, turn.steps, "parked"))
        started = self._clock()
        if begin.attempts > 1:
            self._metrics.count("hutong_redeliveries")
        wait_s = max(0.0, time.time() - turn.created_ms / 1000)
        self._metrics.observe("hutong_turn_wait_seconds", wait_s)
        try:
            finish = self._reply(lease, turn)
        except InferenceError as error:
            if error.retryable:
                log.error(
                    "engine gone; turn kept for another worker",
                    extra=fields(turn_id=turn_id, error=type(error).__name__),
                )
                self._broken.set()
                self._on_broken()
                return False
            finish = self._failed(turn, error)
        except redis.RedisError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary of a turn
            finish = self._failed(turn, error)
        took_ms = int((self._clock() - started) * 1000)
        self._metrics.count("hutong_turns", status=finish.status)
        self._metrics.observe("hutong_turn_seconds", took_ms / 1000)
        log.info(
            "turn ended",
            extra=fields(
                turn_id=turn_id, status=finish.status, attempt=begin.attempts, took_ms=took_ms
            ),
        )
        return self._end(lease, turn, finish)

    def _reply(self, lease: Lease, turn: Turn) -> Finish:
        """What to answer; kinds we cannot read never reach the model."""
        if turn.msg_type == "event":
            return self._event(turn)
        if turn.msg_type != "text":
            return _said("done", replies.UNSUPPORTED)
        if not turn.text.strip():
            return _said("done", replies.EMPTY)
        if not has_words(turn.text):
            return _said("done", replies.WORDLESS)
        return self._ask(lease, turn)

    def _event(self, turn: Turn) -> Finish:
        if turn.event.startswith("template_card"):
            return _said("done", replies.UNSUPPORTED)
        if turn.event in ("subscribe", "enter_agent") and self._greets_now(turn):
            return _said("done", replies.GREETING)
        return Finish(status="done", answer="")

    def _greets_now(self, turn: Turn) -> bool:
        """Once a day and user; a second attempt at the same turn greets as the first would."""
        key = keys.UserKeys(turn.tag).greeted
        first = self._redis.set(key, turn.id, nx=True, ex=GREETING_INTERVAL_S)
        return bool(first) or self._redis.get(key) == turn.id.encode()

    def _ask(self, lease: Lease, turn: Turn) -> Finish:
        steps: list[Step] = []

        def on_step(step: Step) -> None:
            steps.append(step)
            count_step(self._metrics, step)
            try:
                self._turns.record_steps(lease, turn.id, _steps_json(steps))
            except redis.RedisError as error:
                # Only a view for the admin; the end of the turn writes all steps.
                log.warning(
                    "step not recorded", extra=fields(turn_id=turn.id, error=type(error).__name__)
                )

        result = self._agent.run(
            fold_full_width(turn.text),
            self._history(turn),
            user=turn.user,
            deadline_s=self._clock() + self._limits.turn_timeout_s,
            cancelled=_Cancelled(self._turns, lease, turn.id, self._clock),
            on_step=on_step,
        )
        fallback = replies.TIMEOUT if result.status == "timeout" else _failed_text(turn)
        convert = to_wecom_markdown if self._markdown else to_text
        text = convert(result.text).strip() or fallback
        messages = [to_json(message) for message in result.messages]
        return Finish(
            status="done" if result.status == "ok" else "failed",
            answer=text,
            parts=tuple(marked_parts(text)),
            steps=_steps_json(result.steps or steps),
            error="" if result.status == "ok" else result.status,
            session_document=_json(messages) if messages else "",
            session_expiry_s=self._limits.session_expiry_s,
            markdown=self._markdown,
            image=self._image(turn, result.table),
        )

    def _image(self, turn: Turn, table: Table | None) -> Image | None:
        """The table as an image where that shows more than the text does."""
        if self._draw is None or table is None or turn.dry_run:
            return None
        try:
            png = self._draw(table)
        except (OSError, ValueError) as error:
            # The text is the answer, with or without its image.
            log.error("table not drawn", extra=fields(turn_id=turn.id, error=type(error).__name__))
            return None
        size = {"rows": len(table.rows), "columns": len(table.columns)}
        return Image(png, replies.TABLE_IMAGE.format(**size)) if png else None

    def _history(self, turn: Turn) -> list[Message]:
        history: list[Message] = []
        try:
            for document in self._sessions.load(turn.tag, turn.epoch):
                history += [from_json(record) for record in json.loads(document)]
        except (ValueError, KeyError, TypeError) as error:
            # Written by another version: an answer without memory beats none.
            log.warning(
                "session not readable, starting anew", extra=fields(error=type(error).__name__)
            )
            return []
        return history

    def _failed(self, turn: Turn, error: Exception) -> Finish:
        log.error("turn failed", extra=fields(turn_id=turn.id), exc_info=error)
        current = self._turns.read(turn.tag, turn.id)
        steps = current.steps if current else "[]"
        return _said("failed", _failed_text(turn), steps, type(error).__name__)

    def _end(self, lease: Lease, turn: Turn, finish: Finish) -> bool:
        limit = self._clock() + FINISH_PATIENCE_S
        while True:
            try:
                ended = self._turns.finish(lease, turn.id, finish)
                break
            except (redis.ConnectionError, redis.TimeoutError):
                if self._clock() >= limit:
                    raise
                time.sleep(0.5)
        if not ended:
            stopped = self._turns.ended(lease, turn.id)
            log.warning("result dropped", extra=fields(turn_id=turn.id, stopped=stopped))
            return stopped
        if finish.parts and not turn.dry_run:
            self._on_reply(turn.tag)
        return True


class _Cancelled:
    """Says whether a running turn should stop: its lease is lost, or its user stopped it.

    Asked at every token, so Redis is asked only every ``STOP_POLL_S``.
    """

    def __init__(
        self, turns: Turns, lease: Lease, turn_id: str, clock: Callable[[], float]
    ) -> None:
        self._turns = turns
        self._lease = lease
        self._turn_id = turn_id
        self._clock = clock
        self._next_s = clock() + STOP_POLL_S
        self._stopped = False

    def __call__(self) -> bool:
        if not self._stopped and self._clock() >= self._next_s:
            self._next_s = self._clock() + STOP_POLL_S
            # Without Redis the turn goes on: the script that ends it has the last word.
            with contextlib.suppress(redis.RedisError):
                self._stopped = self._turns.ended(self._lease, self._turn_id)
        return self._stopped or self._lease.lost.is_set()


def _said(
    status: str,
    text: str,
    steps: str = "[]",
    error: str = "",
) -> Finish:
    """The end of a turn that says ``text`` and leaves nothing in the session."""
    return Finish(
        status=status,  # type: ignore[arg-type]
        answer=text,
        parts=tuple(marked_parts(text)),
        steps=steps,
        error=error,
    )


def _failed_text(turn: Turn) -> str:
    return replies.FAILED.format(turn_id=turn.id)


def _steps_json(steps: Sequence[Step]) -> str:
    return _json([step.to_json() for step in steps])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)

"""What happened, in order: chat messages, delivery states, log lines. In memory, thread-safe.

One growing list of events with increasing ``seq``; readers ask for what is new since a ``seq``
and may wait for it. Knows no HTTP and no WeCom rules.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Sender = Literal["employee", "app"]
DeliveryProgress = Literal["sending", "delivered", "failed"]

MAX_EVENTS = 20_000


@dataclass(frozen=True)
class ChatMessage:
    """One bubble. ``cut_bytes``: bytes of the text that the service dropped at its limit."""

    seq: int
    user_id: str
    sender: Sender
    kind: str
    text: str
    msg_id: str
    time_s: float
    cut_bytes: int = 0


@dataclass(frozen=True)
class DeliveryState:
    """How far the callback of an employee's message has come."""

    seq: int
    user_id: str
    msg_id: str
    state: DeliveryProgress
    attempts: int


@dataclass(frozen=True)
class LogLine:
    """One line of the log drawer. Never holds tokens, keys or message text."""

    seq: int
    time_s: float
    direction: Literal["out", "in"]
    title: str
    detail: str
    ok: bool


Event = ChatMessage | DeliveryState | LogLine


class Conversations:
    """The events of one simulator."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds since the epoch."""
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._last_seq = 0
        self._changed = threading.Condition()

    def add_message(
        self,
        user_id: str,
        sender: Sender,
        text: str,
        msg_id: str,
        *,
        kind: str = "text",
        cut_bytes: int = 0,
    ) -> ChatMessage:
        """Append a bubble to the conversation of ``user_id``."""
        with self._changed:
            message = ChatMessage(
                self._next(), user_id, sender, kind, text, msg_id, self._clock(), cut_bytes
            )
            self._append(message)
            return message

    def set_delivery(
        self, user_id: str, msg_id: str, state: DeliveryProgress, attempts: int
    ) -> None:
        """Record how far the callback of ``msg_id`` has come."""
        with self._changed:
            self._append(DeliveryState(self._next(), user_id, msg_id, state, attempts))

    def log(self, direction: Literal["out", "in"], title: str, detail: str, *, ok: bool) -> None:
        """Append a line to the drawer; ``out`` is what the service sent to the app."""
        with self._changed:
            self._append(LogLine(self._next(), self._clock(), direction, title, detail, ok))

    def since(self, seq: int, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        """Events after ``seq``, oldest first; waits up to ``wait_s`` for the first of them."""
        with self._changed:
            self._changed.wait_for(lambda: self._last_seq > seq, timeout=wait_s)
            return tuple(e for e in self._events if e.seq > seq)

    def messages(self, user_id: str, after: int, *, wait_s: float = 0.0) -> tuple[ChatMessage, ...]:
        """Bubbles of one employee after ``after``; waits up to ``wait_s`` for the first."""

        def found() -> tuple[ChatMessage, ...]:
            return tuple(
                e
                for e in self._events
                if isinstance(e, ChatMessage) and e.seq > after and e.user_id == user_id
            )

        with self._changed:
            self._changed.wait_for(lambda: bool(found()), timeout=wait_s)
            return found()

    def _next(self) -> int:
        self._last_seq += 1
        return self._last_seq

    def _append(self, event: Event) -> None:
        self._events.append(event)
        self._changed.notify_all()

"""What happened, in order: chat messages, delivery states, log lines. In memory, thread-safe.

One growing list of events with increasing ``seq``; readers ask for what is new since a ``seq``
and may wait for it. Knows no HTTP and no WeCom rules.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
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
    media_id: str = ""
    card: str = ""


@dataclass(frozen=True)
class Change:
    """A bubble of the app was taken back or its card changed; ``text`` is what it shows now."""

    seq: int
    user_id: str
    msg_id: str
    change: Literal["recalled", "updated"]
    text: str


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


Event = ChatMessage | Change | DeliveryState | LogLine


class Conversations:
    """The events of one simulator."""

    def __init__(self, clock: Callable[[], float], max_events: int = MAX_EVENTS) -> None:
        """``clock`` gives seconds since the epoch; the oldest of ``max_events`` are forgotten."""
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=max_events)
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
        media_id: str = "",
        card: str = "",
    ) -> ChatMessage:
        """Append a bubble to the conversation of ``user_id``."""
        with self._changed:
            message = ChatMessage(
                *(self._next(), user_id, sender, kind, text, msg_id, self._clock()),
                cut_bytes=cut_bytes,
                media_id=media_id,
                card=card,
            )
            self._append(message)
            return message

    def recall(self, msg_id: str) -> None:
        """Take the app's message back from everybody who has it."""
        self._change(msg_id, "recalled", "")

    def update_card(self, msg_id: str, text: str) -> None:
        """Show ``text`` on the card of the app's message."""
        self._change(msg_id, "updated", text)

    def _change(self, msg_id: str, change: Literal["recalled", "updated"], text: str) -> None:
        with self._changed:
            users = [
                e.user_id
                for e in self._events
                if isinstance(e, ChatMessage) and e.sender == "app" and e.msg_id == msg_id
            ]
            for user_id in users:
                self._append(Change(self._next(), user_id, msg_id, change, text))

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
            new = min(self._last_seq - seq, len(self._events))
            if new <= 0:
                return ()
            newest = list(islice(reversed(self._events), new))
            return tuple(reversed(newest))

    def messages(self, user_id: str, after: int, *, wait_s: float = 0.0) -> tuple[ChatMessage, ...]:
        """Bubbles of one employee after ``after``; waits up to ``wait_s`` for the first."""

        def found() -> tuple[ChatMessage, ...]:
            recalled = {
                e.msg_id for e in self._events if isinstance(e, Change) and e.change == "recalled"
            }
            return tuple(
                e
                for e in self._events
                if isinstance(e, ChatMessage)
                and e.seq > after
                and e.user_id == user_id
                and e.msg_id not in recalled
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

"""One simulated WeCom: its parts wired together, and what an employee or admin can do with it.

Knows no HTTP server; ``web.py`` puts it on the network.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from app.simulator import callback_xml
from app.simulator.caller import Caller, Verification
from app.simulator.conversations import ChatMessage, Conversations, DeliveryProgress
from app.simulator.corp import Corp
from app.simulator.send import MessageSend, visible_text
from app.simulator.tokens import AccessTokens

MAX_TYPED_BYTES = 64 * 1024


class UnknownEmployeeError(Exception):
    """No member of the company has this id."""


class UnknownKindError(Exception):
    """No such kind of message."""


class Simulator:
    """The whole service for one company with one app."""

    def __init__(
        self,
        corp: Corp,
        callback_url: str,
        *,
        clock: Callable[[], float] = time.time,
        callback_timeout_s: float = 5.0,
        retry_pause_s: float = 1.0,
    ) -> None:
        """``clock`` gives seconds since the epoch, for token life and rate limits."""
        self.corp = corp
        self.boot_id = secrets.token_hex(8)
        self.conversations = Conversations(clock)
        self.tokens = AccessTokens(corp, clock)
        self.message_send = MessageSend(corp, self.conversations, clock)
        self.caller = Caller(
            corp,
            callback_url,
            self.conversations,
            clock,
            timeout_s=callback_timeout_s,
            retry_pause_s=retry_pause_s,
        )

    def say(
        self, user_id: str, text: str, *, kind: str = "text"
    ) -> tuple[ChatMessage, threading.Thread]:
        """An employee sends a message; the callback is delivered in the background.

        Returns the bubble, which carries the MsgId, and the delivering thread.
        Raises ``UnknownEmployeeError`` and ``UnknownKindError``.
        """
        user_id = self._member(user_id)
        if kind == "text":
            msg_id, plain = self.caller.message_xml(user_id, {"Content": text}, kind="text")
        elif kind in callback_xml.KINDS:
            msg_id, plain = self.caller.message_xml(user_id, callback_xml.KINDS[kind], kind=kind)
        else:
            raise UnknownKindError(kind)
        bubble = self.conversations.add_message(user_id, "employee", text, msg_id, kind=kind)
        self.conversations.set_delivery(user_id, msg_id, "sending", 0)
        title = f"{user_id} 的{callback_xml.KIND_TITLES[kind]}消息"
        return bubble, self._in_background(user_id, msg_id, plain, title)

    def event(self, user_id: str, event: str, event_key: str = "") -> threading.Thread:
        """An event of an employee, for example ``enter_agent``, delivered in the background."""
        user_id = self._member(user_id)
        plain = self.caller.event_xml(user_id, event, event_key)
        return self._in_background(user_id, "", plain, f"{user_id} 的事件 {event}")

    def verify_url(self) -> Verification:
        """The admin console checks the callback URL."""
        return self.caller.verify_url()

    def _member(self, user_id: str) -> str:
        employee = self.corp.employee(user_id)
        if employee is None:
            raise UnknownEmployeeError(user_id)
        return employee.user_id

    def _in_background(
        self, user_id: str, msg_id: str, plain: bytes, title: str
    ) -> threading.Thread:
        def run() -> None:
            delivery = self.caller.deliver(plain, title=title)
            if msg_id:
                state: DeliveryProgress = "delivered" if delivery.ok else "failed"
                self.conversations.set_delivery(user_id, msg_id, state, len(delivery.attempts))
            if delivery.reply_text:
                text, cut_bytes = visible_text(delivery.reply_text)
                self.conversations.add_message(user_id, "app", text, "passive", cut_bytes=cut_bytes)

        thread = threading.Thread(target=run, name=f"callback-{msg_id or 'event'}", daemon=True)
        thread.start()
        return thread

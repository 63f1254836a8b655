"""One simulated WeCom: its parts wired together, and what an employee or admin can do with it.

Knows no HTTP server; ``web.py`` puts it on the network.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable

from app.simulator import callback_xml
from app.simulator.callback_xml import Fields
from app.simulator.caller import Caller, Verification
from app.simulator.conversations import (
    MAX_EVENTS,
    ChatMessage,
    Conversations,
    DeliveryProgress,
)
from app.simulator.corp import Corp
from app.simulator.faults import FaultScript
from app.simulator.limits import Limits, Throttle
from app.simulator.media import MediaStore
from app.simulator.payloads import visible_text
from app.simulator.send import MessageSend
from app.simulator.tokens import LIFETIME_S, AccessTokens

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
        token_lifetime_s: float = LIFETIME_S,
        limits: Limits | None = None,
        max_events: int = MAX_EVENTS,
        fault_seed: int | None = None,
    ) -> None:
        """``clock`` gives seconds since the epoch, for token life and rate limits."""
        self.corp = corp
        self.boot_id = secrets.token_hex(8)
        self.conversations = Conversations(clock, max_events)
        self.faults = FaultScript(fault_seed)
        self.throttle = Throttle(limits or Limits(), len(corp.employees), clock)
        self.tokens = AccessTokens(clock, token_lifetime_s)
        self.media = MediaStore(clock)
        self.message_send = MessageSend(corp, self.conversations, clock, self.throttle, self.media)
        self.trusted_ips: frozenset[str] | None = None
        """企业可信IP; None trusts every address, as apps from before June 2022 do."""
        self.caller = Caller(
            corp,
            callback_url,
            self.conversations,
            clock,
            faults=self.faults,
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

    def event(
        self, user_id: str, event: str, event_key: str = "", *, fields: Fields | None = None
    ) -> threading.Thread:
        """An event of an employee, for example ``enter_agent``, delivered in the background.

        ``fields`` replace the sample fields of the event. Raises ``UnknownEmployeeError``.
        """
        user_id = self._member(user_id)
        own = callback_xml.EVENTS.get(event, {}) if fields is None else fields
        plain = self.caller.event_xml(user_id, event, event_key, own)
        return self._in_background(user_id, "", plain, f"{user_id} 的事件 {event}")

    def approvals(self, count: int) -> list[threading.Thread]:
        """``count`` approval events of one second from ``sys``: they differ in SpNo only."""
        if count < 1:
            return []
        plains: list[bytes] = []
        while len({_create_time(plain) for plain in plains}) != 1:
            plains = [
                self.caller.event_xml(
                    *("sys", "sys_approval_change", ""),
                    {"ApprovalInfo": {"SpNo": f"20221115{number:04d}", "SpStatus": 1}},
                )
                for number in range(count)
            ]
        title = "事件 sys_approval_change"
        return [self._in_background("sys", "", plain, title) for plain in plains]

    def trusts(self, address: str) -> bool:
        """Whether calls from ``address`` are let in."""
        return self.trusted_ips is None or address in self.trusted_ips

    def verify_url(self) -> Verification:
        """The admin console checks the callback URL."""
        return self.caller.verify_url()

    def press_button(self, user_id: str, msg_id: str, card: str, key: str) -> threading.Thread:
        """An employee presses a button of the card (JSON) in message ``msg_id``."""
        fields = json.loads(card)
        code = self.message_send.response_codes.issue(msg_id, (user_id,))
        return self.event(
            user_id,
            "template_card_event",
            key,
            fields={
                "TaskId": str(fields.get("task_id", "")),
                "CardType": str(fields.get("card_type", "")),
                "ResponseCode": code,
                "AgentId": self.corp.agent_id,
            },
        )

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


def _create_time(plain: bytes) -> str:
    return callback_xml.field(plain.decode(), "CreateTime")

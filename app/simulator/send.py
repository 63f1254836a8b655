"""message/send, message/recall and update_template_card: who gets what, and what is refused.

Takes the raw request body, returns errcode and fields as the service would, and puts what a user
would see into the conversations. Knows no HTTP. Sources: documents 90236, 94867, 94888, 90313.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.simulator.cards import ResponseCodes
from app.simulator.conversations import Conversations
from app.simulator.corp import Corp
from app.simulator.errcodes import errmsg_of
from app.simulator.limits import Throttle
from app.simulator.media import MediaStore
from app.simulator.payloads import (
    INTERACTIVE_CARDS,
    TEXT_LIMIT_BYTES,
    Bubble,
    Refusal,
    bubble_of,
    card_of,
    visible_text,
)

__all__ = ["TEXT_LIMIT_BYTES", "MessageSend", "SendAnswer", "visible_text"]

MAX_RECEIVERS = 1000
DUPLICATE_INTERVAL_S = 1800
DUPLICATE_INTERVAL_MAX_S = 4 * 3600
RECALL_WITHIN_S = 24 * 3600


@dataclass(frozen=True)
class SendAnswer:
    """What the call answers; ``invaliduser`` is joined by ``|`` and lower-case."""

    errcode: int
    errmsg: str
    msgid: str = ""
    invaliduser: str = ""
    response_code: str = ""


class MessageSend:
    """The messages of the one app."""

    def __init__(
        self,
        corp: Corp,
        conversations: Conversations,
        clock: Callable[[], float],
        throttle: Throttle,
        media: MediaStore,
    ) -> None:
        self._corp = corp
        self._conversations = conversations
        self._clock = clock
        self._throttle = throttle
        self._media = media
        self.response_codes = ResponseCodes(clock)
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}
        self._sent_at_s: dict[str, float] = {}

    def send(self, body: bytes) -> SendAnswer:
        """Handle one message/send body."""
        request = _json_object(body)
        if request is None:
            return _refused(47001)
        refusal = self._wrong_agent(request.get("agentid"))
        if refusal is not None:
            return refusal
        bubble = bubble_of(request, self._media.get)
        if isinstance(bubble, Refusal):
            return SendAnswer(bubble.errcode, bubble.errmsg)
        valid, invalid = self._receivers(str(request.get("touser") or ""))
        if not valid:
            return _refused(81013)
        if self._throttle.refuses_messages(len(valid)):
            return _refused(45009)
        msgid = secrets.token_urlsafe(48)
        response_code = ""
        if not self._is_duplicate(request, body):
            if request["msgtype"] == "template_card":
                response_code = self._response_code(request, msgid, valid)
            self._show(bubble, valid, msgid)
        return SendAnswer(0, "ok", msgid, "|".join(invalid), response_code)

    def recall(self, body: bytes) -> SendAnswer:
        """Take a message back within a day: it leaves the conversations."""
        request = _json_object(body)
        msgid = request.get("msgid") if request else None
        if not isinstance(msgid, str):
            return _refused(40058)
        with self._lock:
            sent_s = self._sent_at_s.pop(msgid, None)
        if sent_s is None or self._clock() - sent_s >= RECALL_WITHIN_S:
            return _refused(40058)
        self._conversations.recall(msgid)
        return SendAnswer(0, "ok")

    def update_card(self, body: bytes) -> SendAnswer:
        """Change a card that was answered: a new card, or only the words on its button."""
        request = _json_object(body)
        if request is None:
            return _refused(47001)
        refusal = self._wrong_agent(request.get("agentid"))
        if refusal is not None:
            return refusal
        text = ""
        card = request.get("template_card")
        button = request.get("button")
        if isinstance(card, dict):
            bubble = card_of(card)
            if isinstance(bubble, Refusal):
                return SendAnswer(bubble.errcode, bubble.errmsg)
            text = bubble.text
        elif isinstance(button, dict) and button.get("replace_name"):
            text = str(button["replace_name"])
        else:
            return _refused(40058)
        code = self.response_codes.use(str(request.get("response_code") or ""))
        if code is None:
            return _refused(72023)
        self._conversations.update_card(code.msgid, text)
        return SendAnswer(0, "ok")

    def _wrong_agent(self, agent_id: object) -> SendAnswer | None:
        if agent_id is None or agent_id == "":
            return _refused(41011)
        if not str(agent_id).isdigit():
            return _refused(40056)
        if int(str(agent_id)) != self._corp.agent_id:
            return _refused(301002)
        return None

    def _receivers(self, touser: str) -> tuple[list[str], list[str]]:
        """Known ids in their own spelling, and unknown ones in lower case."""
        if touser == "@all":
            return [e.user_id for e in self._corp.employees], []
        wanted = [part for part in touser.split("|") if part][:MAX_RECEIVERS]
        known = {part: self._corp.employee(part) for part in wanted}
        valid = list(dict.fromkeys(e.user_id for e in known.values() if e is not None))
        return valid, [part.lower() for part, employee in known.items() if employee is None]

    def _is_duplicate(self, request: dict[str, Any], body: bytes) -> bool:
        """Whether the very same JSON was sent within the interval that it asks for."""
        if request.get("enable_duplicate_check") != 1:
            return False
        asked = request.get("duplicate_check_interval")
        interval_s = asked if isinstance(asked, int) and asked > 0 else DUPLICATE_INTERVAL_S
        interval_s = min(interval_s, DUPLICATE_INTERVAL_MAX_S)
        digest = hashlib.sha256(body).hexdigest()
        with self._lock:
            now_s = self._clock()
            last_s = self._seen.get(digest)
            if last_s is not None and now_s - last_s < interval_s:
                repeated = True
            else:
                repeated = False
                self._seen[digest] = now_s
        if repeated:
            self._conversations.log(
                "in", "重复消息未投递", "与前一次请求的 JSON 完全相同", ok=False
            )
        return repeated

    def _response_code(self, request: dict[str, Any], msgid: str, valid: list[str]) -> str:
        if request["template_card"]["card_type"] not in INTERACTIVE_CARDS:
            return ""
        return self.response_codes.issue(msgid, tuple(valid))

    def _show(self, bubble: Bubble, user_ids: list[str], msgid: str) -> None:
        """Put the visible part into each conversation, within each member's limit."""
        with self._lock:
            self._sent_at_s[msgid] = self._clock()
        for user_id in user_ids:
            if self._throttle.reaches_member(user_id):
                self._conversations.add_message(
                    user_id,
                    "app",
                    bubble.text,
                    msgid,
                    kind=bubble.kind,
                    cut_bytes=bubble.cut_bytes,
                    media_id=bubble.media_id,
                    card=bubble.card,
                )
            else:
                self._conversations.log(
                    "in", "消息被静默丢弃", f"{user_id} 超过每分钟或每小时的上限", ok=False
                )


def _refused(errcode: int) -> SendAnswer:
    return SendAnswer(errcode, errmsg_of(errcode))


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        request = json.loads(body)
    except ValueError:
        return None
    return request if isinstance(request, dict) else None

"""The rules of message/send: who gets what, what is refused, what is dropped without a word.

Takes the raw request body, returns errcode and fields as the service would, and puts what a user
would see into the conversations. Knows no HTTP. Sources: the service's documents 90236 and 90313.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.simulator.conversations import Conversations
from app.simulator.corp import Corp

TEXT_LIMIT_BYTES = 2048
MAX_RECEIVERS = 1000
MEMBER_LIMIT_PER_MINUTE = 30
DUPLICATE_INTERVAL_S = 1800
DUPLICATE_INTERVAL_MAX_S = 4 * 3600


@dataclass(frozen=True)
class SendAnswer:
    """What message/send answers; ``invaliduser`` is joined by ``|`` and lower-case."""

    errcode: int
    errmsg: str
    msgid: str = ""
    invaliduser: str = ""


def visible_text(content: str) -> tuple[str, int]:
    """What a user sees of ``content`` and how many bytes were cut off.

    The cut falls on a byte, not on a character: a broken last character shows as U+FFFD.
    """
    encoded = content.encode("utf-8", "surrogatepass")
    if len(encoded) <= TEXT_LIMIT_BYTES:
        return content, 0
    kept = encoded[:TEXT_LIMIT_BYTES].decode("utf-8", "replace")
    return kept, len(encoded) - TEXT_LIMIT_BYTES


class MessageSend:
    """message/send of the one app."""

    def __init__(
        self, corp: Corp, conversations: Conversations, clock: Callable[[], float]
    ) -> None:
        self._corp = corp
        self._conversations = conversations
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = defaultdict(deque)

    def send(self, body: bytes) -> SendAnswer:
        """Handle one request body."""
        try:
            request = json.loads(body)
        except ValueError:
            return SendAnswer(47001, "data format error")
        if not isinstance(request, dict):
            return SendAnswer(47001, "data format error")
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        valid, invalid = self._receivers(str(request.get("touser") or ""))
        if not valid:
            return SendAnswer(81013, "user & party & tag all invalid")
        answer = SendAnswer(0, "ok", secrets.token_urlsafe(48), "|".join(invalid))
        if not self._is_duplicate(request, body):
            self._show(request["text"]["content"], valid, answer.msgid)
        return answer

    def _refusal(self, request: dict[str, Any]) -> SendAnswer | None:
        """The first schema rule that ``request`` breaks."""
        agent_id = request.get("agentid")
        if agent_id is None or agent_id == "":
            return SendAnswer(41011, "missing agentid")
        if not str(agent_id).isdigit():
            return SendAnswer(40056, "invalid agentid")
        if int(agent_id) != self._corp.agent_id:
            return SendAnswer(301002, "not allow operate another agent with this accesstoken")
        if request.get("msgtype") != "text":
            return SendAnswer(40008, "invalid message type")
        text = request.get("text")
        content = text.get("content") if isinstance(text, dict) else None
        if not isinstance(content, str) or not content:
            return SendAnswer(44004, "text content is empty")
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

    def _show(self, content: str, user_ids: list[str], msgid: str) -> None:
        """Put the visible part into each conversation, within each member's limit."""
        text, cut_bytes = visible_text(content)
        for user_id in user_ids:
            if self._within_limit(user_id):
                self._conversations.add_message(user_id, "app", text, msgid, cut_bytes=cut_bytes)
            else:
                self._conversations.log(
                    "in",
                    "消息被静默丢弃",
                    f"{user_id} 一分钟内已收到 {MEMBER_LIMIT_PER_MINUTE} 条",
                    ok=False,
                )

    def _within_limit(self, user_id: str) -> bool:
        with self._lock:
            now_s = self._clock()
            recent = self._recent[user_id]
            while recent and now_s - recent[0] >= 60:
                recent.popleft()
            if len(recent) >= MEMBER_LIMIT_PER_MINUTE:
                return False
            recent.append(now_s)
            return True

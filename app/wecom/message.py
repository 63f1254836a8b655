"""An inbound message as one frozen value, parsed from the decrypted XML.

Owns what a message is and how it is told from its own re-delivery. Knows nothing of HTTP, of
encryption or of what is done with a message.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from wechatpy.enterprise.events import EVENT_TYPES
from wechatpy.enterprise.messages import MESSAGE_TYPES
from wechatpy.messages import UnknownMessage

from app.wecom.errors import MalformedError
from app.wecom.xml import parse_xml

_USER_NAME = re.compile(r"(?!@all$)[^\s{}:|\x00-\x1f\x7f\ud800-\udfff]{1,64}", re.IGNORECASE)
_ANSWERED_EVENTS = frozenset(
    {"enter_agent", "click", "scancode_waitmsg", "template_card_event", "template_card_menu_event"}
)


@dataclass(frozen=True)
class InboundMessage:
    """One message or event. ``msg_type`` and ``event`` are in lower case; absent text is ""."""

    corp_id: str
    agent_id: str
    from_user_name: str
    msg_type: str
    msg_id: str
    create_time_s: int
    content: str = ""
    event: str = ""
    event_key: str = ""
    media_id: str = ""
    body_sha256: str = ""

    @property
    def dedupe_key(self) -> str:
        """Equal for a re-delivery, different for anything else.

        Messages go by MsgId within corp, agent and user (MsgId alone collides across users).
        Events have none, and user + second is too weak (two events in one second differ in their
        details only): they go by the hash of the decrypted body, which a re-delivery repeats.
        """
        identity = self.msg_id or f"sha256-{self.body_sha256}"
        return f"{self.corp_id}:{self.agent_id}:{self.from_user_name}:{identity}"

    @property
    def wants_answer(self) -> bool:
        """False for events that no person waits on (LOCATION, subscribe, kf_msg_or_event ...)."""
        return self.msg_type != "event" or self.event in _ANSWERED_EVENTS


def is_user_name(value: str) -> bool:
    """True when ``value`` can name one member: no separators, and not the name of everybody."""
    return _USER_NAME.fullmatch(value) is not None


def parse(xml: bytes) -> InboundMessage:
    """Parse a decrypted body. Raises ``MalformedError`` naming what is missing or wrong.

    Characters that XML does not allow are dropped and broken UTF-8 is replaced rather than
    refused: the sender has proved to be WeCom, and a refused message would be lost.
    """
    fields = parse_xml(xml.decode("utf-8", errors="replace"))
    msg_type = _text(fields, "MsgType").lower()
    if not msg_type:
        raise MalformedError("MsgType is missing")
    event = _text(fields, "Event").lower() if msg_type == "event" else ""
    known = EVENT_TYPES.get(event) if msg_type == "event" else MESSAGE_TYPES.get(msg_type)
    vendor = (known or UnknownMessage)(fields)
    user = _text(fields, "FromUserName")
    if not user:
        raise MalformedError("FromUserName is missing")
    if not is_user_name(user):
        raise MalformedError("FromUserName is not the name of one member")
    try:
        create_time_s = int(vendor.time or 0)
    except (ValueError, TypeError) as error:
        raise MalformedError("CreateTime is not a number") from error
    content = _text(fields, "Content")
    return InboundMessage(
        corp_id=_text(fields, "ToUserName"),
        agent_id=_text(fields, "AgentID"),
        from_user_name=user,
        msg_type=msg_type,
        msg_id=_text(fields, "MsgId") if msg_type != "event" else "",
        create_time_s=create_time_s,
        content=content if content.strip() else "",
        event=event,
        event_key=_text(fields, "EventKey"),
        media_id=_text(fields, "MediaId"),
        body_sha256=hashlib.sha256(xml).hexdigest(),
    )


def _text(fields: dict[str, Any], name: str) -> str:
    """The text of a field, "" when absent; spaces are kept in ``Content`` only."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedError(f"{name} is not plain text")
    return value if name == "Content" else value.strip()

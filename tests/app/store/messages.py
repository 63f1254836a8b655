"""Inbound messages for tests."""

from __future__ import annotations

import hashlib

from app.store.keys import user_tag
from app.wecom.message import InboundMessage

CORP_ID = "ww0123456789abcdef"
AGENT_ID = "1000002"


def tag_of(user: str) -> str:
    """The tag of a user of the app that tests use."""
    return user_tag(CORP_ID, AGENT_ID, user)


def text_message(user: str, msg_id: str, content: str = "你好") -> InboundMessage:
    """A text message as parsed from a callback."""
    return InboundMessage(CORP_ID, AGENT_ID, user, "text", msg_id, 1_700_000_000, content)


def event_message(user: str, event: str, body: str) -> InboundMessage:
    """An event; ``body`` stands for the decrypted XML."""
    digest = hashlib.sha256(body.encode()).hexdigest()
    return InboundMessage(
        *(CORP_ID, AGENT_ID, user, "event", "", 1_700_000_000),
        event=event,
        body_sha256=digest,
    )

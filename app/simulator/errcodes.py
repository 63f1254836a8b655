"""The service's words for its error codes, for answers on demand (document 90313)."""

from __future__ import annotations

from collections.abc import Mapping

ERRMSGS: Mapping[int, str] = {
    -1: "system error",
    6000: "data version conflict",
    40001: "invalid credential",
    40004: "invalid media type",
    40006: "invalid media size",
    40007: "invalid media_id",
    40008: "invalid message type",
    40013: "invalid corpid",
    40014: "invalid access_token",
    40033: "invalid charset. please check your request, if include \\uxxxx will create fail",
    40056: "invalid agentid",
    40058: "invalid parameter",
    40091: "invalid secret",
    41001: "access_token missing",
    41002: "corpid missing",
    41004: "corpsecret missing",
    41011: "missing agentid",
    42001: "access_token expired",
    42045: "template_card missing card_action",
    43004: "require subscribe",
    44004: "text content is empty",
    45001: "media data too large",
    45002: "message content too long",
    45009: "api freq out of limit",
    45033: "api concurrent out of limit",
    46004: "user no exist",
    47001: "data format error",
    48002: "api forbidden",
    50002: "user out of app scope",
    50003: "app disabled",
    60011: "no privilege to access/modify contact/party/agent",
    60020: "not allow to access from your ip",
    60111: "userid not found",
    72023: "invalid response_code",
    81013: "user & party & tag all invalid",
    82001: "all touser & toparty & totag invalid",
    85002: "exceed content length limit",
    95018: "session status invalid",
    301002: "not allow operate another agent with this accesstoken",
}


def errmsg_of(errcode: int) -> str:
    """What the service says for ``errcode``."""
    return ERRMSGS.get(errcode, "unknown error")

"""Every error of the WeCom protocol, drawn once.

Owns the tree and the policy table of error codes. Knows nothing of HTTP status codes.

::

    WeComError
    ├── EncodingAESKeyError   configuration: the key is not 43 letters and digits
    ├── CallbackError         a callback we refuse
    │   ├── SignatureError    not signed with our Token
    │   ├── DecryptError      signed, but the EncodingAESKey does not fit
    │   ├── CorpIdError       decrypted, but meant for another corp
    │   ├── AgentIdError      decrypted, but meant for another app
    │   ├── StaleError        signed long ago: a recording, or a wrong clock
    │   └── MalformedError    parts are missing or are not what they should be
    ├── TransportError        no answer of the API; the message was surely not taken
    ├── SendUnknownError      the request left, the outcome is unknown; never resend blindly
    └── ApiError              the API answered with an error code
"""

from __future__ import annotations

import re
from typing import Final, Literal

Action = Literal["refresh_token", "retry", "wait", "pause", "give_up", "bug"]

_ACTION_CODES: Final[dict[Action, tuple[int, ...]]] = {
    "refresh_token": (40014, 41001, 42001, 40001),
    "retry": (-1, 6000, 45033),
    "wait": (45009,),
    "pause": (40091, 40013, 40056, 48002, 50003, 60020, 301002),
    "give_up": (81013, 82001, 50002, 60011, 46004, 60111, 43004, 95018),
    "bug": (40004, 40006, 40007, 40009, 40033, 40058, 41011, 42045, 44004, 45001, 45002, 85002),
}
_ACTION_BY_CODE: Final = {code: action for action, codes in _ACTION_CODES.items() for code in codes}
_EGRESS_IP = re.compile(r"from ip: ?([0-9a-fA-F.:]+)")


class WeComError(Exception):
    """Root. ``errcode`` and ``errmsg`` are the vendor's where there is an answer of the vendor."""

    retryable = False
    errcode: int | None = None
    errmsg = ""


class EncodingAESKeyError(WeComError):
    """The EncodingAESKey is not 43 letters and digits; nothing can be decrypted."""


class CallbackError(WeComError):
    """A callback we refuse. The text is for the administrator and holds no secret."""


class SignatureError(CallbackError):
    """``msg_signature`` does not fit: wrong Token, or the query was changed on its way."""

    errcode = -40001


class DecryptError(CallbackError):
    """The signature is right but the plaintext is not: EncodingAESKey differs."""

    errcode = -40007


class CorpIdError(CallbackError):
    """Decrypted, but the receiver is another corp (or a suite)."""

    errcode = -40005


class AgentIdError(CallbackError):
    """Decrypted, but the message belongs to another app of the corp."""


class StaleError(CallbackError):
    """Signed at a time so far from now that it may be a recording played back."""


class MalformedError(CallbackError):
    """A part is missing or is not what it should be; the text names it."""

    errcode = -40002


class TransportError(WeComError):
    """No usable answer, and the request was not carried out: it may be sent again."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class SendUnknownError(WeComError):
    """The request left and no answer came: the receiver may or may not have the message.

    Resend only byte for byte, with ``duplicate_check=True``, within four hours.
    """


class ApiError(WeComError):
    """The API answered with an error. ``action`` says what to do; see ``action_for``."""

    def __init__(self, errcode: int, errmsg: str, action: Action) -> None:
        super().__init__(f"errcode {errcode}: {errmsg}")
        self.errcode = errcode
        self.errmsg = errmsg
        self.action: Action = action
        self.retryable = action in ("refresh_token", "retry", "wait")

    @property
    def egress_ip(self) -> str:
        """The address WeCom saw us from (error 60020): what belongs in 企业可信IP. May be ""."""
        found = _EGRESS_IP.search(self.errmsg)
        return found.group(1) if found else ""


def action_for(errcode: int, *, on_gettoken: bool = False) -> Action:
    """What to do about an error code; the text of the error never decides.

    40001 on gettoken is a wrong secret (pause); on any other call it is a dead token. An unknown
    code means that the message was not taken, so it may be tried again.
    """
    if on_gettoken and errcode == 40001:
        return "pause"
    return _ACTION_BY_CODE.get(errcode, "retry")

"""The service as a client of the app: URL verification and encrypted callbacks with retries.

Knows the callback URL and the app's token and key. Does not know who asked for a delivery.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import requests

from app.simulator import callback_xml as xml
from app.simulator.conversations import Conversations
from app.simulator.corp import Corp
from app.simulator.crypto import (
    CallbackCipher,
    CallbackCryptoError,
    signature,
    signature_matches,
)
from app.simulator.faults import CALLBACK, FaultScript

TIMEOUT_S = 5.0
VERIFY_TIMEOUT_S = 1.0
RETRIES = 3
MAX_REPLY_BYTES = 1_000_000


@dataclass(frozen=True)
class Attempt:
    """One POST of a callback. ``status`` is 0 when no HTTP answer came; ``error`` says why."""

    status: int
    elapsed_ms: float
    error: str = ""
    lost: bool = False
    """By script: the answer was given but never reached the service."""

    @property
    def ok(self) -> bool:
        """The service takes HTTP 200 as received, anything else as a failure."""
        return self.status == 200 and not self.lost


@dataclass(frozen=True)
class Delivery:
    """All attempts of one callback and the passive reply, if the app gave one."""

    attempts: tuple[Attempt, ...]
    reply_text: str = ""

    @property
    def ok(self) -> bool:
        """Whether the last attempt was taken."""
        return self.attempts[-1].ok

    @property
    def acknowledged(self) -> bool:
        """Whether the app answered 200 at all, even if the service never saw it."""
        return any(attempt.status == 200 for attempt in self.attempts)


@dataclass(frozen=True)
class Verification:
    """Result of the console's URL check."""

    ok: bool
    detail: str
    elapsed_ms: float


class MessageIds:
    """64-bit ids that grow, also across restarts of the simulator."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.time_ns()

    def next(self) -> int:
        """A new id."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last


class Caller:
    """Calls the app's callback URL the way the service does."""

    def __init__(
        self,
        corp: Corp,
        callback_url: str,
        conversations: Conversations,
        clock: Callable[[], float],
        *,
        faults: FaultScript | None = None,
        timeout_s: float = TIMEOUT_S,
        retry_pause_s: float = 1.0,
    ) -> None:
        self.callback_url = callback_url
        self._corp = corp
        self._conversations = conversations
        self._clock = clock
        self._faults = faults or FaultScript()
        self._timeout_s = timeout_s
        self._retry_pause_s = retry_pause_s
        self._cipher = CallbackCipher(corp.encoding_aes_key, corp.corp_id)
        self._ids = MessageIds()

    def message_xml(self, user_id: str, fields: xml.Fields, *, kind: str) -> tuple[str, bytes]:
        """MsgId and plaintext of a message of ``kind`` from ``user_id``."""
        msg_id = self._ids.next()
        return str(msg_id), xml.document(
            {**self._head(user_id, kind), **fields, "MsgId": msg_id, "AgentID": self._corp.agent_id}
        )

    def event_xml(
        self, user_id: str, event: str, event_key: str = "", fields: xml.Fields | None = None
    ) -> bytes:
        """Plaintext of an event; events carry no MsgId."""
        return xml.document(
            {
                **self._head(user_id, "event"),
                "Event": event,
                "EventKey": event_key,
                **(fields or {}),
                "AgentID": self._corp.agent_id,
            }
        )

    def envelope(self, plain: bytes) -> tuple[dict[str, str], bytes]:
        """Query and body of one POST; every call has a new nonce, signature and ciphertext."""
        ciphertext = self._cipher.encrypt(plain)
        body = xml.document(
            {
                "ToUserName": self._corp.corp_id,
                "AgentID": str(self._corp.agent_id),
                "Encrypt": ciphertext,
            }
        )
        return self._signed(ciphertext), body

    def deliver(self, plain: bytes, *, title: str) -> Delivery:
        """POST ``plain``, again up to three times until the app answers 200 in time.

        ``title`` names the callback in the log, without its text.
        """
        attempts: list[Attempt] = []
        reply = ""
        for number in range(1, RETRIES + 2):
            attempt, body = self.post(*self.envelope(plain))
            attempts.append(attempt)
            self._conversations.log(
                "out",
                title if number == 1 else f"{title}（第 {number - 1} 次重试）",
                _describe(attempt),
                ok=attempt.ok,
            )
            if attempt.ok:
                reply = self._passive_reply(body)
                break
            if number <= RETRIES:
                time.sleep(self._retry_pause_s)
        return Delivery(tuple(attempts), reply)

    def verify_url(self) -> Verification:
        """The console's check on saving the URL: GET with echostr, exact plaintext back."""
        expected = str(secrets.randbelow(10**19)).encode()
        ciphertext = self._cipher.encrypt(expected)
        query = {**self._signed(ciphertext), "echostr": ciphertext}
        started = time.monotonic()
        try:
            status, body = self._request("GET", query, None, VERIFY_TIMEOUT_S)
        except requests.RequestException as error:
            detail = f"没有收到回答：{type(error).__name__}"
            result = Verification(False, detail, _ms_since(started))
        else:
            result = Verification(*_judge(status, body, expected), _ms_since(started))
        self._conversations.log(
            "out", "验证回调 URL", f"{result.detail}（{result.elapsed_ms:.0f} 毫秒）", ok=result.ok
        )
        return result

    def _head(self, user_id: str, kind: str) -> dict[str, xml.Value]:
        return {
            "ToUserName": self._corp.corp_id,
            "FromUserName": user_id,
            "CreateTime": int(self._clock()),
            "MsgType": kind,
        }

    def _signed(self, ciphertext: str) -> dict[str, str]:
        timestamp = str(int(self._clock()))
        nonce = str(secrets.randbelow(10**10))
        return {
            "msg_signature": signature(self._corp.token, timestamp, nonce, ciphertext),
            "timestamp": timestamp,
            "nonce": nonce,
        }

    def post(self, query: dict[str, str], body: bytes) -> tuple[Attempt, bytes]:
        """One POST as it is, and the body of the answer."""
        started = time.monotonic()
        try:
            status, answer = self._request("POST", query, body, self._timeout_s)
        except requests.Timeout:
            error = f"{self._timeout_s:g} 秒内没有回答"
            return Attempt(0, _ms_since(started), error), b""
        except requests.RequestException as failure:
            error = f"连接失败：{type(failure).__name__}"
            return Attempt(0, _ms_since(started), error), b""
        lost = status == 200 and self._faults.take(CALLBACK) is not None
        return Attempt(status, _ms_since(started), lost=lost), answer

    def _request(
        self, method: str, query: dict[str, str], body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        """Status and body; no proxy, no redirect, as the service calls."""
        with requests.Session() as session:
            session.trust_env = False
            response = session.request(
                method,
                self.callback_url,
                params=query,
                data=body,
                headers={"Content-Type": "text/xml; charset=utf-8", "User-Agent": "Mozilla/4.0"},
                timeout=timeout_s,
                allow_redirects=False,
            )
            return response.status_code, response.content[:MAX_REPLY_BYTES]

    def _passive_reply(self, body: bytes) -> str:
        """Text of an encrypted passive reply; "" for the usual empty 200."""
        if body.strip() in (b"", b"success"):
            return ""
        envelope = body.decode("utf-8", "replace")
        ciphertext = xml.encrypted_part(envelope)
        signed = signature_matches(
            xml.field(envelope, "MsgSignature"),
            self._corp.token,
            xml.field(envelope, "TimeStamp"),
            xml.field(envelope, "Nonce"),
            ciphertext,
        )
        if not ciphertext or not signed:
            self._conversations.log("in", "被动回复被拒", "签名或密文不对", ok=False)
            return ""
        try:
            plain = self._cipher.decrypt(ciphertext).decode("utf-8", "replace")
        except CallbackCryptoError as error:
            self._conversations.log("in", "被动回复被拒", str(error), ok=False)
            return ""
        return xml.field(plain, "Content") if xml.field(plain, "MsgType") == "text" else ""


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000


def _describe(attempt: Attempt) -> str:
    result = f"HTTP {attempt.status}" if attempt.status else attempt.error
    if attempt.lost:
        result += "，回答在路上丢了"
    return f"{result}（{attempt.elapsed_ms:.0f} 毫秒）"


def _judge(status: int, body: bytes, expected: bytes) -> tuple[bool, str]:
    if status != 200:
        return False, f"HTTP {status}，应为 200"
    if body != expected:
        return False, "回答的不是解密后的 echostr 原文（不能带引号、BOM、换行）"
    return True, "通过"

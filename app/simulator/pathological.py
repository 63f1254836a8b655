"""Callbacks that are wrong on purpose, with the status a good app answers.

Each was seen to break an app or an SDK in public issues. Knows the caller's envelope; not who asks.
``expected`` 200 means that the app must take it, 4xx that it must refuse it; never 5xx, for the
service would deliver it again.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.simulator import callback_xml as xml
from app.simulator.caller import Caller
from app.simulator.corp import Corp
from app.simulator.crypto import CallbackCipher, new_encoding_aes_key, signature

Request = tuple[dict[str, str], bytes]
_OVERSIZED_BYTES = 300_000


@dataclass(frozen=True)
class Case:
    """``expected`` is the first digit of a right answer: 2 (taken) or 4 (refused)."""

    title: str
    expected: int
    build: Callable[[Caller, Corp], Request]


def _text(caller: Caller, content: str) -> bytes:
    return caller.message_xml("WangFang", {"Content": content}, kind="text")[1]


def _said(content: str) -> Callable[[Caller, Corp], Request]:
    return lambda caller, corp: caller.envelope(_text(caller, content))


def _plain(document: bytes) -> Callable[[Caller, Corp], Request]:
    return lambda caller, corp: caller.envelope(document)


def _body(body: bytes) -> Callable[[Caller, Corp], Request]:
    return lambda caller, corp: (caller.envelope(_text(caller, "x"))[0], body)


def _sealed(corp: Corp, ciphertext: str) -> Request:
    """A ciphertext of ours in a rightly signed envelope."""
    query = {"timestamp": "1700000000", "nonce": str(secrets.randbelow(10**10))}
    query["msg_signature"] = signature(corp.token, query["timestamp"], query["nonce"], ciphertext)
    return query, xml.document({"ToUserName": corp.corp_id, "Encrypt": ciphertext})


def _without(name: str) -> Callable[[Caller, Corp], Request]:
    def build(caller: Caller, corp: Corp) -> Request:
        query, body = caller.envelope(_text(caller, "x"))
        del query[name]
        return query, body

    return build


def _wrong_signature(caller: Caller, corp: Corp) -> Request:
    query, body = caller.envelope(_text(caller, "x"))
    return {**query, "msg_signature": "0" * 40}, body


def _wrong_key(caller: Caller, corp: Corp) -> Request:
    cipher = CallbackCipher(new_encoding_aes_key(), corp.corp_id)
    return _sealed(corp, cipher.encrypt(_text(caller, "x")))


def _wrong_corp(caller: Caller, corp: Corp) -> Request:
    cipher = CallbackCipher(corp.encoding_aes_key, "wwother")
    return _sealed(corp, cipher.encrypt(_text(caller, "x")))


def _cut(caller: Caller, corp: Corp) -> Request:
    cipher = CallbackCipher(corp.encoding_aes_key, corp.corp_id)
    sealed = base64.b64decode(cipher.encrypt(_text(caller, "x")))
    return _sealed(corp, base64.b64encode(sealed[:-7]).decode())


def _wrong_agent(caller: Caller, corp: Corp) -> Request:
    agent = f"<AgentID>{corp.agent_id}</AgentID>".encode()
    return caller.envelope(_text(caller, "x").replace(agent, b"<AgentID>9</AgentID>"))


_ENTITIES = b'<!DOCTYPE x [<!ENTITY a "%s"><!ENTITY b "%s"><!ENTITY c "%s">]>' % (
    b"ha" * 50,
    b"&a;" * 50,
    b"&b;" * 50,
)
_LAUGHS = _ENTITIES + b"<xml><Content>&c;</Content></xml>"

CASES: Mapping[str, Case] = {
    "control-character": Case("文字里有 \\x08", 2, _said("前\x08后")),
    "spaces": Case("只有空格", 2, _said("   ")),
    "leading-spaces": Case("开头的空格", 2, _said("  两个")),
    "empty-text": Case("空文字", 2, _said("")),
    "emoji": Case("合成的表情", 2, _said("👨‍👩‍👧‍👦 👍🏽")),
    "markup": Case("像标签的文字", 2, _said("<a href='x'>]]>&amp;</a>")),
    "long-text": Case("很长的文字", 2, _said("长" * 20_000)),
    "missing-signature": Case("没有 msg_signature", 4, _without("msg_signature")),
    "missing-nonce": Case("没有 nonce", 4, _without("nonce")),
    "missing-timestamp": Case("没有 timestamp", 4, _without("timestamp")),
    "wrong-signature": Case("签名不对", 4, _wrong_signature),
    "wrong-key": Case("别的 EncodingAESKey", 4, _wrong_key),
    "wrong-corp": Case("别的企业", 4, _wrong_corp),
    "wrong-agent": Case("别的应用", 4, _wrong_agent),
    "cut-ciphertext": Case("密文缺一截", 4, _cut),
    "empty-ciphertext": Case("空密文", 4, lambda caller, corp: _sealed(corp, "")),
    "not-base64": Case("密文不是 base64", 4, lambda caller, corp: _sealed(corp, "!")),
    "empty-body": Case("空请求体", 4, _body(b"")),
    "garbage": Case("不是 XML", 4, _body(b"\x00\x01 garbage")),
    "no-encrypt": Case("没有 Encrypt", 4, _body(b"<xml><ToUserName>x</ToUserName></xml>")),
    "not-utf-8": Case("不是 UTF-8", 4, _body(b"<xml><Encrypt>\xff\xfe</Encrypt></xml>")),
    "entities": Case("信封里有实体炸弹", 4, _body(_LAUGHS)),
    "inner-entities": Case("密文里有实体炸弹", 4, _plain(_LAUGHS)),
    "inner-not-utf-8": Case("密文里不是 UTF-8", 4, _plain(b"<xml>\xff</xml>")),
    "inner-empty": Case("密文里什么也没有", 4, _plain(b"")),
    "oversized": Case("超过 256 KB", 4, _body(b"<xml>" + b"x" * _OVERSIZED_BYTES)),
}


@dataclass(frozen=True)
class Verdict:
    """What the app answered to one case."""

    name: str
    title: str
    status: int
    expected: int

    @property
    def ok(self) -> bool:
        """Whether the answer was of the right kind."""
        return self.status // 100 == self.expected


def try_case(name: str, caller: Caller, corp: Corp) -> Verdict:
    """Send one case once. Raises ``KeyError`` for an unknown name."""
    case = CASES[name]
    attempt, _ = caller.post(*case.build(caller, corp))
    return Verdict(name, case.title, attempt.status, case.expected)

"""Signature and encryption of callbacks, on wechatpy's primitives with its faults overridden.

Owns the envelope. Does not know what is inside, nor HTTP. wechatpy 1.8.18 compares signatures
with ``!=``, never checks the padding, draws its random bytes from ``random`` without repeats, and
lets struct, Unicode, index and binascii errors out; here each is one typed error.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import re
import secrets
import string
from typing import Final

from wechatpy.crypto import _get_signature
from wechatpy.enterprise.crypto import PrpCrypto, WeChatCrypto

from app.wecom.errors import (
    CorpIdError,
    DecryptError,
    EncodingAESKeyError,
    MalformedError,
    SignatureError,
)
from app.wecom.xml import parse_xml

logger = logging.getLogger(__name__)

BLOCK_BYTES: Final = 32
_HEAD_BYTES: Final = 20
_ALPHABET: Final = string.ascii_letters + string.digits


class _StrictPrpCrypto(PrpCrypto):  # type: ignore[misc]  # wechatpy is untyped
    """wechatpy's AES-CBC with validated padding, length and receiver."""

    def get_random_string(self) -> str:
        return "".join(secrets.choice(_ALPHABET) for _ in range(16))

    def open(self, ciphertext: bytes, corp_id: str) -> bytes:
        """The message inside ``ciphertext``. Raises ``DecryptError`` or ``CorpIdError``."""
        plain: bytes = self.cipher.decrypt(ciphertext)
        padding = plain[-1]
        if not 1 <= padding <= BLOCK_BYTES or plain[-padding:] != bytes([padding]) * padding:
            raise DecryptError("cannot decrypt: EncodingAESKey differs from the one at WeCom")
        content = plain[:-padding]
        end = _HEAD_BYTES + int.from_bytes(content[16:_HEAD_BYTES], "big")
        if len(content) < _HEAD_BYTES or end > len(content):
            raise DecryptError("cannot decrypt: EncodingAESKey differs from the one at WeCom")
        receiver = content[end:].decode("utf-8", errors="replace")
        if not hmac.compare_digest(content[end:], corp_id.encode()):
            raise CorpIdError(f"meant for corp {receiver!r}, this gateway serves {corp_id!r}")
        return content[_HEAD_BYTES:end]


class WeComCrypto:
    """The codec of one app. Raises ``EncodingAESKeyError`` for a key that cannot work."""

    def __init__(self, token: str, encoding_aes_key: str, corp_id: str) -> None:
        if not isinstance(encoding_aes_key, str) or not re.fullmatch(
            r"[A-Za-z0-9]{43}", encoding_aes_key
        ):
            raise EncodingAESKeyError("EncodingAESKey must be 43 letters and digits")
        self._token = token
        self._corp_id = corp_id
        self._key: bytes = WeChatCrypto(token, encoding_aes_key, corp_id).key

    def verify_url(self, msg_signature: str, timestamp: str, nonce: str, echostr: str) -> str:
        """The plaintext that answers a URL verification.

        A literal ``+`` in the query reaches us as a space; such an ``echostr`` is repaired once.
        Raises ``SignatureError``, ``DecryptError``, ``CorpIdError`` or ``MalformedError``.
        """
        if not echostr:
            raise MalformedError("echostr is missing")
        repaired = echostr.replace(" ", "+")
        try:
            self._check_signature(msg_signature, timestamp, nonce, echostr)
        except SignatureError:
            if "%" in echostr:
                raise SignatureError(
                    "msg_signature does not fit; echostr is still %-encoded: "
                    "a proxy in front of the gateway encodes the query twice"
                ) from None
            if repaired == echostr:
                raise
            self._check_signature(msg_signature, timestamp, nonce, repaired)
            logger.info("echostr repaired: '+' had arrived as a space")
        try:
            return self._open(repaired, "echostr").decode()
        except UnicodeDecodeError:
            raise MalformedError("echostr does not hold UTF-8 text") from None

    def decrypt(self, body: bytes, msg_signature: str, timestamp: str, nonce: str) -> bytes:
        """The XML inside a callback body.

        Raises ``MalformedError`` for a body that is no envelope, ``SignatureError`` when it is
        not signed with our Token, ``DecryptError`` or ``CorpIdError`` when the key or corp differ.
        """
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedError("the body is not UTF-8") from None
        encrypted = parse_xml(text).get("Encrypt")
        if not isinstance(encrypted, str) or not encrypted.strip():
            raise MalformedError("Encrypt is missing from the body")
        self._check_signature(msg_signature, timestamp, nonce, encrypted.strip())
        return self._open(encrypted.strip(), "Encrypt")

    def encrypt(self, message: str, nonce: str, timestamp: str) -> str:
        """The signed envelope of ``message`` (XML text), as a passive reply carries it."""
        encrypted = _StrictPrpCrypto(self._key).encrypt(message, self._corp_id).decode("ascii")
        signature = _get_signature(self._token, timestamp, nonce, encrypted)
        return (
            f"<xml><Encrypt><![CDATA[{encrypted}]]></Encrypt>"
            f"<MsgSignature><![CDATA[{signature}]]></MsgSignature>"
            f"<TimeStamp>{timestamp}</TimeStamp><Nonce><![CDATA[{nonce}]]></Nonce></xml>"
        )

    def _check_signature(self, given: str, timestamp: str, nonce: str, encrypted: str) -> None:
        parts = (part.encode("utf-8", "replace") for part in (timestamp, nonce, encrypted))
        expected: str = _get_signature(self._token, *parts)
        if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
            raise SignatureError("msg_signature does not fit: Token differs from the one at WeCom")

    def _open(self, encrypted: str, name: str) -> bytes:
        try:
            ciphertext = base64.b64decode(encrypted, validate=True)
        except (binascii.Error, ValueError):
            raise MalformedError(f"{name} is not base64") from None
        if not ciphertext or len(ciphertext) % BLOCK_BYTES:
            raise MalformedError(f"{name} is cut: {len(ciphertext)} bytes of ciphertext")
        return _StrictPrpCrypto(self._key).open(ciphertext, self._corp_id)

"""Signing and encryption written apart from the code under test: the caller's side of WeCom."""

from __future__ import annotations

import base64
import hashlib
import os
import time

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

TOKEN = "QDG6eK"
KEY = "jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C"
CORP = "wx5823bf96d3bd56c7"
AGENT = "1000003"
TIMESTAMP, NONCE = str(int(time.time())), "1372623149"


def sign(encrypted: str, token: str = TOKEN) -> str:
    """``msg_signature`` over one timestamp and nonce."""
    joined = "".join(sorted([token, TIMESTAMP, NONCE, encrypted]))
    return hashlib.sha1(joined.encode()).hexdigest()


def encrypt_blocks(plain: bytes, key: str = KEY) -> str:
    """Base64 of the bare AES-CBC of ``plain``, whose length is a multiple of 16."""
    raw_key = base64.b64decode(key + "=")
    encryptor = Cipher(algorithms.AES(raw_key), modes.CBC(raw_key[:16])).encryptor()
    return base64.b64encode(encryptor.update(plain) + encryptor.finalize()).decode()


def seal(message: bytes, corp: str = CORP, key: str = KEY, *, padding: bytes | None = None) -> str:
    """The ciphertext of ``message``; ``padding`` replaces PKCS#7."""
    plain = os.urandom(16) + len(message).to_bytes(4, "big") + message + corp.encode()
    count = 32 - len(plain) % 32
    plain += bytes([count]) * count if padding is None else padding
    return encrypt_blocks(plain, key)


def envelope(encrypted: str) -> bytes:
    """The body of a callback."""
    return (
        f"<xml><ToUserName><![CDATA[{CORP}]]></ToUserName>"
        f"<AgentID><![CDATA[{AGENT}]]></AgentID>"
        f"<Encrypt><![CDATA[{encrypted}]]></Encrypt></xml>"
    ).encode()


def query(encrypted: str, token: str = TOKEN) -> dict[str, str]:
    """The query of a callback."""
    return {"msg_signature": sign(encrypted, token), "timestamp": TIMESTAMP, "nonce": NONCE}


def message_xml(
    inner: str, *, user: str = "zhangsan", msg_type: str = "text", agent: str = AGENT
) -> bytes:
    """A decrypted body as WeCom writes it."""
    return (
        f"<xml><ToUserName><![CDATA[{CORP}]]></ToUserName><FromUserName><![CDATA[{user}]]>"
        f"</FromUserName><CreateTime>1736691927</CreateTime><MsgType><![CDATA[{msg_type}]]>"
        f"</MsgType>{inner}<AgentID>{agent}</AgentID></xml>"
    ).encode()


def text_xml(content: str, msg_id: str = "7459035031717794886", user: str = "zhangsan") -> bytes:
    """A text message."""
    return message_xml(
        f"<Content><![CDATA[{content}]]></Content><MsgId>{msg_id}</MsgId>", user=user
    )

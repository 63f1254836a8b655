"""The simulator's crypto against the two other implementations: wechatpy and app.wecom."""

from __future__ import annotations

import ast
import base64
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wechatpy.enterprise.crypto import WeChatCrypto

import app.simulator
from app.simulator import callback_xml
from app.simulator.crypto import (
    CallbackCipher,
    CallbackCryptoError,
    new_encoding_aes_key,
    signature,
    signature_matches,
)
from app.wecom.crypto import WeComCrypto

KEY = new_encoding_aes_key()
CORP = "wwcorp1234567890"
TOKEN = "theToken"
# wechatpy's parser strips spaces at the ends and refuses control characters (its known faults).
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=700)


def envelope(
    message: bytes, nonce: str = "5551234", timestamp: str = "1732233600"
) -> dict[str, str]:
    ciphertext = CallbackCipher(KEY, CORP).encrypt(message)
    body = callback_xml.document({"ToUserName": CORP, "AgentID": "1", "Encrypt": ciphertext})
    sign = signature(TOKEN, timestamp, nonce, ciphertext)
    return {"body": body.decode(), "sign": sign, "timestamp": timestamp, "nonce": nonce}


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_both_sides_read_what_the_simulator_sends(text: str) -> None:
    message = callback_xml.document({"Content": text})
    sent = envelope(message)
    plain = WeChatCrypto(TOKEN, KEY, CORP).decrypt_message(
        sent["body"], sent["sign"], sent["timestamp"], sent["nonce"]
    )
    assert plain.encode() == message
    ours = WeComCrypto(TOKEN, KEY, CORP).decrypt(
        sent["body"].encode(), sent["sign"], sent["timestamp"], sent["nonce"]
    )
    assert ours == message


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_the_simulator_reads_what_both_sides_send(text: str) -> None:
    for encrypt in (
        lambda: WeChatCrypto(TOKEN, KEY, CORP).encrypt_message(text, "777", "1732233600"),
        lambda: WeComCrypto(TOKEN, KEY, CORP).encrypt(text, "777", "1732233600"),
    ):
        body = encrypt()
        ciphertext = callback_xml.encrypted_part(body)
        assert CallbackCipher(KEY, CORP).decrypt(ciphertext).decode() == text
        sign = callback_xml.field(body, "MsgSignature")
        assert signature_matches(sign, TOKEN, "1732233600", "777", ciphertext)


def test_echostr_is_verified_by_both_sides() -> None:
    echostr = CallbackCipher(KEY, CORP).encrypt(b"4212345678901234567")
    sign = signature(TOKEN, "1732233600", "n1", echostr)
    theirs = WeChatCrypto(TOKEN, KEY, CORP).check_signature(sign, "1732233600", "n1", echostr)
    ours = WeComCrypto(TOKEN, KEY, CORP).verify_url(sign, "1732233600", "n1", echostr)
    assert theirs == ours == "4212345678901234567"


@pytest.mark.parametrize("length", range(0, 70))
def test_every_padding_length_is_a_multiple_of_32(length: int) -> None:
    ciphertext = CallbackCipher(KEY, CORP).encrypt(b"x" * length)
    assert len(base64.b64decode(ciphertext)) % 32 == 0
    assert CallbackCipher(KEY, CORP).decrypt(ciphertext) == b"x" * length


def test_each_encryption_differs() -> None:
    cipher = CallbackCipher(KEY, CORP)
    assert cipher.encrypt(b"same") != cipher.encrypt(b"same")


def test_wrong_key_corp_and_garbage_are_one_typed_error() -> None:
    ciphertext = CallbackCipher(KEY, CORP).encrypt("你好".encode())
    for cipher in (
        CallbackCipher(new_encoding_aes_key(), CORP),
        CallbackCipher(KEY, "wwother"),
    ):
        with pytest.raises(CallbackCryptoError):
            cipher.decrypt(ciphertext)
    for garbage in ("", "no base64!", ciphertext[:-4], base64.b64encode(b"x" * 16).decode()):
        with pytest.raises(CallbackCryptoError):
            CallbackCipher(KEY, CORP).decrypt(garbage)


def test_the_simulator_shares_no_code_with_the_gateway() -> None:
    folder = Path(app.simulator.__file__).parent
    imported: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    assert not [name for name in imported if name.startswith(("app.wecom", "wechatpy"))]
    assert any(name.startswith("cryptography") for name in imported)

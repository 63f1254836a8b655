"""The codec: every fault of wechatpy 1.8.18 in scope, and the property of padding."""

from __future__ import annotations

import base64
import os
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wechatpy.enterprise.crypto import WeChatCrypto

from app.wecom.crypto import WeComCrypto
from app.wecom.errors import (
    CallbackError,
    CorpIdError,
    DecryptError,
    EncodingAESKeyError,
    MalformedError,
    SignatureError,
)
from app.wecom.xml import parse_xml
from tests.app.wecom.sealing import (
    CORP,
    KEY,
    NONCE,
    TIMESTAMP,
    TOKEN,
    encrypt_blocks,
    envelope,
    seal,
    sign,
)

crypto = WeComCrypto(TOKEN, KEY, CORP)


def open_body(body: bytes, encrypted: str = "", signature: str | None = None) -> bytes:
    return crypto.decrypt(body, signature or sign(encrypted), TIMESTAMP, NONCE)


def open_sealed(encrypted: str) -> bytes:
    return open_body(envelope(encrypted), encrypted)


@given(st.binary(min_size=0, max_size=200))
def test_any_message_opens_to_the_same_bytes(message: bytes) -> None:
    assert open_sealed(seal(message)) == message


@pytest.mark.parametrize("length", range(300, 364))
def test_padding_of_every_length_mod_32(length: int) -> None:
    """Half of all messages pad by more than 16 (Tencent/WeKnora#2832)."""
    message = b"a" * length
    assert open_sealed(seal(message)) == message


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=100))
def test_our_envelope_opens_with_wechatpy(message: str) -> None:
    sealed = crypto.encrypt(message, NONCE, TIMESTAMP)
    signature = parse_xml(sealed)["MsgSignature"]
    oracle = WeChatCrypto(TOKEN, KEY, CORP)
    assert oracle.decrypt_message(sealed, signature, TIMESTAMP, NONCE) == message


@given(st.text(st.characters(codec="utf-8"), max_size=100))
def test_an_envelope_of_wechatpy_opens_with_ours(message: str) -> None:
    sealed = WeChatCrypto(TOKEN, KEY, CORP).encrypt_message(message, NONCE, TIMESTAMP)
    signature = parse_xml(sealed)["MsgSignature"]
    assert crypto.decrypt(sealed.encode(), signature, TIMESTAMP, NONCE) == message.encode()


def test_two_encryptions_of_one_message_differ() -> None:
    assert crypto.encrypt("x", NONCE, TIMESTAMP) != crypto.encrypt("x", NONCE, TIMESTAMP)


# --- signature ---


@pytest.mark.parametrize("signature", ["0" * 40, "", "签名", "\udce4", "a" * 100_000])
def test_wrong_signature_is_refused(signature: str) -> None:
    with pytest.raises(SignatureError, match="Token"):
        crypto.decrypt(envelope(seal(b"x")), signature, TIMESTAMP, NONCE)


def test_right_signature_over_other_parameters_is_refused() -> None:
    encrypted = seal(b"x")
    with pytest.raises(SignatureError):
        crypto.decrypt(envelope(encrypted), sign(encrypted), TIMESTAMP, NONCE + "1")


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def record(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("app.wecom.crypto.hmac.compare_digest", record)
    encrypted = seal(b"x")
    open_sealed(encrypted)
    assert (sign(encrypted).encode(),) * 2 in compared
    assert (CORP.encode(),) * 2 in compared


# --- keys and receivers ---


def test_wrong_aes_key_is_one_typed_error() -> None:
    """wechatpy: struct.error, UnicodeDecodeError or InvalidCorpId by chance of the key."""
    for _ in range(2000):
        key = base64.b64encode(secrets.token_bytes(32)).decode()[:42]
        key = key.replace("+", "A").replace("/", "B") + "A"
        encrypted = seal(b"<xml/>", key=key)
        with pytest.raises(DecryptError, match="EncodingAESKey"):
            open_sealed(encrypted)


@pytest.mark.parametrize(
    "key", ["", "A" * 42, "A" * 44, KEY + " ", "é" * 43, "+" * 43, None, KEY + "\n"]
)
def test_a_key_that_cannot_work_is_refused_at_start(key: str) -> None:
    with pytest.raises(EncodingAESKeyError, match="43"):
        WeComCrypto(TOKEN, key, CORP)


def test_another_corp_is_refused_naming_both() -> None:
    with pytest.raises(CorpIdError, match=f"wwOther.*{CORP}"):
        open_sealed(seal(b"x", corp="wwOther"))


def test_a_receiver_that_is_not_text_is_another_corp() -> None:
    encrypted = seal(b"x" * 20)
    raw = base64.b64decode(encrypted)
    with pytest.raises(CallbackError):
        open_sealed(base64.b64encode(raw[:-32] + os.urandom(32)).decode())


def test_an_empty_receiver_is_refused_by_an_app() -> None:
    with pytest.raises(CorpIdError):
        open_sealed(seal(b"x", corp=""))


def test_an_empty_receiver_is_right_for_an_ai_bot() -> None:
    encrypted = seal(b"x", corp="")
    bot = WeComCrypto(TOKEN, KEY, "")
    assert bot.decrypt(envelope(encrypted), sign(encrypted), TIMESTAMP, NONCE) == b"x"


# --- bad ciphertext, rightly signed ---


@pytest.mark.parametrize("last", [0, 33, 255])
def test_padding_out_of_range_is_refused(last: int) -> None:
    plain_bytes = 16 + 4 + 5 + len(CORP)
    count = 32 - plain_bytes % 32
    with pytest.raises(DecryptError):
        open_sealed(seal(b"hello", padding=b"\0" * (count - 1) + bytes([last])))


def test_padding_whose_bytes_differ_is_refused() -> None:
    count = 32 - (16 + 4 + 5 + len(CORP)) % 32
    with pytest.raises(DecryptError):
        open_sealed(seal(b"hello", padding=b"\x01" * (count - 1) + bytes([count])))


def test_a_length_beyond_the_end_is_refused() -> None:
    plain = os.urandom(16) + (2**31).to_bytes(4, "big") + b"x" * 12
    plain += b"\x20" * 32
    with pytest.raises(DecryptError):
        open_sealed(encrypt_blocks(plain))


def test_a_plaintext_of_padding_alone_is_refused() -> None:
    with pytest.raises(DecryptError):
        open_sealed(encrypt_blocks(b"\x20" * 32))


@pytest.mark.parametrize("encrypted", ["%%%", "5L2g", "A", "中文", "AAAA" * 16 + "="])
def test_ciphertext_that_is_none_is_malformed(encrypted: str) -> None:
    with pytest.raises(MalformedError, match="Encrypt"):
        open_sealed(encrypted)


def test_cut_ciphertext_is_malformed() -> None:
    with pytest.raises(MalformedError, match="cut"):
        open_sealed(base64.b64encode(base64.b64decode(seal(b"x" * 100))[:-7]).decode())


@given(st.binary(max_size=300))
def test_rightly_signed_noise_is_always_a_callback_error(noise: bytes) -> None:
    with pytest.raises(CallbackError):
        open_sealed(base64.b64encode(noise).decode())


# --- bodies that are no envelope ---


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"garbage",
        b"<xml>",
        b"<xml/>",
        b"<xml></xml>",
        b"<xml><ToUserName>x</ToUserName></xml>",
        b"<xml><Encrypt/></xml>",
        b"<xml><Encrypt> </Encrypt></xml>",
        b"<xml><Encrypt>a</Encrypt><Encrypt>b</Encrypt></xml>",
        b"<xml><Encrypt><a>b</a></Encrypt></xml>",
        b"<html><Encrypt>a</Encrypt></html>",
        b'{"encrypt": "x"}',
        "<xml><Encrypt>中文</Encrypt></xml>".encode("gbk"),
        b"\xff\xfe<\x00x\x00m\x00l\x00",
        b"\x00" * 1000,
    ],
)
def test_a_body_that_is_no_envelope_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        open_body(body)


@given(st.binary(max_size=500))
def test_a_garbage_body_is_always_a_callback_error(body: bytes) -> None:
    with pytest.raises(CallbackError):
        open_body(body)


@pytest.mark.parametrize(
    "prologue",
    [
        b"<!DOCTYPE xml>",
        b'<!DOCTYPE xml [<!ENTITY a "b">]>',
        b'<!DOCTYPE xml SYSTEM "file:///etc/passwd">',
        b'<!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;"><!ENTITY c "&b;&b;&b;">]>',
    ],
)
def test_doctype_and_entities_are_malformed(prologue: bytes) -> None:
    with pytest.raises(MalformedError, match="DOCTYPE"):
        open_body(b'<?xml version="1.0"?>' + prologue + b"<xml><Encrypt>&c;</Encrypt></xml>")


def test_deep_nesting_is_malformed() -> None:
    with pytest.raises(MalformedError, match="deep"):
        open_body(b"<xml>" + b"<a>" * 20_000)


def test_a_body_with_a_byte_order_mark_opens() -> None:
    encrypted = seal(b"hello")
    assert open_body(b"\xef\xbb\xbf" + envelope(encrypted), encrypted) == b"hello"


def test_white_space_around_the_ciphertext_is_ignored() -> None:
    encrypted = seal(b"hello")
    body = f"<xml>\n  <Encrypt>\n{encrypted}\n</Encrypt>\n</xml>\n".encode()
    assert open_body(body, encrypted) == b"hello"


# --- URL verification ---


def test_echostr_gives_its_plaintext() -> None:
    echostr = seal(b"1616140317555161061")
    plain = crypto.verify_url(sign(echostr), TIMESTAMP, NONCE, echostr)
    assert plain == "1616140317555161061"


def _echostr_with_plus() -> str:
    while "+" not in (echostr := seal(b"1616140317555161061")):
        pass
    return echostr


def test_echostr_whose_plus_came_as_space_is_repaired() -> None:
    """AstrBotDevs/AstrBot#1481: a literal ``+`` in the query is decoded to a space."""
    echostr = _echostr_with_plus()
    plain = crypto.verify_url(sign(echostr), TIMESTAMP, NONCE, echostr.replace("+", " "))
    assert plain == "1616140317555161061"


def test_echostr_still_percent_encoded_is_refused_with_a_hint() -> None:
    echostr = _echostr_with_plus()
    with pytest.raises(SignatureError, match="encodes the query twice"):
        crypto.verify_url(sign(echostr), TIMESTAMP, NONCE, echostr.replace("+", "%2B"))


def test_empty_echostr_is_malformed() -> None:
    with pytest.raises(MalformedError, match="echostr"):
        crypto.verify_url(sign(""), TIMESTAMP, NONCE, "")


@pytest.mark.parametrize("echostr", ["x", "a b", "中", "AAAA", "="])
def test_garbage_echostr_rightly_signed_is_malformed(echostr: str) -> None:
    with pytest.raises(MalformedError, match="echostr"):
        crypto.verify_url(sign(echostr), TIMESTAMP, NONCE, echostr)


def test_echostr_of_another_corp_is_refused() -> None:
    echostr = seal(b"1", corp="wwOther")
    with pytest.raises(CorpIdError):
        crypto.verify_url(sign(echostr), TIMESTAMP, NONCE, echostr)


def test_echostr_that_is_not_text_is_malformed() -> None:
    echostr = seal(b"\xff\xfe")
    with pytest.raises(MalformedError, match="UTF-8"):
        crypto.verify_url(sign(echostr), TIMESTAMP, NONCE, echostr)

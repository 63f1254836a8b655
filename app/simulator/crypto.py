"""The service's side of the callback crypto, written from the documents on ``cryptography``.

AES-256-CBC; key = base64(EncodingAESKey + "="), IV = its first 16 bytes; plaintext = 16 random
bytes + 4-byte big-endian length + message + receive id, padded by PKCS#7 to a multiple of 32.
It must stay independent of ``app.wecom`` and wechatpy: the tests use it as an oracle for both.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import string

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK_BYTES = 32
_AES_BLOCK_BYTES = 16
_KEY_LETTERS = string.ascii_letters + string.digits


class CallbackCryptoError(Exception):
    """An envelope that the service itself would refuse; the message says at which step."""


def new_encoding_aes_key() -> str:
    """43 random letters and digits, as the console's 随机获取 button gives them."""
    return "".join(secrets.choice(_KEY_LETTERS) for _ in range(43))


def signature(token: str, timestamp: str, nonce: str, ciphertext: str) -> str:
    """sha1 in hex over the four strings, sorted and joined."""
    joined = "".join(sorted((token, timestamp, nonce, ciphertext)))
    return hashlib.sha1(joined.encode()).hexdigest()


def signature_matches(
    expected: str, token: str, timestamp: str, nonce: str, ciphertext: str
) -> bool:
    """True when ``expected`` is the signature of the other four."""
    return hmac.compare_digest(
        expected.encode(), signature(token, timestamp, nonce, ciphertext).encode()
    )


class CallbackCipher:
    """Encrypts and decrypts what travels between the service and one app."""

    def __init__(self, encoding_aes_key: str, receive_id: str) -> None:
        """``receive_id`` is the corp id for a self-built app."""
        key = base64.b64decode(encoding_aes_key + "=")
        if len(key) != 32:
            raise CallbackCryptoError(f"EncodingAESKey gives {len(key)} bytes instead of 32")
        self._cipher = Cipher(algorithms.AES256(key), modes.CBC(key[:_AES_BLOCK_BYTES]))
        self._receive_id = receive_id.encode()

    def encrypt(self, message: bytes) -> str:
        """Base64 ciphertext of ``message``; a fresh random prefix makes every call differ."""
        body = secrets.token_bytes(16) + len(message).to_bytes(4, "big")
        body += message + self._receive_id
        pad = BLOCK_BYTES - len(body) % BLOCK_BYTES
        encryptor = self._cipher.encryptor()
        sealed = encryptor.update(body + bytes([pad]) * pad) + encryptor.finalize()
        return base64.b64encode(sealed).decode()

    def decrypt(self, ciphertext: str) -> bytes:
        """The message inside ``ciphertext``. Raises ``CallbackCryptoError``."""
        try:
            sealed = base64.b64decode(ciphertext, validate=True)
        except binascii.Error as error:
            raise CallbackCryptoError("the ciphertext is not base64") from error
        if not sealed or len(sealed) % BLOCK_BYTES:
            raise CallbackCryptoError(f"{len(sealed)} bytes are not a multiple of {BLOCK_BYTES}")
        decryptor = self._cipher.decryptor()
        padded = decryptor.update(sealed) + decryptor.finalize()
        pad = padded[-1]
        if not 1 <= pad <= BLOCK_BYTES or padded[-pad:] != bytes([pad]) * pad:
            raise CallbackCryptoError("the padding is wrong: another EncodingAESKey?")
        body = padded[:-pad]
        length = int.from_bytes(body[16:20], "big")
        if len(body) < 20 + length:
            raise CallbackCryptoError("the length field points past the end")
        if body[20 + length :] != self._receive_id:
            raise CallbackCryptoError("the receive id is not the corp id")
        return body[20 : 20 + length]

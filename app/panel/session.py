"""The session of the admin page: a signed cookie, and the token its forms carry.

Owns the keys (derived from the admin token: a new token ends all sessions), the signature and the
age. Knows nothing of Flask or Redis.

Only somebody who knows the admin token ever gets a signed value: a signature in a stranger's hands
would let them try tokens on their own machine, past the limit on logins.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from itsdangerous import BadData, URLSafeTimedSerializer

EXPIRY_S = 12 * 3600


@dataclass(frozen=True)
class AdminSession:
    """Somebody who signed in."""

    id: str


class SessionSigner:
    """Makes and reads the cookies of one admin token."""

    def __init__(self, admin_token: str) -> None:
        assert admin_token, "without a token there is no admin page"
        self._serializer = URLSafeTimedSerializer(
            _derived(admin_token, "session"), signer_kwargs={"digest_method": hashlib.sha256}
        )
        self._form_key = _derived(admin_token, "forms")

    def new(self) -> tuple[AdminSession, str]:
        """A session that begins now, and its cookie."""
        session = AdminSession(secrets.token_hex(16))
        return session, str(self._serializer.dumps(session.id))

    def read(self, cookie: str) -> AdminSession | None:
        """The session of ``cookie``; ``None`` when it is forged, damaged or too old."""
        try:
            session_id = self._serializer.loads(cookie, max_age=EXPIRY_S)
        except BadData:
            return None
        return AdminSession(session_id) if isinstance(session_id, str) else None

    def form_token(self, session: AdminSession) -> str:
        """What every form of this session carries."""
        return hmac.new(self._form_key, session.id.encode(), hashlib.sha256).hexdigest()

    def form_token_matches(self, session: AdminSession, given: str) -> bool:
        """Compare in constant time."""
        return same(given, self.form_token(session))


def same(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _derived(admin_token: str, purpose: str) -> bytes:
    message = f"hutong admin page: {purpose}".encode()
    return hmac.new(admin_token.encode(), message, hashlib.sha256).digest()

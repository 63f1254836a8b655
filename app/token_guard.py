"""Who may call what only administrators and their monitoring may call.

Owns the comparison with the tokens of the installation and the limit on guesses. Knows no
endpoint and no form of answer.

The address is the one the connection comes from: ``X-Forwarded-For`` can be written by anybody.
Behind a proxy all callers therefore share one budget of wrong tokens.
"""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from typing import Literal

import redis
from flask import request

from app.boundary import has_bearer
from app.log import fields
from app.store.wrong_tokens import WrongTokens

logger = logging.getLogger(__name__)

MOST_WRONG_A_MINUTE = 10


@dataclass(frozen=True)
class Verdict:
    """``blocked``: too many wrong tokens came from there; ``retry_after_s`` says for how long."""

    outcome: Literal["granted", "denied", "blocked"]
    retry_after_s: int = 0


class TokenGuard:
    """Looks at the bearer token of the current request. ``tokens`` that are "" match nothing."""

    def __init__(self, client: redis.Redis, *tokens: str) -> None:
        self._wrong = WrongTokens(client)
        self._tokens = tokens

    def check(self) -> Verdict:
        """Compare; a wrong token counts, none at all does not. Raises ``redis.RedisError``.

        A blocked address is refused before the comparison, or it could go on guessing.
        """
        address = network_of(request.remote_addr or "")
        wait_s = self._wrong.blocked_s(address, MOST_WRONG_A_MINUTE)
        if wait_s:
            return Verdict("blocked", wait_s)
        if has_bearer(*self._tokens):
            return Verdict("granted")
        if (
            request.headers.get("Authorization")
            and self._wrong.count(address) == MOST_WRONG_A_MINUTE
        ):
            logger.warning("too many wrong tokens", extra=fields(address=address))
        return Verdict("denied")

    def check_without_store(self) -> Verdict:
        """Compare only, for an endpoint that must answer while Redis is away."""
        return Verdict("granted" if has_bearer(*self._tokens) else "denied")


def network_of(address: str) -> str:
    """What one caller may write from: an IPv4 address, the first 64 bits of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)

"""One process at a time works for a user: leases with fencing tokens and a heartbeat.

Owns who may work and how a process notices that it no longer may. A token is void as soon as
another holder came; every script that writes a result compares it. Knows nothing of turns,
parts or what is done under a lease.
"""

from __future__ import annotations

import logging
import secrets
import threading
from types import TracebackType

import redis

from app.log import fields
from app.store.keys import UserKeys
from app.store.scripts import script

log = logging.getLogger(__name__)

TTL_S = 10.0
"""A dead worker blocks its user for this long; renewed every third of it."""
_FENCE_EXPIRY_S = 30 * 86_400


class Lease:
    """A held lease; a context manager that renews it from a thread and gives it back at the end.

    ``lost`` is set when another holder came, or when Redis could not be asked for so long that
    one may have come; work should then stop, and its result would be refused anyway.
    """

    def __init__(self, leases: Leases, tag: str, token: str) -> None:
        self.tag = tag
        self.token = token
        self.lost = threading.Event()
        self._leases = leases
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{token[:8]}", daemon=True)

    @property
    def fence_key(self) -> str:
        """Key that scripts compare ``token`` with."""
        return UserKeys(self.tag).fence(self._leases.name)

    def renew(self) -> bool:
        """Prolong it now; False when it is lost."""
        if not self._leases.renew(self.tag, self.token):
            self.lost.set()
        return not self.lost.is_set()

    def release(self) -> None:
        """Stop the heartbeat and give the lease back."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._leases.release(self.tag, self.token)
        except redis.RedisError as error:
            # It expires by itself.
            log.warning("lease not released", extra=fields(error=type(error).__name__))

    def _beat(self) -> None:
        interval_s = self._leases.ttl_s / 3
        while not self._done.wait(interval_s):
            try:
                if not self.renew():
                    log.warning("lease lost to another holder")
                    return
            except redis.RedisError as error:
                # The fence still guards the result; the next beat tries again.
                log.warning("lease not renewed", extra=fields(error=type(error).__name__))

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Leases:
    """The leases of one kind (``turn`` or ``send``)."""

    def __init__(self, client: redis.Redis, name: str, ttl_s: float = TTL_S) -> None:
        self.name = name
        self.ttl_s = ttl_s
        self._acquire = script(client, "lease_acquire")
        self._renew = script(client, "lease_renew")
        self._release = script(client, "lease_release")

    def acquire(self, tag: str) -> Lease | None:
        """The lease of ``tag``, or ``None`` when somebody holds it."""
        args = [secrets.token_hex(8), self._ttl_ms, _FENCE_EXPIRY_S]
        token = self._acquire(keys=self._keys(tag), args=args)
        return Lease(self, tag, token.decode()) if token else None

    def renew(self, tag: str, token: str) -> bool:
        """Prolong the lease that ``token`` stands for; False when another holder came."""
        return bool(self._renew(keys=self._keys(tag), args=[token, self._ttl_ms]))

    def release(self, tag: str, token: str) -> bool:
        """Give it back; False when it was not ours any more."""
        return bool(self._release(keys=self._keys(tag), args=[token]))

    @property
    def _ttl_ms(self) -> int:
        return int(self.ttl_s * 1000)

    def _keys(self, tag: str) -> list[str]:
        keys = UserKeys(tag)
        return [keys.lease(self.name), keys.fence(self.name)]

"""Whether an app may send at all: pauses, WeCom's frequency limit, and what is to be mended.

Owns the pause of a whole app, its reason, the hold of an administrator, which no probe lifts, and
the alert an administrator reads. Knows nothing of error codes: what they mean is decided by the
sender.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import redis

from app.store import keys

HELD = "held by an administrator"
_LIMIT_EXPIRY_S = 2 * 3600


@dataclass(frozen=True)
class Alert:
    """Something only an administrator can mend. Nothing is lost meanwhile.

    ``allow_ip`` is the address to add to 企业可信IP, "" when it is not about that. Times are ms
    since 1970.
    """

    errcode: int
    reason: str
    allow_ip: str
    since_ms: int
    last_ms: int


class AppState:
    """The sending of all apps; ``tag`` is that of any user of the app."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def pause(self, tag: str, reason: str, pause_s: float) -> None:
        """Send nothing for the app of ``tag``; after ``pause_s`` the next part is the probe."""
        self._redis.set(_pause_key(tag), reason, px=max(1, int(pause_s * 1000)))

    def paused(self, tag: str) -> str:
        """Why the app of ``tag`` is paused, "" when it is not; ``HELD`` goes before all else."""
        address = keys.split_tag(tag)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.exists(keys.send_hold(address.corp_id, address.agent_id))
            pipe.get(_pause_key(tag))
            held, reason = pipe.execute()
        if held:
            return HELD
        return reason.decode() if isinstance(reason, bytes) else ""

    def hold(self, corp_id: str, agent_id: str) -> None:
        """Send nothing for this app until ``release``; the part being sent now is the last."""
        self._redis.set(keys.send_hold(corp_id, agent_id), self._now_ms(), nx=True)

    def release(self, corp_id: str, agent_id: str) -> bool:
        """End ``hold``; False when there was none. A pause for another reason stays."""
        return bool(self._redis.delete(keys.send_hold(corp_id, agent_id)))

    def held_since_ms(self, corp_id: str, agent_id: str) -> int:
        """When an administrator began to hold this app, 0 when none does."""
        since = self._redis.get(keys.send_hold(corp_id, agent_id))
        return int(since) if isinstance(since, bytes) else 0

    def raise_alert(self, tag: str, errcode: int, reason: str, allow_ip: str) -> bool:
        """Remember what is to be mended; True when this is news."""
        now_ms = self._now_ms()
        field = _field(tag)
        known = self.alerts().get(field)
        new = known is None or (known.errcode, known.allow_ip) != (errcode, allow_ip)
        since_ms = now_ms if new or known is None else known.since_ms
        alert = Alert(errcode, reason, allow_ip, since_ms, now_ms)
        self._redis.hset(keys.ALERTS, field, json.dumps(asdict(alert), ensure_ascii=False))
        return new

    def limited(self, tag: str) -> int:
        """Count that the frequency limit stopped the app; how often in a row it has."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.incr(_limited_key(tag))
            pipe.expire(_limited_key(tag), _LIMIT_EXPIRY_S)
            return cast(int, pipe.execute()[0])

    def works(self, tag: str) -> bool:
        """A message got through: forget the limit and the alert; True when there was an alert."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(_limited_key(tag))
            pipe.hdel(keys.ALERTS, _field(tag))
            return bool(pipe.execute()[1])

    def alerts(self) -> Mapping[str, Alert]:
        """What is to be mended, by ``corp:agent``."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(keys.ALERTS))
        return {field.decode(): _alert(json.loads(value)) for field, value in raw.items()}

    def _now_ms(self) -> int:
        seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000


def _alert(record: dict[str, Any]) -> Alert:
    return Alert(**record)


def _field(tag: str) -> str:
    return tag.rpartition(":")[0]


def _pause_key(tag: str) -> str:
    address = keys.split_tag(tag)
    return keys.send_pause(address.corp_id, address.agent_id)


def _limited_key(tag: str) -> str:
    address = keys.split_tag(tag)
    return keys.send_limited(address.corp_id, address.agent_id)

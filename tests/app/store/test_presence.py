"""The heartbeat of a turn worker."""

from __future__ import annotations

import redis

from app.store import keys
from app.store.presence import Presence, alive


def test_alive_while_open_and_gone_after(redis_client: redis.Redis) -> None:
    with Presence(redis_client, "a-model") as presence:
        assert alive(redis_client) == [presence.worker_id]
        assert 0 < redis_client.pttl(keys.worker(presence.worker_id)) <= 15_000
    assert alive(redis_client) == []


def test_renewed_beyond_its_time(redis_client: redis.Redis) -> None:
    with Presence(redis_client, "a-model", ttl_s=0.3) as presence:
        key = keys.worker(presence.worker_id)
        redis_client.delete(key)
        for _ in range(100):
            if redis_client.exists(key):
                break
            presence._done.wait(0.05)
        assert redis_client.exists(key)

"""The heartbeat of a process and what it says of itself."""

from __future__ import annotations

import os

import redis

from app.store import keys
from app.store.presence import Presence, alive, reports


def test_alive_while_open_and_gone_after(redis_client: redis.Redis) -> None:
    with Presence(redis_client, "turns") as presence:
        assert alive(redis_client) == [presence.process_id]
        assert alive(redis_client, "sender") == []
        assert 0 < redis_client.pttl(keys.process("turns", presence.process_id)) <= 15_000
    assert alive(redis_client) == []


def test_renewed_beyond_its_time(redis_client: redis.Redis) -> None:
    with Presence(redis_client, "sender", ttl_s=0.3) as presence:
        key = keys.process("sender", presence.process_id)
        redis_client.delete(key)
        for _ in range(100):
            if redis_client.exists(key):
                break
            presence._done.wait(0.05)
        assert redis_client.exists(key)


def test_reports_of_all_roles(redis_client: redis.Redis) -> None:
    with (
        Presence(redis_client, "turns", lambda: {"model": "demo-moe"}),
        Presence(redis_client, "sweeper"),
    ):
        sweeper, turns = reports(redis_client)
    assert (sweeper.role, turns.role) == ("sweeper", "turns")
    assert turns.facts == {"model": "demo-moe"}
    assert turns.pid == os.getpid()
    assert turns.rss_bytes > 1_000_000
    assert 0 <= turns.age_s < 5
    assert reports(redis_client) == []

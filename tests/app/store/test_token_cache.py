"""The shared access token: compare-and-set and one refresh among many processes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import redis

from app.store.token_cache import RedisTokenCache
from app.wecom.access_token import AccessToken, FetchedToken


def test_set_if_compares(redis_client: redis.Redis) -> None:
    cache = RedisTokenCache(redis_client)
    assert cache.get("c:1") is None
    assert cache.set_if("c:1", None, "one", 60)
    assert not cache.set_if("c:1", None, "two", 60)
    assert not cache.set_if("c:1", "other", None, 0)
    assert cache.get("c:1") == "one"
    assert cache.set_if("c:1", "one", None, 0)
    assert cache.get("c:1") is None


def test_twenty_cold_clients_fetch_once(redis_client: redis.Redis) -> None:
    fetched: list[int] = []
    barrier = threading.Barrier(20)

    def fetch() -> FetchedToken:
        fetched.append(1)
        time.sleep(0.1)
        return FetchedToken(f"token-{len(fetched)}", 7200)

    def get(_: int) -> str:
        token = AccessToken("c", "1", fetch, RedisTokenCache(redis_client))
        barrier.wait(10)
        return token.get()

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(get, range(20))) == {"token-1"}
    assert len(fetched) == 1


def test_lock_frees_itself_and_a_late_release_does_no_harm(redis_client: redis.Redis) -> None:
    cache = RedisTokenCache(redis_client)
    with cache.lock("c:1", hold_s=0.2, wait_s=1) as first:
        assert first
        with cache.lock("c:1", hold_s=5, wait_s=2) as second:
            assert second
            with cache.lock("c:1", hold_s=5, wait_s=0.1) as third:
                assert not third
    with cache.lock("c:1", hold_s=5, wait_s=0.1) as again:
        assert again

"""One token for all: single flight, re-check after the lock, only the failed token is dropped."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from app.wecom.access_token import AccessToken, FetchedToken
from app.wecom.errors import ApiError, TransportError
from tests.app.wecom.fake_api import serve


class MemoryCache:
    """A ``TokenCache`` of one process, for tests of the logic above it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.ttl_s: dict[str, float] = {}
        self._guard = threading.Lock()
        self._lock = threading.Lock()

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    def set_if(self, name: str, expected: str | None, value: str | None, ttl_s: float) -> bool:
        with self._guard:
            if self.values.get(name) != expected:
                return False
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
                self.ttl_s[name] = ttl_s
            return True

    @contextlib.contextmanager
    def lock(self, name: str, *, hold_s: float, wait_s: float) -> Iterator[bool]:
        held = self._lock.acquire(timeout=wait_s)
        try:
            yield held
        finally:
            if held:
                self._lock.release()


class Fetch:
    """Counts gettoken calls; each gives a new token, slowly enough for others to pile up."""

    def __init__(self, expires_in_s: int = 7200) -> None:
        self.count = 0
        self._expires_in_s = expires_in_s

    def __call__(self) -> FetchedToken:
        self.count += 1
        time.sleep(0.05)
        return FetchedToken(f"token-{self.count}", self._expires_in_s)


def test_twenty_cold_threads_fetch_once() -> None:
    """wechatpy: 20 gettoken."""
    fetch, cache = Fetch(), MemoryCache()
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda: got.append(AccessToken("c", "1", fetch, cache).get()))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["token-1"] * 20
    assert fetch.count == 1


def test_twenty_threads_with_one_dead_token_refresh_once() -> None:
    fetch, cache = Fetch(), MemoryCache()
    token = AccessToken("c", "1", fetch, cache)
    dead = token.get()
    barrier = threading.Barrier(20)
    got: list[str] = []

    def refresh() -> None:
        barrier.wait()
        token.discard(dead)
        got.append(token.get())

    threads = [threading.Thread(target=refresh) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["token-2"] * 20
    assert fetch.count == 2


def test_discarding_an_older_token_keeps_the_newer() -> None:
    fetch, cache = Fetch(), MemoryCache()
    token = AccessToken("c", "1", fetch, cache)
    old = token.get()
    token.discard(old)
    new = token.get()
    token.discard(old)
    assert token.get() == new


def test_two_apps_have_two_tokens_and_no_secret_in_the_name() -> None:
    """The token of app A is refused for app B (301002)."""
    fetch, cache = Fetch(), MemoryCache()
    assert AccessToken("c", "1", fetch, cache).get() != AccessToken("c", "2", fetch, cache).get()
    assert set(cache.values) == {"c:1", "c:2"}


@pytest.mark.parametrize(("expires_in_s", "kept_s"), [(7200, 6900), (60, 53), (1, 1), (0, 1)])
def test_a_token_is_renewed_before_its_end(expires_in_s: int, kept_s: float) -> None:
    cache = MemoryCache()
    AccessToken("c", "1", Fetch(expires_in_s), cache).get()
    assert cache.ttl_s["c:1"] == kept_s


def test_a_failed_fetch_is_not_remembered_and_frees_the_lock() -> None:
    cache = MemoryCache()

    def refuse() -> FetchedToken:
        raise ApiError(40001, "invalid credential", "pause")

    with pytest.raises(ApiError):
        AccessToken("c", "1", refuse, cache).get()
    assert AccessToken("c", "1", Fetch(), cache).get() == "token-1"


def test_a_lock_that_is_never_free_is_a_retryable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.wecom.access_token.LOCK_WAIT_S", 0.01)
    fetch, cache = Fetch(), MemoryCache()
    with cache.lock("c:1", hold_s=1, wait_s=1), pytest.raises(TransportError) as caught:
        AccessToken("c", "1", fetch, cache).get()
    assert caught.value.retryable
    assert fetch.count == 0


_PROCESS = """
import sys
from app.store.server import connect
from app.store.token_cache import RedisTokenCache
from app.wecom.access_token import AccessToken
from app.wecom.client import TokenFetcher

redis_url, api_base = sys.argv[1:]
fetch = TokenFetcher(api_base, "ww1", "secret")
source = AccessToken("ww1", "1000003", fetch, RedisTokenCache(connect(redis_url)))
print("ready", flush=True)
sys.stdin.readline()
dead = source.get()
print(dead, flush=True)
sys.stdin.readline()
source.discard(dead)
print(source.get(), flush=True)
sys.stdin.readline()
"""


def test_four_processes_on_one_redis_fetch_once_and_refresh_once(redis_url: str) -> None:
    with serve() as api, contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _PROCESS, redis_url, api.url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        answers: list[list[str]] = [[], [], []]
        for answer in answers:
            for process in processes:
                assert process.stdout is not None
                answer.append(process.stdout.readline().strip())
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        assert answers == [["ready"] * 4, ["token-1"] * 4, ["token-2"] * 4]
        assert len(api.gettoken) == 2

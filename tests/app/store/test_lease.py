"""Leases: one holder, fencing tokens, a heartbeat that notices a loss."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import redis

from app.store.lease import Lease, Leases
from tests.app.store.messages import tag_of

TAG = tag_of("zhang")


def test_one_of_many_gets_it(redis_client: redis.Redis) -> None:
    leases = Leases(redis_client, "turn")
    barrier = threading.Barrier(16)

    def acquire(_: int) -> Lease | None:
        barrier.wait(10)
        return leases.acquire(TAG)

    with ThreadPoolExecutor(16) as pool:
        held = [lease for lease in pool.map(acquire, range(16)) if lease]
    assert len(held) == 1
    assert leases.acquire(tag_of("li")) is not None


def test_kinds_do_not_block_each_other(redis_client: redis.Redis) -> None:
    assert Leases(redis_client, "turn").acquire(TAG)
    assert Leases(redis_client, "send").acquire(TAG)


def test_tokens_grow_and_a_released_one_is_void(redis_client: redis.Redis) -> None:
    leases = Leases(redis_client, "turn")
    counts = []
    for _ in range(3):
        lease = leases.acquire(TAG)
        assert lease
        counts.append(int(lease.token.split("-")[0]))
        lease.release()
        assert not leases.renew(TAG, lease.token)
    assert counts == [1, 2, 3]


def test_heartbeat_keeps_it_beyond_its_time(redis_client: redis.Redis) -> None:
    leases = Leases(redis_client, "turn", ttl_s=0.3)
    held = leases.acquire(TAG)
    assert held
    with held as lease:
        assert not lease.lost.wait(1.0)
        assert leases.acquire(TAG) is None
    assert leases.acquire(TAG) is not None


def test_an_expired_lease_that_nobody_took_comes_back_to_life(redis_client: redis.Redis) -> None:
    leases = Leases(redis_client, "turn")
    lease = leases.acquire(TAG)
    assert lease
    redis_client.delete(f"hutong:{{{TAG}}}:lease:turn")
    assert lease.renew()
    assert leases.acquire(TAG) is None


def test_a_holder_that_was_replaced_notices(redis_client: redis.Redis) -> None:
    leases = Leases(redis_client, "turn", ttl_s=0.3)
    first = leases.acquire(TAG)
    assert first
    redis_client.delete(f"hutong:{{{TAG}}}:lease:turn")
    second = leases.acquire(TAG)
    assert second
    with first:
        assert first.lost.wait(5)
    assert second.renew(), "the release of the first must not touch the second"

from __future__ import annotations

import torch

from inference.engine.kv_cache import KVCache, KVShape
from inference.engine.prefix_cache import PrefixCache

SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=4)
TOKEN_BYTES = 2 * 2 * 2 * 4 * 4


def new_caches(capacity_tokens: int = 1000) -> tuple[KVCache, PrefixCache]:
    kv_cache = KVCache(SHAPE, num_slots=3, max_model_len=64)
    prefix_cache = PrefixCache(kv_cache, capacity_bytes=capacity_tokens * TOKEN_BYTES, min_tokens=4)
    return kv_cache, prefix_cache


def fill(kv_cache: KVCache, slot: int, value: float) -> None:
    for layer in range(SHAPE.num_layers):
        kv_cache.keys[layer][slot].fill_(value)
        kv_cache.values[layer][slot].fill_(-value)


def test_slots_are_handed_out_once() -> None:
    kv_cache, _ = new_caches()
    assert sorted(kv_cache.allocate() for _ in range(3)) == [0, 1, 2]
    kv_cache.free(1)
    assert kv_cache.allocate() == 1
    assert SHAPE.bytes_per_token(torch.float32) == TOKEN_BYTES


def test_the_longest_common_prefix_is_copied() -> None:
    kv_cache, prefix_cache = new_caches()
    fill(kv_cache, 0, 1.0)
    prefix_cache.store([1, 2, 3, 4, 5, 9, 9], 0)
    fill(kv_cache, 0, 2.0)
    prefix_cache.store([1, 2, 3, 4, 5, 6, 7], 0)
    fill(kv_cache, 1, 0.0)
    assert prefix_cache.restore([1, 2, 3, 4, 5, 6, 8, 8], 1) == 6
    assert kv_cache.keys[1][1][:, :, :6].eq(2.0).all()
    assert kv_cache.values[1][1][:, :6].eq(-2.0).all()
    assert kv_cache.keys[1][1][:, :, 6:].eq(0.0).all()


def test_an_entry_is_a_copy_that_later_steps_do_not_touch() -> None:
    kv_cache, prefix_cache = new_caches()
    fill(kv_cache, 0, 1.0)
    prefix_cache.store([1, 2, 3, 4, 5], 0)
    fill(kv_cache, 0, 7.0)
    prefix_cache.restore([1, 2, 3, 4, 5, 6], 1)
    fill(kv_cache, 1, 8.0)
    assert prefix_cache.restore([1, 2, 3, 4, 5, 6], 2) == 5
    assert kv_cache.keys[0][2][:, :, :5].eq(1.0).all()


def test_the_last_prompt_token_is_always_computed() -> None:
    _, prefix_cache = new_caches()
    prefix_cache.store([1, 2, 3, 4, 5, 6], 0)
    assert prefix_cache.restore([1, 2, 3, 4, 5, 6], 1) == 5
    assert prefix_cache.restore([1, 2, 3, 4, 5], 1) == 4


def test_nothing_in_common_or_too_little_is_not_used() -> None:
    _, prefix_cache = new_caches()
    prefix_cache.store([1, 2, 3, 4, 5, 6], 0)
    assert prefix_cache.restore([9, 2, 3, 4, 5, 6, 7], 1) == 0
    assert prefix_cache.restore([1, 2, 3, 9, 9, 9], 1) == 0
    assert prefix_cache.restore([1], 1) == 0


def test_a_longer_entry_replaces_its_own_prefix() -> None:
    _, prefix_cache = new_caches()
    prefix_cache.store([1, 2, 3, 4], 0)
    prefix_cache.store([1, 2, 3, 4, 5, 6], 0)
    prefix_cache.store([1, 2, 3, 4, 5], 0)
    stats = prefix_cache.stats
    assert (stats.entries, stats.size_bytes) == (1, 6 * TOKEN_BYTES)


def test_memory_is_bounded_and_the_least_recent_entry_goes_first() -> None:
    _, prefix_cache = new_caches(capacity_tokens=20)
    for first in (1, 2, 3, 4):
        prefix_cache.store([first] * 5, 0)
    assert prefix_cache.restore([1] * 6, 1) == 5
    prefix_cache.store([5] * 5, 0)
    assert prefix_cache.stats.size_bytes <= 20 * TOKEN_BYTES
    assert prefix_cache.restore([2] * 6, 1) == 0
    assert prefix_cache.restore([1] * 6, 1) == 5
    prefix_cache.store([6] * 21, 0)
    assert prefix_cache.restore([6] * 22, 1) == 0


def test_capacity_zero_turns_it_off() -> None:
    _, prefix_cache = new_caches(capacity_tokens=0)
    prefix_cache.store([1] * 10, 0)
    assert prefix_cache.restore([1] * 10, 1) == 0

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.checkpoint import int4
from inference.checkpoint.loader import load_model
from inference.moe.expert_cache import ExpertCache
from inference.moe.expert_store import ExpertStore


@pytest.fixture(scope="module")
def store(tiny_model_dir: Path) -> ExpertStore:
    return load_model(tiny_model_dir).store


def new_cache(store: ExpertStore, slots: int, policy: str = "lru") -> ExpertCache:
    return ExpertCache(store, num_slots=slots, num_experts_per_tok=2, policy=policy)  # type: ignore[arg-type]


def test_weights_are_the_dequantised_transposes(store: ExpertStore) -> None:
    cache = new_cache(store, 2)
    for expert in (0, 7, 3, 7):
        ((gate_up_t, down_t),) = cache.fetch(1, [expert])
        packed = store.get(1, expert)
        assert torch.equal(gate_up_t.t(), int4.dequantize(packed.gate_up_proj))
        assert torch.equal(down_t.t(), int4.dequantize(packed.down_proj))


def test_counters(store: ExpertStore) -> None:
    cache = new_cache(store, 3)
    cache.fetch(0, [0, 1])
    cache.fetch(0, [1, 2])
    cache.fetch(0, [3, 2])
    stats = cache.stats
    assert (stats.hits, stats.misses, stats.evictions) == (2, 4, 1)
    assert stats.bytes_read == 4 * store.shape.size_bytes
    assert stats.hit_rate == pytest.approx(2 / 6)
    cache.reset_stats()
    assert cache.stats.hit_rate == 1.0


def test_layers_have_their_own_slots(store: ExpertStore) -> None:
    cache = new_cache(store, 2)
    cache.fetch(0, [0, 1])
    cache.fetch(1, [0, 1])
    cache.fetch(0, [0, 1])
    assert (cache.stats.hits, cache.stats.misses, cache.stats.evictions) == (2, 4, 0)


def test_lru_evicts_the_one_used_longest_ago(store: ExpertStore) -> None:
    cache = new_cache(store, 3)
    for experts in ([0, 1], [2, 0], [3, 0]):
        cache.fetch(0, experts)
    cache.reset_stats()
    cache.fetch(0, [0, 2])
    assert cache.stats.misses == 0
    cache.fetch(0, [1])
    assert cache.stats.misses == 1


def test_decayed_frequency_keeps_a_favourite_that_lru_would_drop(store: ExpertStore) -> None:
    for policy, misses in (("decayed_frequency", 0), ("lru", 1)):
        cache = new_cache(store, 3, policy)
        for _ in range(20):
            cache.fetch(0, [5])
        for expert in (0, 1, 2):
            cache.fetch(0, [expert])
        cache.reset_stats()
        cache.fetch(0, [5])
        assert cache.stats.misses == misses


def test_an_expert_of_the_same_call_is_never_evicted(store: ExpertStore) -> None:
    for policy in ("lru", "decayed_frequency"):
        cache = new_cache(store, 2, policy)
        for experts in ([0, 1], [1, 2], [2, 0], [3, 2], [7, 6], [6, 1]):
            pairs = cache.fetch(0, experts)
            for expert, (gate_up_t, _) in zip(experts, pairs, strict=True):
                expected = int4.dequantize(store.get(0, expert).gate_up_proj)
                assert torch.equal(gate_up_t.t(), expected)


def test_waves_put_residents_first_and_fit_into_the_slots(store: ExpertStore) -> None:
    cache = new_cache(store, 3)
    cache.fetch(0, [6, 4])
    waves = cache.waves(0, [0, 1, 2, 4, 6])
    assert [len(wave) for wave in waves] == [3, 2]
    assert waves[0][:2] == [4, 6]
    assert sorted(expert for wave in waves for expert in wave) == [0, 1, 2, 4, 6]


def test_more_slots_than_experts_are_not_allocated(store: ExpertStore) -> None:
    assert new_cache(store, 100).num_slots == 8

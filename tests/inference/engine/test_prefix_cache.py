"""The prefix cache over a cache whose snapshots cannot be cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.hybrid_cache import HybridCache, RecurrentShape
from inference.engine.kv_cache import KVShape
from inference.engine.prefix_cache import PrefixCache
from inference.engine.scheduler import Decode, Prefill, Scheduler
from inference.tokenizer import Tokenizer
from tests.inference.engine.test_scheduler import compute, new_sequence

KV = KVShape(num_layers=1, num_kv_heads=2, head_dim=4)
RECURRENT = RecurrentShape(num_layers=3, conv=(12, 4), state=(2, 4, 4))
TYPES = ["linear_attention"] * 3 + ["full_attention"]
STATE_BYTES = 3 * 4 * (12 * 4 + 2 * 4 * 4)
TOKEN_BYTES = 2 * 2 * 4 * 4


def hybrid(capacity_bytes: int = 10**6) -> tuple[HybridCache, PrefixCache]:
    cache = HybridCache(KV, RECURRENT, TYPES, num_slots=3, max_model_len=64)
    return cache, PrefixCache(cache, capacity_bytes=capacity_bytes, min_tokens=4)


def fill(cache: HybridCache, slot: int, value: float) -> None:
    for tensor in (cache.keys[0], cache.values[0], *cache.conv, *cache.state):
        tensor[slot].fill_(value)


def all_equal(cache: HybridCache, slot: int, value: float) -> bool:
    return all(bool(state[slot].eq(value).all()) for state in (*cache.conv, *cache.state))


def test_an_entry_serves_only_prompts_that_continue_all_of_it() -> None:
    cache, prefix = hybrid()
    fill(cache, 0, 1.0)
    prefix.store([1, 2, 3, 4, 5, 6], 0)
    fill(cache, 1, 0.0)
    assert prefix.restore([1, 2, 3, 4, 5, 7, 8], 1) == 0
    assert prefix.restore([1, 2, 3, 4, 5, 6], 1) == 0  # its last token must be computed
    assert all_equal(cache, 1, 0.0)
    assert prefix.restore([1, 2, 3, 4, 5, 6, 7], 1) == 6
    assert all_equal(cache, 1, 1.0)
    assert cache.keys[0][1][:, :, :6].eq(1.0).all()


def test_snapshots_are_copies_in_both_directions() -> None:
    cache, prefix = hybrid()
    fill(cache, 0, 1.0)
    prefix.store([1, 2, 3, 4, 5], 0)
    fill(cache, 0, 2.0)
    prefix.restore([1, 2, 3, 4, 5, 6], 1)
    fill(cache, 1, 3.0)
    prefix.restore([1, 2, 3, 4, 5, 6], 2)
    assert all_equal(cache, 2, 1.0)


def test_a_longer_entry_does_not_replace_a_shorter_one() -> None:
    cache, prefix = hybrid()
    fill(cache, 0, 1.0)
    prefix.store([1, 2, 3, 4], 0)
    fill(cache, 0, 2.0)
    prefix.store([1, 2, 3, 4, 5, 6], 0)
    prefix.store([1, 2, 3, 4], 0)
    assert prefix.stats.entries == 2
    assert prefix.stats.size_bytes == 2 * STATE_BYTES + 10 * TOKEN_BYTES
    assert prefix.restore([1, 2, 3, 4, 9], 1) == 4
    assert all_equal(cache, 1, 1.0)
    assert prefix.restore([1, 2, 3, 4, 5, 6, 7], 1) == 6
    assert all_equal(cache, 1, 2.0)


def test_a_part_of_a_snapshot_is_refused() -> None:
    cache, _ = hybrid()
    with pytest.raises(ValueError, match="after 5 tokens is not one after 4"):
        cache.write(1, cache.read(0, 5), 4)


def test_memory_is_bounded_by_states_too() -> None:
    _, prefix = hybrid(2 * STATE_BYTES + 12 * TOKEN_BYTES)
    for first in (1, 2, 3):
        prefix.store([first] * 5, 0)
    assert prefix.stats.entries == 2
    assert prefix.restore([1] * 6, 1) == 0
    assert prefix.restore([3] * 6, 1) == 5


def test_nothing_is_asked_for_when_nothing_would_be_kept() -> None:
    cache, prefix = hybrid(STATE_BYTES)
    prefix.boundary([1] * 20, 0)
    assert prefix.boundary([1] * 20, 0) == 19
    prefix.store([1] * 19, 0)
    assert prefix.stats.entries == 0
    assert prefix.boundary([1] * 20, 0) is None
    off = PrefixCache(cache, capacity_bytes=0)
    off.boundary([1] * 20, 0)
    assert off.boundary([1] * 20, 0) is None


def test_a_boundary_is_the_longest_prefix_shared_with_an_earlier_prompt() -> None:
    _, prefix = hybrid()
    assert prefix.boundary([1, 2, 3, 4, 5, 6, 7, 8], 0) is None
    assert prefix.boundary([1, 2, 3, 4, 5, 9, 9], 0) == 5
    assert prefix.boundary([1, 2, 3, 4, 5, 9, 9], 0) == 6
    assert prefix.boundary([1, 2, 3, 8], 0) is None  # less than min_tokens
    assert prefix.boundary([1, 2, 3, 4, 5, 9, 9, 9], 5) is None  # hardly longer than what is there
    prefix.store([5] * 30, 0)
    assert prefix.boundary([5] * 25 + [6] * 5, 0) == 25


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer(tiny_model_dir)


def test_a_shared_system_prompt_is_computed_twice_and_never_again(tokenizer: Tokenizer) -> None:
    cache, prefix = hybrid()
    scheduler = Scheduler(cache, prefix, prefill_chunk_tokens=10)
    system = list(range(100, 125))
    chunks: list[list[tuple[int, int]]] = []
    for number in range(4):
        sequence = new_sequence(tokenizer, [*system, 200 + number, 201 + number, 202 + number])
        scheduler.add(sequence)
        chunks.append([])
        while not sequence.is_prefilled:
            step = scheduler.schedule()
            assert isinstance(step, Prefill)
            chunks[-1].append((step.start, step.end))
            fill(cache, sequence.slot, float(step.end))
            compute(step)
        assert scheduler.schedule() == Decode((sequence,))
        scheduler.discard(sequence)
    assert chunks[0] == [(0, 10), (10, 20), (20, 28)]
    assert chunks[1] == [(0, 10), (10, 20), (20, 25), (25, 28)]
    assert chunks[2] == chunks[3] == [(25, 28)]
    slot = cache.allocate()
    assert prefix.restore([*system, 1], slot) == 25
    assert all_equal(cache, slot, 25.0)


def test_no_boundary_outlives_its_sequence(tokenizer: Tokenizer) -> None:
    cache, prefix = hybrid()
    scheduler = Scheduler(cache, prefix, prefill_chunk_tokens=10)
    for _ in range(2):
        sequence = new_sequence(tokenizer, list(range(100, 130)))
        scheduler.add(sequence)
        scheduler.schedule()
        scheduler.discard(sequence)
    assert scheduler._boundaries == {}
    assert torch.equal(cache.state[0][0], torch.zeros(2, 4, 4))

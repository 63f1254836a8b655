"""The paged cache: who holds which page, snapshots, and stock forwards over pages."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5MoeForCausalLM, Qwen3MoeForCausalLM

from inference.engine.kv_pages import OutOfPagesError, PagedKVCache
from inference.geometry import ModelGeometry
from tests.inference.kernels.stock_layers import (
    cache_argument,
    geometry_of,
    randomise,
    tiny_config,
)

ARCHITECTURES = ["qwen3_moe", "qwen3_5_moe"]


def make_cache(geometry: ModelGeometry, **options: Any) -> PagedKVCache:
    arguments = {
        "num_pages": 16,
        "page_size": 8,
        "max_num_seqs": 3,
        "max_model_len": 64,
        "dtype": torch.float32,
    }
    return PagedKVCache(geometry, **(arguments | options))


class StockModel:
    """A tiny stock model; ``forward`` runs one chunk over a slot."""

    def __init__(self, architecture: str) -> None:
        config = tiny_config(architecture)
        self.geometry = geometry_of(config)
        classes = {"qwen3_moe": Qwen3MoeForCausalLM, "qwen3_5_moe": Qwen3_5MoeForCausalLM}
        self.model: Any = randomise(classes[architecture](config), seed=1)
        self.vocab_size = config.vocab_size

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        return random.Random(seed).choices(range(self.vocab_size), k=count)

    def whole(self, token_ids: list[int]) -> Tensor:
        """Logits [n, V] without any cache."""
        out: Tensor = self.model(torch.tensor([token_ids]), use_cache=False).logits[0]
        return out

    def forward(self, cache: PagedKVCache, token_ids: list[int], slot: int, start: int) -> Tensor:
        """Logits [n, V] of ``token_ids`` at positions ``start`` and on."""
        argument = {cache_argument(self.model): cache.for_transformers(slot, start)}
        out: Tensor = self.model(torch.tensor([token_ids]), use_cache=True, **argument).logits[0]
        return out


@pytest.fixture(scope="module", params=ARCHITECTURES)
def stock(request: pytest.FixtureRequest) -> StockModel:
    return StockModel(request.param)


@pytest.fixture
def geometry(stock: StockModel) -> ModelGeometry:
    return stock.geometry


def test_slots_and_pages_come_and_go(geometry: ModelGeometry) -> None:
    cache = make_cache(geometry)
    slots = [cache.allocate() for _ in range(3)]
    assert sorted(slots) == [0, 1, 2]
    assert cache.num_free_slots == 0
    assert cache.reserve(slots[0], 1)
    assert not cache.reserve(slots[0], 8)
    assert cache.reserve(slots[0], 9)
    assert cache.num_free_pages == 14
    cache.free(slots[0])
    assert (cache.num_free_slots, cache.num_free_pages) == (1, 16)


def test_no_page_belongs_to_two_slots(geometry: ModelGeometry) -> None:
    """Random growth and endings; the pool is smaller than all slots together could want."""
    cache = make_cache(geometry)
    rng = random.Random(4)
    lengths: dict[int, int] = {}
    refused = 0
    for _ in range(500):
        if lengths and rng.random() < 0.2:
            slot = rng.choice(list(lengths))
            cache.free(slot)
            del lengths[slot]
        elif cache.num_free_slots and rng.random() < 0.4:
            lengths[cache.allocate()] = 0
        elif lengths:
            slot = rng.choice(list(lengths))
            wanted = min(64, lengths[slot] + rng.randint(1, 20))
            free = cache.num_free_pages
            try:
                cache.reserve(slot, wanted)
                lengths[slot] = wanted
            except OutOfPagesError:
                refused += 1
                assert cache.num_free_pages == free
        held = [
            page
            for slot, length in lengths.items()
            for page in cache.table_rows([slot])[0, : -(-length // 8)].tolist()
        ]
        assert len(held) == len(set(held)) == 16 - cache.num_free_pages
        assert torch.equal(cache.block_tables, cache.table_rows(range(3)))
    assert refused > 0


def test_reserve_names_what_is_missing(geometry: ModelGeometry) -> None:
    cache = make_cache(geometry, num_pages=2)
    slot = cache.allocate()
    with pytest.raises(OutOfPagesError, match="3 more pages, 2 are free") as error:
        cache.reserve(slot, 17)
    assert error.value.retryable
    with pytest.raises(ValueError, match="65 tokens"):
        cache.reserve(slot, 65)


def test_dtype_and_convolution_are_checked(geometry: ModelGeometry) -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        make_cache(geometry, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "fp32"), (torch.float16, "fp16"), (torch.uint8, "fp8")]
)
def test_size_is_the_one_of_the_plan(
    geometry: ModelGeometry, dtype: torch.dtype, name: str
) -> None:
    cache = make_cache(geometry, dtype=dtype)
    pages = 16 * 8 * geometry.kv_bytes_per_token(name)
    assert cache.size_bytes == pages + 3 * geometry.state_bytes


@pytest.mark.parametrize("chunk", [1, 2, 5, 8, 13])
def test_chunks_equal_the_whole(stock: StockModel, chunk: int) -> None:
    """Any chunking of a prompt, in a slot and pages used before, gives the logits of the whole
    prompt without a cache (fp32, sums in another order)."""
    cache = make_cache(stock.geometry)
    slot = cache.allocate()
    stock.forward(cache, stock.tokens(40, seed=9), slot, 0)
    cache.free(slot)
    other = cache.allocate()
    stock.forward(cache, stock.tokens(3, seed=8), other, 0)
    slot = cache.allocate()
    token_ids = stock.tokens(27)
    parts = [
        stock.forward(cache, token_ids[start : start + chunk], slot, start)
        for start in range(0, 27, chunk)
    ]
    torch.testing.assert_close(torch.cat(parts), stock.whole(token_ids), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_rounded_pages_change_logits_little(stock: StockModel, dtype: torch.dtype) -> None:
    cache = make_cache(stock.geometry, dtype=dtype)
    slot = cache.allocate()
    token_ids = stock.tokens(30)
    stock.forward(cache, token_ids[:25], slot, 0)
    out, whole = stock.forward(cache, token_ids[25:], slot, 25), stock.whole(token_ids)[25:]
    error = (out - whole).norm() / whole.norm()
    assert 0.0 < error < {torch.float16: 2e-3, torch.uint8: 0.15}[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("length", [2, 8, 21])
def test_a_snapshot_goes_on_exactly(stock: StockModel, length: int, dtype: torch.dtype) -> None:
    cache = make_cache(stock.geometry, dtype=dtype)
    first = cache.allocate()
    token_ids = stock.tokens(length + 6)
    stock.forward(cache, token_ids[:length], first, 0)
    snapshot = cache.read(first, length)
    assert snapshot.num_tokens == length
    expected = stock.forward(cache, token_ids[length:], first, length)
    second = cache.allocate()
    cache.write(second, snapshot)
    assert torch.equal(stock.forward(cache, token_ids[length:], second, length), expected)
    # The first forward went on in its slot; the snapshot shares nothing with it.
    cache.free(second)
    third = cache.allocate()
    cache.write(third, snapshot)
    assert torch.equal(stock.forward(cache, token_ids[length:], third, length), expected)


def test_a_snapshot_weighs_its_tokens_and_states(stock: StockModel) -> None:
    cache = make_cache(stock.geometry, dtype=torch.uint8)
    slot = cache.allocate()
    stock.forward(cache, stock.tokens(11), slot, 0)
    expected = 11 * stock.geometry.kv_bytes_per_token("fp8") + stock.geometry.state_bytes
    assert cache.read(slot, 11).size_bytes == expected


def test_only_models_without_states_take_a_part_of_a_snapshot(stock: StockModel) -> None:
    cache = make_cache(stock.geometry)
    token_ids = stock.tokens(20)
    slot = cache.allocate()
    stock.forward(cache, token_ids, slot, 0)
    snapshot = cache.read(slot, 20)
    other = cache.allocate()
    assert cache.prefix_sliceable == (stock.geometry.linear_attention is None)
    if cache.prefix_sliceable:
        cache.write(other, snapshot, 13)
        out = stock.forward(cache, token_ids[13:], other, 13)
        torch.testing.assert_close(out, stock.whole(token_ids)[13:], atol=2e-4, rtol=1e-4)
    else:
        with pytest.raises(ValueError, match="13 tokens of a snapshot of 20"):
            cache.write(other, snapshot, 13)
    with pytest.raises(ValueError, match="21 tokens"):
        cache.write(other, snapshot, 21)


def test_slots_do_not_mix(stock: StockModel) -> None:
    """Two sequences in turns, chunk by chunk, equal each alone."""
    cache = make_cache(stock.geometry)
    slots = [cache.allocate(), cache.allocate()]
    prompts = [stock.tokens(24, seed=1), stock.tokens(24, seed=2)]
    parts: list[list[Tensor]] = [[], []]
    for start in range(0, 24, 6):
        for index in (0, 1):
            chunk = prompts[index][start : start + 6]
            parts[index].append(stock.forward(cache, chunk, slots[index], start))
    for prompt, logits in zip(prompts, parts, strict=True):
        torch.testing.assert_close(torch.cat(logits), stock.whole(prompt), atol=2e-4, rtol=1e-4)


def test_a_forward_that_finds_no_pages_says_so(stock: StockModel) -> None:
    cache = make_cache(stock.geometry, num_pages=2)
    slot = cache.allocate()
    with pytest.raises(OutOfPagesError):
        stock.forward(cache, stock.tokens(17), slot, 0)

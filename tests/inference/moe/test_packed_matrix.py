"""Multiplying packed INT4. Tolerance: 1 % of the result's size; bf16 rounds to 0.4 %."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.benchmarks.random_model import ModelShape, write_random_model
from inference.checkpoint import int4
from inference.checkpoint.format import ExpertShape
from inference.checkpoint.loader import load_model
from inference.moe import packed_matrix
from inference.moe.expert_cache import ExpertCache, slot_format
from inference.moe.packed_matrix import PackedMatrix, is_supported

pytestmark = pytest.mark.skipif(
    not is_supported(128, 128, 32), reason="torch has no fast INT4 kernel for this processor"
)
TOLERANCE = 0.01


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("num_rows", [1, 3, 4, 5, 12, 13, 60])
def test_products_equal_those_of_the_dense_matrix(group_size: int, num_rows: int) -> None:
    torch.manual_seed(group_size + num_rows)
    packed = int4.quantize(torch.randn(192, 256), group_size)
    matrix = PackedMatrix(192, 256, group_size)
    matrix.load(packed)
    inputs = torch.randn(num_rows, 256)
    product = matrix.product(inputs)
    assert product.dtype is torch.float32
    assert relative(product, inputs @ int4.dequantize(packed).t()) < TOLERANCE
    assert matrix.size_bytes < 192 * 256 * 0.65


def test_the_dense_form_is_the_matrix_with_scales_rounded_to_bf16() -> None:
    torch.manual_seed(1)
    packed = int4.quantize(torch.randn(128, 64), 32)
    matrix = PackedMatrix(128, 64, 32)
    matrix.load(packed)
    rounded = int4.PackedInt4(packed.qweight, packed.scales.bfloat16())
    assert torch.equal(matrix.dense_transpose().t(), int4.dequantize(rounded).to(torch.bfloat16))


def test_the_byte_order_is_torchs_own() -> None:
    q = torch.randint(-8, 8, (128, 256))
    ours = packed_matrix._in_blocks(int4.pack(q), packed_matrix._block_rows())
    theirs = torch.ops.aten._convert_weight_to_int4pack_for_cpu((q + 8).int(), 2)
    assert torch.equal(ours, theirs)


def test_sizes_the_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(ValueError, match="100 x 64 in groups of 32"):
        PackedMatrix(100, 64, 32)
    assert not is_supported(128, 64, 16)


def test_small_experts_stay_dense_and_large_ones_stay_packed() -> None:
    assert slot_format(ExpertShape(256, 128, 32)) == "dense"
    assert slot_format(ExpertShape(512, 256, 32)) == "packed"
    assert slot_format(ExpertShape(2048, 768, 128)) == "packed"
    assert slot_format(ExpertShape(2048, 512, 16)) == "dense"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = ModelShape(
        vocab_size=640,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
    )
    return write_random_model(tmp_path_factory.mktemp("packed"), shape)


@pytest.mark.parametrize("num_tokens", [1, 2, 40])
def test_experts_of_packed_slots_equal_those_of_dense_slots(folder: Path, num_tokens: int) -> None:
    torch.manual_seed(num_tokens)
    hidden = torch.randn(num_tokens, 64)
    dense = load_model(folder, expert_slot_format="dense").model.model.layers[1].mlp
    packed = load_model(folder, expert_slot_format="packed", expert_cache_slots=3)
    mlp = packed.model.model.layers[1].mlp
    assert packed.cache.slot_format == "packed"
    for _ in range(3):  # the second time round experts come out of their slots
        _, weights, ids = mlp.gate(hidden)
        assert relative(mlp.experts(hidden, ids, weights), dense.experts(hidden, ids, weights)) < (
            TOLERANCE
        )


@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_any_slot_count_gives_the_same_bits(folder: Path, num_tokens: int) -> None:
    torch.manual_seed(num_tokens)
    hidden = torch.randn(num_tokens, 64)
    store = load_model(folder).store
    results = []
    for slots in (2, 5, 8):
        loaded = load_model(folder, expert_slot_format="packed", expert_cache_slots=slots)
        mlp = loaded.model.model.layers[0].mlp
        for _ in range(2):
            _, weights, ids = mlp.gate(hidden)
            results.append(mlp.experts(hidden, ids, weights))
    assert all(torch.equal(result, results[0]) for result in results)
    cache = ExpertCache(store, num_slots=2, num_experts_per_tok=2, slot_format="packed")
    cache.fetch(0, [0, 1])
    assert cache.stats.bytes_read == 2 * store.shape.size_bytes

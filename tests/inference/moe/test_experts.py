from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from inference.checkpoint.loader import load_model
from inference.moe.router import Router
from tests.inference.conftest import TINY, dequantised_stock_model


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_router_equals_the_stock_router(norm_topk_prob: bool) -> None:
    config = Qwen3MoeConfig(
        hidden_size=64, num_experts=8, num_experts_per_tok=3, norm_topk_prob=norm_topk_prob
    )
    stock = Qwen3MoeTopKRouter(config)
    torch.nn.init.normal_(stock.weight)
    ours = Router(stock.weight, num_experts_per_tok=3, norm_topk_prob=norm_topk_prob)
    hidden = torch.randn(50, 64)
    for mine, theirs in zip(ours(hidden), stock(hidden), strict=True):
        assert torch.equal(mine, theirs)


def test_router_computes_in_fp32_for_a_half_precision_input() -> None:
    weight = torch.randn(8, 64)
    router = Router(weight.half(), num_experts_per_tok=2, norm_topk_prob=True)
    hidden = torch.randn(20, 64).half()
    logits, weights, ids = router(hidden)
    assert logits.dtype == torch.float32
    assert weights.dtype == torch.float16
    exact = hidden.double() @ weight.half().double().t()
    assert torch.allclose(logits.double(), exact, atol=1e-4)
    assert torch.equal(ids, exact.topk(2).indices)


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 64])
def test_experts_equal_the_stock_module(tiny_model_dir: Path, num_tokens: int) -> None:
    """Tolerance: 2e-5 absolute in fp32 on outputs of size ~1."""
    stock = dequantised_stock_model(TINY).model.layers[1].mlp
    torch.manual_seed(num_tokens)
    hidden = torch.randn(num_tokens, 64)
    _, weights, ids = stock.gate(hidden)
    expected = stock.experts(hidden, ids, weights)
    experts = load_model(tiny_model_dir).model.model.layers[1].mlp.experts
    assert torch.allclose(experts(hidden, ids, weights), expected, atol=2e-5)


@pytest.mark.parametrize("num_tokens", [1, 3, 40])
@pytest.mark.parametrize("policy", ["lru", "decayed_frequency"])
def test_any_slot_count_gives_the_same_bits(
    tiny_model_dir: Path, num_tokens: int, policy: str
) -> None:
    torch.manual_seed(num_tokens)
    hidden = torch.randn(num_tokens, 64)
    results = []
    for slots in range(2, 9):
        loaded = load_model(
            tiny_model_dir,
            expert_cache_slots=slots,
            expert_cache_policy=policy,  # type: ignore[arg-type]
        )
        mlp = loaded.model.model.layers[0].mlp
        for _ in range(3):
            _, weights, ids = mlp.gate(hidden)
            results.append(mlp.experts(hidden, ids, weights))
        if slots == 2 and num_tokens > 3:
            assert loaded.cache.stats.evictions > 0
    assert all(torch.equal(result, results[0]) for result in results)

"""Stock attention layers whose single tokens the engine's kernels decode."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_moe import modeling_qwen3_moe

from inference.engine.kv_pages import PagedKVCache
from inference.kernels.attention import attention_step, attention_workspace
from inference.kernels.library import KernelLibrary
from tests.inference.kernels.stock_layers import (
    call_attention,
    geometry_of,
    randomise,
    rotary_angles,
    tiny_config,
)

# Of whole outputs against exact keys and values: half a rounding step is 2^-12 in fp16, 2^-4 in
# fp8, and much of it averages out.
RELATIVE = {torch.float32: 2e-6, torch.float16: 5e-4, torch.uint8: 8e-2}


class StockAttention:
    """A stock attention layer, and the same layer as the engine decodes it."""

    def __init__(self, architecture: str, device: torch.device) -> None:
        self.config = tiny_config(architecture)
        self.gated = architecture == "qwen3_5_moe"
        self.index = list(geometry_of(self.config).layer_types).index("full_attention")
        if self.gated:
            layer = modeling_qwen3_5_moe.Qwen3_5MoeAttention(self.config, self.index)
            self.rotary = modeling_qwen3_5_moe.Qwen3_5MoeTextRotaryEmbedding(self.config)
        else:
            layer = modeling_qwen3_moe.Qwen3MoeAttention(self.config, self.index)
            self.rotary = modeling_qwen3_moe.Qwen3MoeRotaryEmbedding(self.config)
        self.layer: Any = randomise(layer, seed=3).to(device)
        self.rotary.to(device)

    def decode(
        self,
        lib: KernelLibrary,
        cache: PagedKVCache,
        hidden: Tensor,
        slots: list[int],
        positions: list[int],
    ) -> Tensor:
        """One step of the kernels between the stock projections; hidden [B, H] to [B, H]."""
        geometry, layer = geometry_of(self.config), self.layer
        sizes = {
            "num_heads": geometry.num_heads,
            "num_kv_heads": geometry.num_kv_heads,
            "head_dim": geometry.head_dim,
        }
        for slot, position in zip(slots, positions, strict=True):
            cache.reserve(slot, position + 1)
        weight = torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight])
        cosine, sine = rotary_angles(
            self.rotary, hidden, torch.arange(cache.max_model_len, device=lib.device)
        )
        half = cosine.shape[-1] // 2
        out = torch.empty(len(slots), sizes["num_heads"] * sizes["head_dim"], device=lib.device)
        attention_step(
            lib,
            hidden @ weight.T,
            q_norm=layer.q_norm.weight,
            k_norm=layer.k_norm.weight,
            eps=self.config.rms_norm_eps,
            zero_centred=self.gated,
            gated=self.gated,
            rotary=(
                cosine[0, :, :half].contiguous(),
                sine[0, :, :half].contiguous(),
            ),
            positions=torch.tensor(positions, dtype=torch.int32, device=lib.device),
            block_tables=cache.table_rows(slots).to(lib.device),
            pages=cache.kv_layers[self.index],
            workspace=attention_workspace(lib, max_batch=len(slots), **sizes),
            out=out,
            **sizes,
        )
        return cast(Tensor, layer.o_proj(out))


@pytest.mark.parametrize("dtype", list(RELATIVE))
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
@pytest.mark.parametrize("architecture", ["qwen3_moe", "qwen3_5_moe"])
def test_stock_prefill_then_our_steps(
    kernels: KernelLibrary, architecture: str, batch: int, dtype: torch.dtype
) -> None:
    """Prompts in chunks through the stock layer and our cache, then steps of the kernels, are
    the stock layer on the whole sequence without any cache."""
    stock = StockAttention(architecture, kernels.device)
    cache = PagedKVCache(
        geometry_of(stock.config),
        num_pages=8 * batch,
        page_size=8,
        max_num_seqs=batch,
        max_model_len=64,
        dtype=dtype,
        device=kernels.device,
    )
    generator = torch.Generator().manual_seed(batch)
    lengths = [(5 + 9 * row) % 40 + 1 for row in range(batch)]
    steps = 10
    sequences = [
        torch.randn(1, length + steps, stock.config.hidden_size, generator=generator).to(
            kernels.device
        )
        for length in lengths
    ]
    wholes = [call_attention(stock.layer, stock.rotary, seq, 0)[0] for seq in sequences]
    slots = [cache.allocate() for _ in range(batch)]
    for slot, length, sequence, whole in zip(slots, lengths, sequences, wholes, strict=True):
        for start in range(0, length, 7):
            end = min(start + 7, length)
            chunk = call_attention(
                stock.layer,
                stock.rotary,
                sequence[:, start:end],
                start,
                cache.for_transformers(slot, start),
            )
            assert _relative_error(chunk[0], whole[start:end]) < RELATIVE[dtype]
    for step in range(steps):
        positions = [length + step for length in lengths]
        hidden = torch.stack(
            [seq[0, position] for seq, position in zip(sequences, positions, strict=True)]
        )
        out = stock.decode(kernels, cache, hidden, slots, positions)
        expected = torch.stack(
            [whole[position] for whole, position in zip(wholes, positions, strict=True)]
        )
        assert _relative_error(out, expected) < RELATIVE[dtype]


def _relative_error(out: Tensor, expected: Tensor) -> float:
    return float((out - expected).norm() / expected.norm())

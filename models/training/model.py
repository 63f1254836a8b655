"""The model under training: a stock Qwen3MoeForCausalLM run by our own forward pass.

Owns presets, initial weights, and a forward over one flat step in which all dialogs attend to
one shared prefix. Equal to the stock forward (a test compares). Reasons: the shared prefix, a
balance loss per layer, logits only where there is a loss, no padding outside attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.training.data import Chunk
from models.training.tokenizer import VOCAB_SIZE


@dataclass(frozen=True)
class Preset:
    """Shape of a model and its default training run."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    expert_size: int
    max_model_len: int
    learning_rate: float
    cpu_tokens: int
    gpu_tokens: int
    cpu_minutes: float


PRESETS = {
    "fixture": Preset(128, 4, 4, 2, 32, 32, 3, 64, 2048, 3e-3, 3000, 32768, 52),
    "demo": Preset(256, 8, 4, 2, 64, 32, 3, 128, 4096, 2e-3, 3000, 65536, 600),
    "test": Preset(32, 2, 2, 1, 16, 4, 2, 32, 2048, 3e-3, 1500, 1500, 1),
}


def stock_config(preset: Preset) -> Any:
    """The transformers configuration of a preset."""
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        vocab_size=VOCAB_SIZE, hidden_size=preset.hidden_size, intermediate_size=preset.hidden_size,
        num_hidden_layers=preset.num_layers, num_attention_heads=preset.num_heads,
        num_key_value_heads=preset.num_kv_heads, head_dim=preset.head_dim,
        num_experts=preset.num_experts, num_experts_per_tok=preset.num_experts_per_tok,
        moe_intermediate_size=preset.expert_size, norm_topk_prob=True, mlp_only_layers=[],
        decoder_sparse_step=1, max_position_embeddings=preset.max_model_len, rope_theta=10000.0,
        tie_word_embeddings=True, output_router_logits=False, attention_bias=False,
        bos_token_id=None, pad_token_id=VOCAB_SIZE - 9, eos_token_id=VOCAB_SIZE - 7,
    )  # fmt: skip


def build(preset: Preset, seed: int) -> Any:
    """A stock model with our initial weights, fp32, on the CPU."""
    from transformers import Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(stock_config(preset)).float()
    generator = torch.Generator().manual_seed(seed)
    depth = (2 * preset.num_layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.fill_(1.0)
                continue
            std = 0.02 if "embed" in name else weight.shape[-1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj")):
                std *= depth
            if name.endswith("gate.weight"):
                std = 0.02
            weight.normal_(0.0, std, generator=generator)
    model.generation_config.eos_token_id = VOCAB_SIZE - 7
    model.generation_config.pad_token_id = VOCAB_SIZE - 9
    model.generation_config.do_sample = False
    return model


@dataclass
class RouterStats:
    """Per layer: token counts [E], mean probabilities [E], z-loss."""

    counts: list[Tensor]
    means: list[Tensor]
    z: list[Tensor]

    def balance_loss(self) -> Tensor:
        """Mean over layers of E * sum(load * probability): 1.0 when balanced."""
        losses = []
        for count, mean in zip(self.counts, self.means, strict=True):
            load = count.float() / count.sum()
            losses.append(load.numel() * (load * mean).sum())
        return torch.stack(losses).mean()

    def max_load(self) -> float:
        """Largest share of an expert, in multiples of the mean, over layers."""
        return max(float(c.max() / c.float().mean()) for c in self.counts)

    def entropy(self) -> float:
        """Least entropy of the expert loads over layers, 1.0 when balanced."""
        values = []
        for count in self.counts:
            share = count.float() / count.sum()
            entropy = -(share * (share + 1e-9).log()).sum()
            values.append(float(entropy) / float(torch.tensor(float(len(share))).log()))
        return min(values)


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of all flat positions, [tokens, head_dim]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, head_dim: int, base: float) -> Rotary:
        """Angles in float32."""
        steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[:, None].float() * (base ** (-steps / head_dim))
        angles = torch.cat((angles, angles), dim=-1)
        return cls(angles.cos(), angles.sin())

    def apply(self, x: Tensor) -> Tensor:
        """Rotate [tokens, heads, head_dim]."""
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cos[:, None, :] + turned * self.sin[:, None, :]


class FlatForward(nn.Module):
    """Runs ``stock`` over a flat step; holds no weights of its own."""

    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.stock = stock
        self.config = stock.config
        rope = getattr(stock.config, "rope_parameters", None) or {}
        self.base = float(rope.get("rope_theta", getattr(stock.config, "rope_theta", 10000.0)))

        self.grouped = False
        """Whether experts run by grouped bf16 products; ``use_fast_experts`` decides."""

    def use_fast_experts(self) -> bool:
        """On CUDA, switch to grouped bf16 products where they work and agree with bmm."""
        experts = self.stock.model.layers[0].mlp.experts
        device = experts.gate_up_proj.device
        if device.type != "cuda":
            return False
        counts = torch.tensor([5] * self.config.num_experts, device=device)
        which = torch.arange(self.config.num_experts, device=device).repeat_interleave(5)
        rows = torch.randn(len(which), self.config.hidden_size, device=device)
        try:
            results = []
            for run in (_grouped, _padded):
                rows = rows.detach().requires_grad_()
                out = run(rows, counts, which, experts).float()
                out.square().sum().backward()
                results += [out.detach(), rows.grad, experts.gate_up_proj.grad.clone()]
                experts.zero_grad(set_to_none=True)
            self.grouped = all(
                bool((fast - slow).abs().max() < 0.06 * slow.abs().max() + 1e-3)
                for fast, slow in zip(results[:3], results[3:], strict=True)
            )
            if not self.grouped:
                print("grouped products disagree with bmm; experts run by bmm", flush=True)
        except (RuntimeError, AttributeError, TypeError) as error:
            print(f"grouped products are not available ({error}); experts run by bmm", flush=True)
        return self.grouped

    def forward(
        self, ids: Tensor, positions: Tensor, prefix: int, chunks: Sequence[Chunk], source: Tensor
    ) -> tuple[Tensor, RouterStats]:
        """Logits [len(source), vocab] after the flat positions ``source``, and router figures."""
        config, model = self.config, self.stock.model
        rotary = Rotary.of(positions, config.head_dim, self.base)
        hidden = model.embed_tokens(ids)
        stats = RouterStats([], [], [])
        for layer in model.layers:
            normed = _norm(layer.input_layernorm, hidden)
            hidden = hidden + self._attention(layer.self_attn, normed, rotary, prefix, chunks)
            normed = _norm(layer.post_attention_layernorm, hidden)
            hidden = hidden + self._experts(layer.mlp, normed, stats)
        out = _norm(model.norm, hidden.index_select(0, source))
        return F.linear(out, model.embed_tokens.weight), stats

    def _attention(
        self, block: Any, hidden: Tensor, rotary: Rotary, prefix: int, chunks: Sequence[Chunk]
    ) -> Tensor:
        size, tokens = self.config.head_dim, hidden.shape[0]
        queries = block.q_proj(hidden).view(tokens, -1, size)
        keys = block.k_proj(hidden).view(tokens, -1, size)
        values = block.v_proj(hidden).view(tokens, -1, size)
        queries = rotary.apply(_norm(block.q_norm, queries)).to(values.dtype)
        keys = rotary.apply(_norm(block.k_norm, keys)).to(values.dtype)
        groups = queries.shape[1] // keys.shape[1]
        keys = keys.repeat_interleave(groups, dim=1)
        values = values.repeat_interleave(groups, dim=1)
        head = [tensor[:prefix].transpose(0, 1)[None] for tensor in (queries, keys, values)]
        first = F.scaled_dot_product_attention(*head, is_causal=True)
        outputs = [first[0].transpose(0, 1).reshape(prefix, -1)]
        for chunk in chunks:
            outputs.append(_chunk_attention(queries, keys, values, prefix, chunk))
        return block.o_proj(torch.cat(outputs))

    def _experts(self, block: Any, hidden: Tensor, stats: RouterStats) -> Tensor:
        count, top_k = self.config.num_experts, self.config.num_experts_per_tok
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden.float(), block.gate.weight)
            probabilities = logits.softmax(dim=-1)
            weights, chosen = probabilities.topk(top_k, dim=-1)
            weights = weights / weights.sum(dim=-1, keepdim=True)
        flat = chosen.reshape(-1)
        counts = torch.zeros(count, dtype=torch.int64, device=flat.device)
        counts.scatter_add_(0, flat, torch.ones_like(flat))
        stats.counts.append(counts.detach())
        stats.means.append(probabilities.mean(dim=0))
        stats.z.append(logits.logsumexp(dim=-1).square().mean())
        order = flat.argsort(stable=True)
        rows = order // top_k
        run = _grouped if self.grouped else _padded
        out = run(hidden.index_select(0, rows), counts, flat[order], block.experts)
        out = out.float() * weights.reshape(-1).index_select(0, order)[:, None]
        return torch.zeros_like(hidden, dtype=torch.float32).index_add(0, rows, out)


def _norm(layer: Any, hidden: Tensor) -> Tensor:
    weight = layer.weight
    return F.rms_norm(hidden.float(), (hidden.shape[-1],), weight, layer.variance_epsilon)


def _chunk_attention(
    queries: Tensor, keys: Tensor, values: Tensor, prefix: int, chunk: Chunk
) -> Tensor:
    """Attention of one rectangle of dialogs to the prefix and to themselves, [tokens, width]."""
    gather: Any = chunk.gather
    shape = (chunk.dialogs, chunk.width, queries.shape[1], queries.shape[2])
    own = queries.index_select(0, gather).view(shape).transpose(1, 2)
    both = []
    for tensor in (keys, values):
        shared = tensor[:prefix].transpose(0, 1)[None].expand(chunk.dialogs, -1, -1, -1)
        both.append(
            torch.cat((shared, tensor.index_select(0, gather).view(shape).transpose(1, 2)), dim=2)
        )
    # Rows of the mask start at multiples of 16 elements: the fused CUDA kernel wants them aligned.
    total = prefix + chunk.width
    mask = torch.ones(chunk.width, -(-total // 16) * 16, dtype=torch.bool, device=queries.device)
    mask = mask.tril(prefix)[:, :total]
    out = F.scaled_dot_product_attention(own, *both, attn_mask=mask)
    out = out.transpose(1, 2).reshape(chunk.dialogs * chunk.width, -1)
    keep: Any = chunk.keep
    return out.index_select(0, keep)


def _padded(rows: Tensor, counts: Tensor, experts_of: Tensor, experts: Any) -> Tensor:
    """Experts by one bmm over rows padded to the busiest expert (CPU)."""
    capacity = int(counts.max())
    starts = counts.cumsum(0) - counts
    slots = torch.arange(len(rows), device=rows.device) - starts[experts_of]
    places = experts_of * capacity + slots
    buffer = rows.new_zeros(len(counts) * capacity, rows.shape[1]).index_copy(0, places, rows)
    buffer = buffer.view(len(counts), capacity, -1)
    gate, up = torch.bmm(buffer, experts.gate_up_proj.transpose(1, 2)).chunk(2, dim=-1)
    out = torch.bmm(F.silu(gate) * up, experts.down_proj.transpose(1, 2))
    return out.view(-1, rows.shape[1]).index_select(0, places)


def _grouped(rows: Tensor, counts: Tensor, experts_of: Tensor, experts: Any) -> Tensor:
    """Experts by grouped matrix products in bf16 (CUDA); fp32 masters get the gradients."""
    del experts_of
    grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm
    ends = counts.cumsum(0).to(torch.int32)
    with torch.autocast("cuda", enabled=False):
        first = experts.gate_up_proj.to(torch.bfloat16).transpose(1, 2)
        second = experts.down_proj.to(torch.bfloat16).transpose(1, 2)
        gate, up = grouped_mm(rows.to(torch.bfloat16), first, offs=ends).chunk(2, dim=-1)
        return grouped_mm((F.silu(gate) * up).contiguous(), second, offs=ends)

"""The model under training: a stock Qwen3MoeForCausalLM run by our own forward pass.

Owns presets, initial weights, and a forward over one flat step in which many dialogs attend to
each of a few prefixes. Equal to the stock forward (a test compares). Reasons: shared prefixes, a
balance loss per layer, logits only where there is a loss, one shape for every step on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.training import shared_prefix
from models.training.data import MAX_PREFIX_TOKENS, Layout
from models.training.shared_prefix import Attend, FastAttention, MaskedAttention
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
    optimizer: str
    learning_rate: float
    cpu_tokens: int
    cpu_minutes: float
    gpu_layout: Layout


_SMALL_STEP = Layout(
    MAX_PREFIX_TOKENS,
    ((32, 80), (44, 192), (33, 256), (19, 320), (15, 416), (13, 512), (8, 640)),
    22016,
)
_LARGE_STEP = Layout(
    MAX_PREFIX_TOKENS,
    ((16, 80), (22, 192), (16, 256), (10, 320), (7, 416), (7, 512), (4, 640)),
    44032,
    prefixes=4,
)
"""Rows of each width follow the lengths of the mixture (``dialogs.WEIGHTS``): talk is short."""
PRESETS = {
    "fixture": Preset(128, 4, 4, 2, 32, 32, 3, 64, 2048, "adamw", 3e-3, 3000, 52, _SMALL_STEP),
    "demo": Preset(256, 8, 4, 2, 64, 32, 3, 128, 4096, "muon", 2e-3, 3000, 600, _LARGE_STEP),
    "test": Preset(32, 2, 2, 1, 16, 4, 2, 32, 2048, "adamw", 3e-3, 1500, 1, _SMALL_STEP),
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


@dataclass(frozen=True)
class Routing:
    """How the router is trained. ``balance``: ``switch`` is E * sum(load * probability) a layer,
    ``pooled`` the same over the counts of all layers together (transformers' own form), ``cv2``
    (std/mean)^2 of the experts' summed probabilities a layer. ``gumbel`` is the temperature of
    Gumbel-softmax noise while training, 0 for none."""

    balance: str = "switch"
    balance_weight: float = 0.01
    gumbel: float = 0.0


@dataclass
class RouterStats:
    """Per layer, over real tokens: token counts [E], mean probabilities [E], z-loss."""

    counts: list[Tensor]
    means: list[Tensor]
    z: list[Tensor]

    def balance_loss(self, form: str = "switch") -> Tensor:
        """Balanced is 0.0 for ``cv2`` and 1.0 for the others."""
        if form == "pooled":
            load, mean = torch.stack(self.counts).sum(dim=0), torch.stack(self.means).mean(dim=0)
            return load.numel() * (load / load.sum() * mean).sum()
        losses = []
        for count, mean in zip(self.counts, self.means, strict=True):
            if form == "cv2":
                losses.append((mean.std(correction=0) / mean.mean()).square())
            else:
                load = count / count.sum()
                losses.append(load.numel() * (load * mean).sum())
        return torch.stack(losses).mean()

    def shares(self) -> list[list[float]]:
        """Per layer, the share of tokens of each expert."""
        return [(count / count.sum()).tolist() for count in self.counts]

    def max_load(self) -> float:
        """Largest share of an expert, in multiples of the mean, over layers."""
        return max(max(shares) * len(shares) for shares in self.shares())

    def entropies(self) -> list[float]:
        """Per layer, the entropy of the expert shares, 1.0 when balanced."""
        return [
            -sum(s * math.log(s) for s in shares if s > 0) / math.log(len(shares))
            for shares in self.shares()
        ]


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


@dataclass(frozen=True)
class Batch:
    """A step on its device. ``prefixes`` [n] are the numbers of real tokens of the prefixes; ids,
    positions, source, target and segment int64; real fp32."""

    prefixes: Tensor
    ids: Tensor
    positions: Tensor
    real: Tensor
    source: Tensor
    target: Tensor
    segment: Tensor


class FlatForward(nn.Module):
    """Runs ``stock`` over a flat step; holds no weights of its own."""

    def __init__(self, stock: Any, routing: Routing | None = None) -> None:
        super().__init__()
        self.routing = routing or Routing()
        self.stock = stock
        self.config = stock.config
        rope = getattr(stock.config, "rope_parameters", None) or {}
        self.base = float(rope.get("rope_theta", getattr(stock.config, "rope_theta", 10000.0)))

        self.grouped = False
        """Whether experts run by grouped bf16 products; ``use_fast_experts`` decides."""
        self.fast_attention = False
        """Whether dialogs attend by flash attention; ``use_fast_attention`` decides."""

    def use_fast_attention(self) -> bool:
        """On CUDA, switch to flash attention where it works and agrees with masks."""
        device = self.stock.model.embed_tokens.weight.device
        if device.type != "cuda":
            return False
        wrong = shared_prefix.works(device, self.config.num_attention_heads, self.config.head_dim)
        if wrong:
            print(f"flash attention cannot be used ({wrong}); attention runs by masks", flush=True)
        self.fast_attention = not wrong
        return self.fast_attention

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

    def forward(self, batch: Batch, layout: Layout) -> tuple[Tensor, RouterStats]:
        """Logits [targets, vocab] after the flat positions ``batch.source``, and router figures."""
        config, model = self.config, self.stock.model
        rotary = Rotary.of(batch.positions, config.head_dim, self.base)
        attend = FastAttention(batch.prefixes, layout) if self.fast_attention else (
            MaskedAttention(batch.prefixes, layout))  # fmt: skip
        hidden = model.embed_tokens(batch.ids)
        stats = RouterStats([], [], [])
        for layer in model.layers:
            normed = _norm(layer.input_layernorm, hidden)
            hidden = hidden + self._attention(layer.self_attn, normed, rotary, attend)
            normed = _norm(layer.post_attention_layernorm, hidden)
            hidden = hidden + self._experts(layer.mlp, normed, batch.real, stats)
        out = _norm(model.norm, hidden.index_select(0, batch.source))
        return F.linear(out, model.embed_tokens.weight), stats

    def _attention(self, block: Any, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        size, tokens = self.config.head_dim, hidden.shape[0]
        queries = block.q_proj(hidden).view(tokens, -1, size)
        keys = block.k_proj(hidden).view(tokens, -1, size)
        values = block.v_proj(hidden).view(tokens, -1, size)
        queries = rotary.apply(_norm(block.q_norm, queries)).to(values.dtype)
        keys = rotary.apply(_norm(block.k_norm, keys)).to(values.dtype)
        groups = queries.shape[1] // keys.shape[1]
        keys = keys.repeat_interleave(groups, dim=1)
        values = values.repeat_interleave(groups, dim=1)
        return block.o_proj(attend(queries, keys, values).flatten(1))

    def _experts(self, block: Any, hidden: Tensor, real: Tensor, stats: RouterStats) -> Tensor:
        count, top_k = self.config.num_experts, self.config.num_experts_per_tok
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden.float(), block.gate.weight)
            probabilities = self._noisy(logits).softmax(dim=-1)
            weights, chosen = probabilities.topk(top_k, dim=-1)
            weights = weights / weights.sum(dim=-1, keepdim=True)
        flat = chosen.reshape(-1)
        counts = torch.zeros(count, dtype=torch.int64, device=flat.device)
        counts.scatter_add_(0, flat, torch.ones_like(flat))
        shown = torch.zeros(count, device=flat.device)
        shown.scatter_add_(0, flat, real.repeat_interleave(top_k))
        stats.counts.append(shown)
        stats.means.append((probabilities * real[:, None]).sum(dim=0) / real.sum())
        stats.z.append((logits.logsumexp(dim=-1).square() * real).sum() / real.sum())
        order = flat.argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse.scatter_(0, order, torch.arange(len(order), device=order.device))
        run = _grouped if self.grouped else _padded
        given = hidden.bfloat16() if self.grouped else hidden
        rows = _Sorted.apply(given.repeat_interleave(top_k, dim=0), order, inverse)
        out = run(rows, counts, flat[order], block.experts)
        out = _Sorted.apply(out, inverse, order).unflatten(0, (-1, top_k))
        return (out.float() * weights[..., None]).sum(dim=1)

    def _noisy(self, logits: Tensor) -> Tensor:
        """Logits with Gumbel noise over the temperature while training, else as they are."""
        temperature = self.routing.gumbel
        if not temperature or not self.training:
            return logits
        uniform = torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)
        return (logits - (-uniform.log()).log()) / temperature


class _Sorted(torch.autograd.Function):
    """Rows in another order; its gradient is a gather too, not the scatter of ``index_select``."""

    @staticmethod
    def forward(context: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        context.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        (inverse,) = context.saved_tensors
        return gradient.index_select(0, inverse), None, None


def _norm(layer: Any, hidden: Tensor) -> Tensor:
    weight = layer.weight
    return F.rms_norm(hidden.float(), (hidden.shape[-1],), weight, layer.variance_epsilon)


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

"""What the kernels of the mixture of experts compute, in torch.

Owns the arithmetic only; tests and doubters run it. Knows nothing of slots or of addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.checkpoint import int4
from inference.kernels.linear import LinearWeight
from inference.kernels.moe import SharedExpert
from inference.moe.expert_store import PackedExpert


def rms_norm(x: Tensor, norm: Tensor | None, eps: float, zero_centred: bool) -> Tensor:
    """``x`` fp32 [rows, hidden] as the router and the experts see it; None leaves it as it is."""
    if norm is None:
        return x
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * (norm + 1.0 if zero_centred else norm)


def top_k(logits: Tensor, k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Weights fp32 and ids int64 [rows, k]: softmax over all, the lowest id first among equals."""
    probabilities = torch.softmax(logits, dim=-1)
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :k]
    weights = probabilities.gather(-1, ids)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids


def expert(x: Tensor, packed: PackedExpert) -> Tensor:
    """One expert on ``x`` fp32 [rows, hidden]."""
    gate, up = (x @ int4.dequantize(packed.gate_up_proj).t()).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ int4.dequantize(packed.down_proj).t()


def dense(weight: LinearWeight) -> Tensor:
    """A weight in fp32, fp16 or int8 as fp32 [rows, columns]."""
    values = weight.weight.float()
    return values if weight.scales is None else values * weight.scales.unsqueeze(1)


def shared_expert(x: Tensor, shared: SharedExpert) -> Tensor:
    """The shared expert times its gate, fp32 [rows, hidden]."""
    gate, up = (x @ dense(shared.gate_up).t()).chunk(2, dim=-1)
    output = (F.silu(gate) * up) @ dense(shared.down).t()
    return torch.sigmoid(x @ shared.gate).unsqueeze(1) * output


def experts(
    x: Tensor, ids: Tensor, weights: Tensor, packed: Callable[[int], PackedExpert]
) -> Tensor:
    """Weighted sums in rank order, fp32 [rows, hidden]."""
    rows: list[Tensor] = []
    for row, row_ids, row_weights in zip(x, ids.tolist(), weights, strict=True):
        outputs = [expert(row.unsqueeze(0), packed(e)) for e in row_ids]
        total = torch.zeros_like(row)
        for output, weight in zip(outputs, row_weights, strict=True):
            total = total + weight * output[0]
        rows.append(total)
    return torch.stack(rows)


def decode_layer(
    x: Tensor,
    norm: Tensor | None,
    *,
    eps: float,
    zero_centred: bool,
    router: Tensor,
    num_experts_per_tok: int,
    normalise: bool,
    packed: Callable[[int], PackedExpert],
    shared: SharedExpert | None,
    positions: Sequence[int],
) -> Tensor:
    """``x`` after one mixture-of-experts layer, rows with a negative position unchanged."""
    normed = rms_norm(x, norm, eps, zero_centred)
    weights, ids = top_k(normed @ router.t(), num_experts_per_tok, normalise)
    output = experts(normed, ids, weights, packed)
    if shared is not None:
        output = output + shared_expert(normed, shared)
    live = torch.tensor([position >= 0 for position in positions], device=x.device)
    return torch.where(live.unsqueeze(1), x + output, x)

"""What the kernels of ``linear.cu`` and ``head.cu`` compute, in plain torch.

Owns the meaning that the tests hold the kernels to. Knows nothing of launches. Products are formed
in ``dtype``, fp64 by default, so that the reference adds no error of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.kernels.linear import NUM_CANDIDATES, LinearWeight
from inference.kernels.quantize import dequantize


def rms_linear_reference(
    x: Tensor,
    norm: Tensor | None,
    *,
    eps: float,
    zero_centred: bool,
    weight: LinearWeight,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """``(x / rms(x) * norm) @ W.T``, ``[batch, rows]`` in ``dtype``; see ``rms_linear``."""
    x = x.to(dtype)
    if norm is not None:
        factor = norm.to(dtype) + (1.0 if zero_centred else 0.0)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * factor
    if weight.format == "int8" and weight.scales is not None:
        dense = weight.weight.to(dtype) * weight.scales.to(dtype).unsqueeze(-1)
    else:
        dense = dequantize(weight).to(dtype)
    return x @ dense.T


def mask_logits_reference(logits: Tensor, mask_bits: Tensor) -> Tensor:
    """``logits`` [batch, vocabulary] with -inf where the bit of a token is zero."""
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (mask_bits.unsqueeze(-1) >> shifts & 1).flatten(-2)[:, : logits.shape[1]]
    return logits.masked_fill(allowed == 0, -torch.inf)


def top_candidates_reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Ids int32 and values fp32 ``[batch, 64]`` by descending value, then ascending id."""
    logits = torch.where(logits.isnan(), -torch.inf, logits)
    values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    missing = max(0, NUM_CANDIDATES - logits.shape[1])
    values = torch.nn.functional.pad(values[:, :NUM_CANDIDATES], (0, missing), value=-torch.inf)
    ids = torch.nn.functional.pad(ids[:, :NUM_CANDIDATES], (0, missing), value=-1)
    return ids.to(torch.int32), values


def embed_reference(token_ids: Tensor, table: Tensor) -> Tensor:
    """fp32 rows of ``table``; zeros for an id outside it."""
    inside = (token_ids >= 0) & (token_ids < len(table))
    rows = table[token_ids.long().clamp(0, len(table) - 1).to(table.device)].float()
    return rows.to(token_ids.device) * inside.unsqueeze(-1)

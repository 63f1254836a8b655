"""What ``attention_step`` computes, in torch; the tests compare the kernels with it.

Owns the reference and the conversion of keys and values to the dtype of pages. Written for
clarity: one row, one head at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.kernels.attention import KVLayer

FP8_MAX = 448.0


def to_page(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """``values`` [..., head_dim] as pages of ``dtype`` hold them, and their scales [...].

    uint8 means e4m3 numbers with the scale largest / 448 (1 for zeros); else there is no scale.
    """
    if dtype != torch.uint8:
        return values.to(dtype), None
    largest = values.float().abs().amax(-1)
    scales = torch.where(largest > 0, largest / FP8_MAX, 1.0)
    scaled = (values.float() / scales.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scales


def from_page(values: Tensor, scales: Tensor | None) -> Tensor:
    """The inverse of :func:`to_page`, fp32."""
    if scales is None:
        return values.float()
    return values.view(torch.float8_e4m3fn).float() * scales.unsqueeze(-1)


def head_norm(x: Tensor, weight: Tensor | None, *, eps: float, zero_centred: bool) -> Tensor:
    """RMS norm over the last dimension; None = none."""
    if weight is None:
        return x
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * (1.0 + weight if zero_centred else weight)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first 2 * len(cosine) dimensions of x [heads, head_dim], halves paired."""
    half = cosine.shape[-1]
    first, second, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=-1)


def attention_step(
    projected: Tensor,
    *,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    zero_centred: bool,
    gated: bool,
    rotary: tuple[Tensor, Tensor],
    positions: Tensor,
    block_tables: Tensor,
    pages: KVLayer,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> Tensor:
    """As the kernels of the same name; changes ``pages``, returns the output."""
    out = torch.zeros(projected.shape[0], num_heads * head_dim)
    query_columns = num_heads * head_dim * (2 if gated else 1)
    for row, position in enumerate(positions.tolist()):
        if position < 0:
            continue
        kv_columns = num_kv_heads * head_dim
        query, key, value = torch.split(projected[row], [query_columns, kv_columns, kv_columns])
        query = query.view(num_heads, -1)
        gate = query[:, head_dim:]
        angles = rotary[0][position], rotary[1][position]
        query = head_norm(query[:, :head_dim], q_norm, eps=eps, zero_centred=zero_centred)
        query = rotate(query, *angles)
        key = key.view(num_kv_heads, head_dim)
        key = rotate(head_norm(key, k_norm, eps=eps, zero_centred=zero_centred), *angles)
        page = int(block_tables[row, position // pages.page_size])
        _store(pages, page, position % pages.page_size, key, value.view(num_kv_heads, head_dim))
        keys, values = _gather(pages, block_tables[row], position + 1)
        group = num_heads // num_kv_heads
        scores = torch.einsum("hd,htd->ht", query, keys.repeat_interleave(group, 0))
        weights = torch.softmax(scores * head_dim**-0.5, dim=-1)
        mixed = torch.einsum("ht,htd->hd", weights, values.repeat_interleave(group, 0))
        out[row] = (mixed * torch.sigmoid(gate) if gated else mixed).reshape(-1)
    return out


def _store(pages: KVLayer, page: int, offset: int, key: Tensor, value: Tensor) -> None:
    for stored, stored_scales, new in (
        (pages.keys, pages.key_scales, key),
        (pages.values, pages.value_scales, value),
    ):
        packed, scales = to_page(new, stored.dtype)
        stored[page, :, offset] = packed
        if stored_scales is not None and scales is not None:
            stored_scales[page, :, offset] = scales


def _gather(pages: KVLayer, table: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Keys and values [num_kv_heads, num_tokens, head_dim] of one sequence, fp32."""
    used = table[: -(-num_tokens // pages.page_size)].long()
    both = []
    for stored, scales in (
        (pages.keys, pages.key_scales),
        (pages.values, pages.value_scales),
    ):
        full = from_page(stored[used], None if scales is None else scales[used])
        both.append(full.transpose(0, 1).flatten(1, 2)[:, :num_tokens])
    return both[0], both[1]

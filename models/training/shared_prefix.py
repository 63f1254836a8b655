"""Attention of a flat step: dialogs see the real tokens of their prefix and their own past.

Owns the two ways to compute it - with masks, anywhere; by flash attention on CUDA - and the check
that both agree. Knows nothing of weights.

The fast way attends to the prefix and to the dialog in two calls without masks and without a copy
of the prefix for every dialog, and joins the halves by their log-sum-exp. Given joined output and
log-sum-exp, the flash backward kernel yields each half's share of the gradient, as in ring
attention (Liu et al. 2023, arXiv 2310.01889).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.training.data import Layout

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values [tokens, heads, size] of a flat step to outputs of the same shape."""


def _prefixes(queries: Tensor, keys: Tensor, values: Tensor, layout: Layout) -> list[Tensor]:
    """Each of them for the prefixes alone, [prefixes, heads, tokens, size]."""
    return [
        tensor[: layout.head].unflatten(0, (layout.prefixes, -1)).transpose(1, 2)
        for tensor in (queries, keys, values)
    ]


class MaskedAttention:
    """Plain scaled dot products; prefixes are copied to every dialog."""

    def __init__(self, prefixes: Tensor, layout: Layout) -> None:
        self._layout = layout
        self._masks = _masks(prefixes, layout)

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See ``Attend``."""
        layout = self._layout
        head = _prefixes(queries, keys, values, layout)
        # Dialogs as [prefixes, tokens, heads, size].
        rest = [
            tensor[layout.head :].unflatten(0, (layout.prefixes, -1))
            for tensor in (queries, keys, values)
        ]
        first = F.scaled_dot_product_attention(*head, is_causal=True)
        outputs = []
        corner = 0
        for (rows, width), mask in zip(layout.rectangles, self._masks, strict=True):
            own = [
                tensor[:, corner : corner + rows * width]
                .unflatten(1, (rows, width))
                .transpose(2, 3)
                for tensor in rest
            ]
            both = [
                torch.cat((shared[:, None].expand(-1, rows, -1, -1, -1), tensor), dim=3)
                for shared, tensor in zip(head[1:], own[1:], strict=True)
            ]
            asked, known, told = (tensor.flatten(0, 1) for tensor in (own[0], *both))
            out = F.scaled_dot_product_attention(asked, known, told, attn_mask=mask)
            outputs.append(out.transpose(1, 2).unflatten(0, (-1, rows)).flatten(1, 2))
            corner += rows * width
        return torch.cat((first.transpose(1, 2).flatten(0, 1), torch.cat(outputs, 1).flatten(0, 1)))


def _masks(prefixes: Tensor, layout: Layout) -> list[Tensor]:
    """Per rectangle, what is added to the scores of keys [prefix + width] of a query [width]: 0
    for the real prefix and for what is not later in its own dialog, else -inf. [1 or all dialogs,
    1, width, prefix + width], in the dtype that autocast computes in."""
    device = prefixes.device
    dtype = torch.float32
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    shared = torch.arange(layout.prefix, device=device) < prefixes[:, None]
    masks = []
    for rows, width in layout.rectangles:
        own = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        seen = torch.cat(
            (shared[:, None].expand(-1, width, -1), own.expand(layout.prefixes, -1, -1)), dim=2
        )
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, -math.inf)
        if layout.prefixes > 1:
            mask = mask.repeat_interleave(rows, dim=0)
        masks.append(_aligned(mask[:, None]))
    return masks


def _aligned(mask: Tensor) -> Tensor:
    """The mask with rows that start at multiples of 16 elements, as the fused kernel wants."""
    total = mask.shape[-1]
    return F.pad(mask, (0, -total % 16))[..., :total]


class FastAttention:
    """Flash attention in bf16 on CUDA; two calls a layer, whatever the number of dialogs."""

    def __init__(self, prefixes: Tensor, layout: Layout) -> None:
        device = prefixes.device
        self._layout = layout
        real = (torch.arange(layout.prefix, device=device) < prefixes[:, None]).flatten()
        self._order = (~real).int().argsort(stable=True)
        """Prefix tokens, the real ones of all prefixes first."""
        self._real = real[self._order][:, None, None]
        zero = torch.zeros(1, dtype=torch.int32, device=device)
        self._prefix_ends = torch.cat((zero, prefixes.cumsum(0).to(torch.int32)))
        self._part_ends = torch.arange(layout.prefixes + 1, device=device).int() * layout.part
        widths = [width for rows, width in layout.rectangles for _ in range(rows)]
        starts = [0]
        for width in widths * layout.prefixes:
            starts.append(starts[-1] + width)
        self._row_ends = _constant(tuple(starts), device)
        self._longest = max(widths)

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See ``Attend``."""
        layout = self._layout
        head = _prefixes(queries, keys, values, layout)
        first = F.scaled_dot_product_attention(*head, is_causal=True)
        shared = [tensor[: layout.head].index_select(0, self._order) for tensor in (keys, values)]
        own = [tensor[layout.head :].contiguous() for tensor in (queries, keys, values)]
        prefix = (self._part_ends, self._prefix_ends, layout.part, layout.prefix, False)
        dialog = (self._row_ends, self._row_ends, self._longest, self._longest, True)
        out = _Joined.apply(*own, *shared, self._real, prefix, dialog)  # type: ignore[no-untyped-call]
        return torch.cat((first.transpose(1, 2).flatten(0, 1), out))


_CONSTANTS: dict[tuple[Any, ...], Tensor] = {}


def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """The int32 tensor of ``values``, copied to the device once: a graph must not copy."""
    key = (values, device)
    if key not in _CONSTANTS:
        _CONSTANTS[key] = torch.tensor(values, dtype=torch.int32, device=device)
    return _CONSTANTS[key]


class _Joined(torch.autograd.Function):
    """Attention of dialogs to two sets of keys under one softmax."""

    @staticmethod
    def forward(
        context: Any, queries: Tensor, keys: Tensor, values: Tensor, shared_keys: Tensor,
        shared_values: Tensor, real: Tensor, prefix: Any, dialog: Any,
    ) -> Tensor:  # fmt: skip
        far, far_sum, *far_rest = _flash(queries, shared_keys, shared_values, prefix)
        near, near_sum, *near_rest = _flash(queries, keys, values, dialog)
        total = torch.logaddexp(far_sum, near_sum)
        out = (
            far.float() * (far_sum - total).exp().t()[..., None]
            + near.float() * (near_sum - total).exp().t()[..., None]
        ).to(queries.dtype)
        context.save_for_backward(
            queries, keys, values, shared_keys, shared_values, real, out, total,
            *prefix[:2], *dialog[:2], *far_rest[:2], *near_rest[:2],
        )  # fmt: skip
        context.shapes = (prefix[2:], dialog[2:])
        return out

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        queries, keys, values, shared_keys, shared_values, real, out, total, *rest = (
            context.saved_tensors
        )
        gradient = gradient.contiguous()
        far = torch.ops.aten._flash_attention_backward(
            gradient, queries, shared_keys, shared_values, out, total, rest[0], rest[1],
            *context.shapes[0][:2], 0.0, context.shapes[0][2], rest[4], rest[5],
        )  # fmt: skip
        near = torch.ops.aten._flash_attention_backward(
            gradient, queries, keys, values, out, total, rest[2], rest[3],
            *context.shapes[1][:2], 0.0, context.shapes[1][2], rest[6], rest[7],
        )  # fmt: skip
        # What the kernel leaves behind the last real key is not a gradient.
        shared = [tensor.masked_fill(~real, 0.0) for tensor in far[1:3]]
        return far[0] + near[0], near[1], near[2], *shared, None, None, None


def _flash(queries: Tensor, keys: Tensor, values: Tensor, ends: Any) -> Any:
    """Output [tokens, heads, size], log-sum-exp [heads, tokens] and what backward wants."""
    query_ends, key_ends, longest_query, longest_key, causal = ends
    return torch.ops.aten._flash_attention_forward(
        queries, keys, values, query_ends, key_ends, longest_query, longest_key, 0.0, causal, False
    )


def works(device: torch.device, heads: int, size: int) -> str:
    """Empty when the fast way runs there and agrees with masks in outputs and gradients, else
    what is wrong."""
    layout = Layout(256, ((3, 80), (2, 192)), 0, prefixes=2)
    prefixes = torch.tensor([201, 130], device=device)
    shape = (3, layout.tokens, heads, size)
    found = []
    start = torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(1))
    weights = torch.randn(
        shape[1:], device=device, generator=torch.Generator(device).manual_seed(2)
    )
    for number in range(layout.prefixes):
        weights[number * layout.prefix + int(prefixes[number]) : (number + 1) * layout.prefix] = 0
    try:
        for kind, dtype in ((MaskedAttention, torch.float32), (FastAttention, torch.bfloat16)):
            given = start.detach().to(dtype, copy=True).requires_grad_()
            out = kind(prefixes, layout)(*given).float()
            (out * weights).sum().backward()
            found.append(((out.detach() * (weights != 0)), given.grad.float()))
    except (RuntimeError, AttributeError, TypeError, ValueError, IndexError) as error:
        return str(error).splitlines()[0]
    for fast, exact in zip(found[1], found[0], strict=True):
        off = float((fast - exact).norm() / exact.norm())
        if not off < 0.02:
            return f"relative difference {off:.3f}"
    return ""

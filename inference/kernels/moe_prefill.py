"""Launches of the kernels that run experts on many tokens.

Owns grids and the order of arguments of ``moe_prefill.cu``. Knows nothing of where weights lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from inference.checkpoint.format import ExpertShape
    from inference.kernels.library import KernelLibrary

_SOURCE = "moe_prefill.cu"
_TILE = 64


@dataclass(frozen=True)
class SortedPairs:
    """(token, rank) pairs by expert.

    ``order`` int32 [pairs] holds token * k + rank, ``offsets`` int32 [experts + 1] the first place
    of each expert.
    """

    order: Tensor
    offsets: Tensor
    num_experts_per_tok: int

    @classmethod
    def of(cls, topk_ids: Tensor, num_experts: int) -> SortedPairs:
        """Sort ``topk_ids`` [num_tokens, k]; ranks and tokens keep their order in an expert."""
        ids, order = torch.sort(topk_ids.flatten().to(torch.int32), stable=True)
        bounds = torch.arange(num_experts + 1, dtype=torch.int32, device=ids.device)
        offsets = torch.searchsorted(ids, bounds, out_int32=True)
        return cls(order.to(torch.int32), offsets, topk_ids.shape[1])


def run_experts(
    library: KernelLibrary,
    shape: ExpertShape,
    pairs: SortedPairs,
    hidden: Tensor,
    *,
    addresses: Tensor,
    first_expert: int,
    inner: Tensor,
    outputs: Tensor,
    pdl: bool,
) -> None:
    """Outputs of experts ``first_expert`` ... for all their tokens.

    ``addresses`` int64 [experts]: where their blobs lie. ``hidden`` [tokens, hidden] and the
    results ``inner`` [pairs, intermediate], ``outputs`` [pairs, hidden] are all fp16 or all fp32.
    ``pdl`` must be False when the blobs come from another stream.
    """
    half = hidden.dtype == torch.float16
    suffix = "" if half else "_float"
    up_tile, down_tile = (_TILE // 2, _TILE) if half else (128, 128)
    experts = addresses.shape[0]
    sizes = [
        first_expert,
        pairs.num_experts_per_tok,
        shape.hidden_size,
        shape.intermediate_size,
        shape.group_size,
    ]
    library.launch(
        _SOURCE,
        f"prefill_gate_up{suffix}",
        grid=(-(-shape.intermediate_size // up_tile), experts, 1),
        block=(128, 1, 1),
        args=[addresses, pairs.offsets, pairs.order, hidden, inner, *sizes],
        shared_bytes=2 * _TILE * (shape.hidden_size // shape.group_size) if half else 0,
        pdl=pdl,
    )
    library.launch(
        _SOURCE,
        f"prefill_down{suffix}",
        grid=(-(-shape.hidden_size // down_tile), experts, 1),
        block=(128, 1, 1),
        args=[addresses, pairs.offsets, pairs.order, inner, outputs, *sizes],
        shared_bytes=2 * _TILE * (shape.intermediate_size // shape.group_size) if half else 0,
    )


def combine(library: KernelLibrary, outputs: Tensor, weights: Tensor, result: Tensor) -> None:
    """``result`` [tokens, hidden] = sum over ranks of ``weights`` fp32 [tokens, k] * outputs."""
    suffix = "" if result.dtype == torch.float16 else "_float"
    library.launch(
        _SOURCE,
        f"prefill_combine{suffix}",
        grid=(result.shape[0], 1, 1),
        block=(128, 1, 1),
        args=[outputs, weights, result, weights.shape[1], result.shape[1]],
    )

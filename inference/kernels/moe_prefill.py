"""Launches of the kernels that run experts on many tokens.

Owns grids and the order of arguments of ``moe_prefill.cu``. Knows nothing of where weights lie.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from inference.checkpoint.format import ExpertShape
    from inference.kernels.library import KernelLibrary

_SOURCE = "moe_prefill.cu"
_TILE = 64  # tokens that one block multiplies at a time
_MAX_TILES = 4  # blocks that share the tokens of one expert
_COPY_BLOCKS = 4  # blocks that copy one expert: 128 KiB of reads in flight


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
    experts: Tensor,
    addresses: Tensor,
    inner: Tensor,
    outputs: Tensor,
    pdl: bool,
) -> None:
    """Outputs of some experts for all their tokens.

    ``experts`` int32 [n], negative for none; ``addresses`` int64 [n]: where their blobs lie.
    ``hidden`` [tokens, hidden] and the results ``inner`` [pairs, intermediate], ``outputs``
    [pairs, hidden] are all fp16 or all fp32. ``pdl`` must be False when the blobs come from
    another stream.
    """
    half = hidden.dtype == torch.float16
    suffix = "" if half else "_float"
    up_tile, down_tile = (64, 128) if half else (128, 128)
    tiles = min(-(-hidden.shape[0] // _TILE), _MAX_TILES) if half else 1
    count = experts.shape[0]
    sizes = [
        pairs.num_experts_per_tok,
        shape.hidden_size,
        shape.intermediate_size,
        shape.group_size,
    ]
    library.launch(
        _SOURCE,
        f"prefill_gate_up{suffix}",
        grid=(-(-shape.intermediate_size // up_tile), count, tiles),
        block=(128, 1, 1),
        args=[addresses, experts, pairs.offsets, pairs.order, hidden, inner, *sizes],
        pdl=pdl,
    )
    library.launch(
        _SOURCE,
        f"prefill_down{suffix}",
        grid=(-(-shape.hidden_size // down_tile), count, tiles),
        block=(128, 1, 1),
        args=[addresses, experts, pairs.offsets, pairs.order, inner, outputs, *sizes],
    )


def sort_experts(
    library: KernelLibrary, pairs: SortedPairs, slot_of: Tensor, missing: Tensor, resident: Tensor
) -> None:
    """Split the experts with tokens by ``slot_of`` int32 [experts], negative where there is none.

    ``missing`` int32 [experts] becomes the list of those without a slot, padded by -1;
    ``resident`` int32 [experts] holds e at place e for those with one, else -1.
    """
    library.launch(
        _SOURCE,
        "prefill_sort_experts",
        grid=(1, 1, 1),
        block=(128, 1, 1),
        args=[pairs.offsets, slot_of, missing, resident, slot_of.shape[0]],
    )


def gather(library: KernelLibrary, blobs: Tensor, experts: Tensor, targets: Tensor) -> None:
    """Copy the ``experts`` int32 [n] of ``blobs`` uint8 [experts, blob] to ``targets`` int64 [n].

    Negative ones are left out. ``blobs`` is host memory that the device can read.
    """
    library.launch(
        _SOURCE,
        "prefill_gather",
        grid=(_COPY_BLOCKS, experts.shape[0], 1),
        block=(256, 1, 1),
        args=[experts, targets, ctypes.c_uint64(blobs.data_ptr()), blobs.shape[1]],
        pdl=False,
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

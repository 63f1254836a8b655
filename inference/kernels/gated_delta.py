"""One decode step of a gated DeltaNet layer.

Owns the launch of ``gated_delta.cu`` and the layout of the state. Knows nothing of sequences or
of the projections around the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kernels.library import KernelLibrary

SOURCE = "gated_delta.cu"
THREADS = 256
CONV_KERNEL = 4
MAX_CHANNELS_PER_HEAD = 2 * THREADS
MAX_STATE_VALUES = 16 * THREADS * 4


@dataclass(frozen=True)
class RecurrentLayer:
    """State of one layer over all slots, fp32.

    ``conv`` is a ring ``[num_slots, channels, 4]``: entry ``position % 4`` is the input of the
    convolution at ``position``. ``recurrent`` is
    ``[num_slots, num_v_heads, head_k_dim, head_v_dim]``.
    """

    conv: Tensor
    recurrent: Tensor


def gdn_step(
    lib: KernelLibrary,
    projected: Tensor,
    *,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    eps: float,
    states: RecurrentLayer,
    state_slots: Tensor,
    positions: Tensor,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    out: Tensor,
    pdl: bool = True,
) -> None:
    """Convolve, recall, update the state of every row's slot, gate and norm the output.

    State, ``state_slots`` and ``positions`` are read before the kernels in front are done: no
    kernel of the same step may write them, and between two steps on the same state something
    must run that is not launched with ``pdl`` (a copy, a graph launch). A row at position 0
    starts from zeros, whatever lies in its slot. Slots of one launch differ.

    Args:
        projected: fp32 ``[B, channels + V + 2 * num_v_heads]``, V = num_v_heads * head_v_dim:
            q, k, v (the ``channels`` of the convolution), then z, b, a.
        conv_weight: fp32 ``[channels, 4]``, oldest input first.
        A_log: fp32 ``[num_v_heads]``, like ``dt_bias``.
        norm: fp32 ``[head_v_dim]``.
        state_slots: int32 ``[B]``.
        positions: int32 ``[B]``; a negative one marks padding: no state changes, ``out`` is 0.
        out: fp32 ``[B, num_v_heads * head_v_dim]``.

    Raises:
        ValueError: The kernel does not cover these sizes or dtypes.
    """
    channels = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim
    width = channels + num_v_heads * (head_v_dim + 2)
    if projected.shape[1] != width:
        raise ValueError(f"{projected.shape[1]} projected columns, the heads make {width}")
    if conv_weight.shape != (channels, CONV_KERNEL):
        raise ValueError(f"a convolution of shape {tuple(conv_weight.shape)}, not [C, 4]")
    if num_v_heads % num_k_heads:
        raise ValueError(f"{num_v_heads} value heads do not share {num_k_heads} key heads evenly")
    _check_head(head_k_dim, head_v_dim)
    for tensor in (projected, conv_weight, A_log, dt_bias, norm, states.conv, states.recurrent):
        if tensor.dtype != torch.float32:
            raise ValueError(f"the gated delta-rule step takes fp32, not {tensor.dtype}")
    ways = _ways(head_k_dim, head_v_dim)
    floats = 2 * head_k_dim + 2 * head_v_dim + 4 + THREADS // 32 + 2 * ways * head_v_dim
    lib.launch(
        SOURCE,
        "gdn_step",
        grid=(num_v_heads, int(projected.shape[0]), 1),
        block=(THREADS, 1, 1),
        args=[
            *(projected, conv_weight, A_log, dt_bias, norm, float(eps)),
            *(states.conv, states.recurrent, state_slots, positions),
            *(num_k_heads, num_v_heads, head_k_dim, head_v_dim, out),
        ],
        shared_bytes=4 * floats,
        pdl=pdl,
    )


def _ways(head_k_dim: int, head_v_dim: int) -> int:
    """Threads over the rows of one column of the state."""
    return min(THREADS // (head_v_dim // 4), head_k_dim)


def _check_head(head_k_dim: int, head_v_dim: int) -> None:
    if head_k_dim % 4 or head_v_dim % 4 or not 4 <= head_v_dim <= THREADS:
        raise ValueError(f"head dims {head_k_dim}, {head_v_dim}: multiples of 4, V up to 256")
    if 2 * head_k_dim + head_v_dim > MAX_CHANNELS_PER_HEAD:
        raise ValueError(f"head dims {head_k_dim}, {head_v_dim} are more than 512 channels a head")
    if -(-head_k_dim // _ways(head_k_dim, head_v_dim)) > MAX_STATE_VALUES // THREADS // 4:
        raise ValueError(f"a state of {head_k_dim} x {head_v_dim} does not fit into one block")

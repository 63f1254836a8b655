"""INT8 and INT4 forms of linear weights, and back.

Owns the arithmetic of quantising a matrix of the backbone; the group arithmetic of INT4 is that of
``inference/checkpoint/int4.py``. Knows nothing of kernels' launches. Large matrices are taken a
block of rows at a time, so that no fp32 copy of a whole head is ever made.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.checkpoint import int4
from inference.checkpoint.format import NIBBLES_PER_WORD
from inference.kernels.linear import LinearWeight

INT8_MAX = 127
BLOCK_ELEMENTS = 1 << 22


def empty_int8(rows: int, columns: int, device: torch.device) -> LinearWeight:
    """An INT8 weight whose bytes are yet to be written."""
    quantised = torch.empty(rows, columns, dtype=torch.int8, device=device)
    scales = torch.empty(rows, dtype=torch.float32, device=device)
    return LinearWeight("int8", quantised, scales, rows, columns)


def quantize_int8(weight: Tensor, out: LinearWeight | None = None) -> LinearWeight:
    """``weight`` [rows, columns], fp16 or fp32, with one scale a row: largest magnitude / 127.

    A row of zeros gets the scale 0. ``out`` receives the result and may lie on another device
    than ``weight``: the arithmetic runs there. Raises ``ValueError`` when a value is NaN or
    infinite.
    """
    rows, columns = weight.shape
    out = empty_int8(rows, columns, weight.device) if out is None else out
    assert out.scales is not None
    for start, stop in _row_blocks(rows, columns):
        block = weight[start:stop].detach().to(out.weight.device).to(torch.float32)
        largest = block.abs().amax(-1)
        if not bool(torch.isfinite(largest).all()):
            raise ValueError("the matrix holds NaN or infinite values")
        scale = largest / INT8_MAX
        inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
        q = (block * inverse.unsqueeze(-1)).round_().clamp_(-INT8_MAX, INT8_MAX)
        out.weight[start:stop] = q.to(torch.int8)
        out.scales[start:stop] = scale
    return out


def quantize_int4_linear(
    weight: Tensor, group_size: int = 128, device: torch.device | None = None
) -> LinearWeight:
    """``weight`` [rows, columns], fp16 or fp32, in groups along the columns.

    The result is made on ``device``, by default that of ``weight``. Raises ``ValueError`` when
    columns are not a multiple of ``group_size`` and of 8, or a value is NaN or infinite.
    """
    rows, columns = weight.shape
    device = weight.device if device is None else device
    words = torch.empty(rows, columns // NIBBLES_PER_WORD, dtype=torch.int32, device=device)
    scales = torch.empty(rows, columns // group_size, dtype=torch.float16, device=device)
    for start, stop in _row_blocks(rows, columns):
        packed = int4.quantize(weight[start:stop].to(device), group_size)
        words[start:stop] = packed.qweight
        scales[start:stop] = packed.scales
    return LinearWeight("int4", words, scales, rows, columns, group_size)


def dequantize_into(weight: LinearWeight, out: Tensor) -> None:
    """Write the dense matrix into ``out`` [rows, columns], contiguous fp16 or fp32.

    Products are rounded to its type once. int4 takes memory for an eighth of the elements as
    int32 besides.
    """
    if weight.scales is None:
        out.copy_(weight.weight)
    elif weight.format == "int8":
        torch.mul(weight.weight, weight.scales.unsqueeze(-1), out=out)
    else:
        columns = out.view(weight.rows, -1, NIBBLES_PER_WORD)
        for i in range(NIBBLES_PER_WORD):
            columns[..., i] = ((weight.weight >> (4 * i)) & 0xF) - 8
        groups = out.view(weight.rows, -1, weight.group_size)
        groups.mul_(weight.scales.unsqueeze(-1).to(out.dtype))


def dequantize(weight: LinearWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The dense matrix ``[rows, columns]`` in a new tensor."""
    out = torch.empty(weight.rows, weight.columns, dtype=dtype, device=weight.weight.device)
    dequantize_into(weight, out)
    return out


def _row_blocks(rows: int, columns: int) -> list[tuple[int, int]]:
    step = max(1, BLOCK_ELEMENTS // max(1, columns))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]

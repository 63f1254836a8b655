"""INT4 group quantisation of weight matrices, and its inverse.

Owns the arithmetic and the bit order; knows nothing of files or experts. A matrix
``[rows, columns]`` becomes int32 words ``[rows, columns/8]`` and fp16 scales
``[rows, columns/group_size]``. Nibble ``i`` (bits ``4i..4i+3``) of word ``c`` is column
``8c+i`` and holds ``q + 8`` with ``q`` in -8..7; the weight is ``q * scale``. A scale may be
negative: that lets the largest value of a group use the level -8, whatever its sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.checkpoint.format import NIBBLES_PER_WORD

Q_MIN, Q_MAX = -8, 7
_CANDIDATE_LEVELS = (6.0, 6.5, 7.0, 7.25, 7.5, 7.75, 8.0, 8.25, 8.5, 9.0)
_SHIFTS = torch.arange(0, 4 * NIBBLES_PER_WORD, 4, dtype=torch.int32)


@dataclass(frozen=True)
class PackedInt4:
    """A quantised matrix: ``qweight`` int32 [rows, columns/8], ``scales`` fp16 [rows, groups]."""

    qweight: Tensor
    scales: Tensor

    @property
    def size_bytes(self) -> int:
        """Bytes of both tensors."""
        return int(
            self.qweight.numel() * self.qweight.element_size()
            + self.scales.numel() * self.scales.element_size()
        )


def quantize(weight: Tensor, group_size: int) -> PackedInt4:
    """Quantise ``weight`` [rows, columns] with the scale of least squared error per group.

    Each candidate scale maps the value of largest magnitude to a level between -6 and -9;
    rounding is followed by the least-squares scale for these integers. Raises ``ValueError``
    when columns are not a multiple of ``group_size`` and of 8, or a value is not finite.
    """
    rows, columns = weight.shape
    if columns % group_size or columns % NIBBLES_PER_WORD:
        raise ValueError(f"{columns} columns are not a multiple of {group_size} and 8")
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("the matrix holds NaN or infinite values")
    groups = weight.detach().to(torch.float32).reshape(rows, columns // group_size, group_size)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    best_error = torch.full_like(extreme, torch.inf)
    best_scale = torch.zeros_like(extreme)
    best_q = torch.zeros_like(groups)
    for level in _CANDIDATE_LEVELS:
        q = _round(groups, -extreme / level)
        norm = (q * q).sum(-1, keepdim=True)
        scale = (groups * q).sum(-1, keepdim=True) / norm.clamp(min=1)
        scale = scale.to(torch.float16).to(torch.float32)
        q = _round(groups, scale)
        error = (groups - q * scale).square().sum(-1, keepdim=True)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_q = torch.where(better, q, best_q)
    return PackedInt4(pack(best_q.reshape(rows, columns)), best_scale.squeeze(-1).half())


def _round(groups: Tensor, scale: Tensor) -> Tensor:
    inverse = torch.where(scale == 0, 0.0, 1.0 / scale)
    return (groups * inverse).round().clamp(Q_MIN, Q_MAX)


def pack(q: Tensor) -> Tensor:
    """Pack integers -8..7 ``[rows, columns]`` into int32 words ``[rows, columns/8]``."""
    nibbles = (q.to(torch.int64) + 8).reshape(q.shape[0], -1, NIBBLES_PER_WORD)
    words = (nibbles << _SHIFTS.to(q.device, torch.int64)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack(qweight: Tensor) -> Tensor:
    """Integers -8..7 as int32 ``[rows, columns]`` from words ``[rows, columns/8]``."""
    nibbles = (qweight.unsqueeze(-1) >> _SHIFTS.to(qweight.device)) & 0xF
    return (nibbles - 8).flatten(-2)


def dequantize(packed: PackedInt4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dense ``[rows, columns]`` in ``dtype``; the product is formed in fp32."""
    rows, groups = packed.scales.shape
    q = unpack(packed.qweight).to(torch.float32).reshape(rows, groups, -1)
    dense = q * packed.scales.to(torch.float32).unsqueeze(-1)
    return dense.reshape(rows, -1).to(dtype)


def round_trip(weight: Tensor, group_size: int) -> Tensor:
    """``weight`` [rows, columns] as the engine will see it, in fp32; for quantisation-aware use."""
    return dequantize(quantize(weight, group_size))

"""An INT4 matrix multiplied on the CPU as it is, by torch's own kernel for such matrices.

Owns the byte order that kernel wants on this processor, and which of two ways to multiply is the
faster: few rows read the packed words, many rows pay for making the matrix dense once. Knows
nothing of experts.

A value is rounded to bf16 three times (scale, input, result): about 0.3 % of a result's size.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.checkpoint.int4 import PackedInt4

GROUP_SIZES = (32, 64, 128, 256)
# Measured on one core of a Xeon with AMX, 1536 x 2048, group 128: the kernel takes 0.22 ms for a
# row, 0.39 ms for four, 6.5 ms for sixteen; making the matrix dense and multiplying it 4-5 ms.
_KERNEL_ROWS = 4
_MAX_PACKED_ROWS = 12


class PackedMatrix:
    """``[rows, columns]`` of 4-bit values; ``words`` uint8 [rows, columns/2] in blocks of rows,
    ``scales_zeros`` bf16 [columns/group_size, rows, 2].
    """

    def __init__(self, rows: int, columns: int, group_size: int) -> None:
        """Raises ``ValueError`` for sizes the kernel does not take; see ``is_supported``."""
        if not is_supported(rows, columns, group_size):
            raise ValueError(f"{rows} x {columns} in groups of {group_size} cannot stay packed")
        self.rows, self.columns, self.group_size = rows, columns, group_size
        self.words = torch.empty(rows, columns // 2, dtype=torch.uint8)
        self.scales_zeros = torch.zeros(columns // group_size, rows, 2, dtype=torch.bfloat16)

    @property
    def size_bytes(self) -> int:
        """Bytes of words, scales and zero points."""
        return self.words.numel() + 2 * self.scales_zeros.numel()

    def load(self, packed: PackedInt4) -> None:
        """Take the values of ``packed``, whose shape this matrix has."""
        self.words.copy_(_in_blocks(packed.qweight, _block_rows()))
        self.scales_zeros[:, :, 0] = packed.scales.t()

    def product(self, inputs: Tensor) -> Tensor:
        """``inputs`` [n, columns] times the transpose: [n, rows] in the dtype of ``inputs``."""
        half = inputs.to(torch.bfloat16)
        if len(half) > _MAX_PACKED_ROWS:
            return many_rows(half, self.dense_transpose()).to(inputs.dtype)
        if len(half) <= _KERNEL_ROWS:
            return self._kernel(half).to(inputs.dtype)
        return torch.cat([self._kernel(part) for part in half.split(_KERNEL_ROWS)]).to(inputs.dtype)

    def _kernel(self, half: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            half, self.words, self.group_size, self.scales_zeros
        )
        return product

    def dense_transpose(self) -> Tensor:
        """bf16 [columns, rows]."""
        block = _block_rows()
        blocks = self.words.view(self.rows // block, self.columns, block // 2)
        dense = torch.empty(self.columns, self.rows // block, 2, block // 2, dtype=torch.bfloat16)
        dense[:, :, 0] = (blocks & 0xF).transpose(0, 1)
        dense[:, :, 1] = (blocks >> 4).transpose(0, 1)
        groups = dense.view(-1, self.group_size, self.rows)
        scales = self.scales_zeros[:, :, 0].contiguous()  # a strided factor costs 7x the time
        groups.sub_(8.0).mul_(scales.unsqueeze(1))
        return dense.view(self.columns, self.rows)


def many_rows(inputs: Tensor, weight_t: Tensor) -> Tensor:
    """``inputs`` [n, columns] @ ``weight_t``, rows filled up to a round number.

    oneDNN generates code for every new n, which takes longer than the product does; how many
    tokens an expert gets differs every time.
    """
    count = len(inputs)
    step = 32 if count <= 256 else 256
    padding = -count % step
    if not padding:
        return inputs @ weight_t
    return (F.pad(inputs, (0, 0, 0, padding)) @ weight_t)[:count]


def is_supported(rows: int, columns: int, group_size: int) -> bool:
    """Whether such a matrix can stay packed on this processor."""
    block = _block_rows()
    return (
        block > 0 and rows % block == 0 and columns % group_size == 0 and group_size in GROUP_SIZES
    )


@cache
def _block_rows() -> int:
    """Rows that torch interleaves on this processor: 64 or 32; 0 if it does otherwise.

    Tried out rather than derived from the processor's name, as torch does not tell.
    """
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return 0  # a loop in C++ without vector instructions: slower than dense fp32
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (128, 64), generator=generator, dtype=torch.int32)
    theirs = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 2)
    for block in (64, 32):
        if torch.equal(theirs, _interleaved(q.to(torch.uint8), block)):
            return block
    return 0


def _in_blocks(qweight: Tensor, block: int) -> Tensor:
    """uint8 [rows, columns/2] as the kernel wants it, of int32 words [rows, columns/8]."""
    pairs = qweight.contiguous().view(torch.uint8)
    nibbles = torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(1)
    return _interleaved(nibbles, block)


def _interleaved(nibbles: Tensor, block: int) -> Tensor:
    """One byte for rows i and i + block/2 of a column; all columns of a block side by side."""
    rows, columns = nibbles.shape
    halves = nibbles.view(rows // block, 2, block // 2, columns)
    pairs = halves[:, 0] | (halves[:, 1] << 4)
    return pairs.transpose(1, 2).reshape(rows, columns // 2)

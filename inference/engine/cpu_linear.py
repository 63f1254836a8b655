"""Linear layers of a backbone on the CPU: fp32, bf16, or int8 read as it is.

Owns how a matrix is stored and which kernel multiplies it. What limits a decode step is the bytes
it reads, so half the bytes are half the time. Knows nothing of models but where their ``nn.Linear``
modules are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from inference.checkpoint import int4
from inference.moe.packed_matrix import PackedMatrix, is_supported, many_rows

LinearFormat = Literal["fp16", "int8", "int4"]
_INT4_GROUP = 32
# torch's int8 kernel goes through a matrix once for four rows, then again.
_KERNEL_ROWS = 4
_MAX_KERNEL_ROWS = 12


class Int8Matrix:
    """int8 [rows, columns] with a bf16 scale a row: the largest value of a row becomes 127."""

    def __init__(self, weight: Tensor) -> None:
        dense = weight.detach().to(torch.float32)
        scales = (dense.abs().amax(1) / 127).to(torch.bfloat16)
        divisor = torch.where(scales == 0, 1.0, scales.to(torch.float32))
        self.words = (dense / divisor.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
        self.scales = scales

    def product(self, inputs: Tensor) -> Tensor:
        """``inputs`` [n, columns] times the transpose: [n, rows] in the dtype of ``inputs``."""
        half = inputs.to(torch.bfloat16)
        if len(half) > _MAX_KERNEL_ROWS:
            dense = self.words.to(torch.bfloat16)
            return (many_rows(half, dense.t()) * self.scales).to(inputs.dtype)
        half = half.contiguous()
        if len(half) <= _KERNEL_ROWS:
            return torch._weight_int8pack_mm(half, self.words, self.scales).to(inputs.dtype)
        parts = [
            torch._weight_int8pack_mm(part, self.words, self.scales)
            for part in half.split(_KERNEL_ROWS)
        ]
        return torch.cat(parts).to(inputs.dtype)


class MatrixLinear(nn.Module):
    """The call of a bias-free ``nn.Linear`` over an ``Int8Matrix`` or ``PackedMatrix``."""

    def __init__(self, matrix: Int8Matrix | PackedMatrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, inputs: Tensor) -> Tensor:
        """``inputs`` [..., columns]; returns [..., rows] in their dtype."""
        product = self.matrix.product(inputs.flatten(0, -2))
        return product.view(*inputs.shape[:-1], -1)


def quantise_linears(
    model: Any, *, backbone_dtype: LinearFormat, lm_head_dtype: LinearFormat
) -> None:
    """Replace ``nn.Linear`` modules of a loaded stock ``model`` in place; "fp16" leaves them.

    A layer with a bias, and the gate of a shared expert (one row), stay. A tied head becomes a
    matrix of its own. Raises ``ValueError`` for int4 where this processor has no kernel for it.
    """
    if backbone_dtype != "fp16":
        for parent, name, linear in list(_linears(model.model.layers)):
            setattr(parent, name, MatrixLinear(_matrix(linear.weight, backbone_dtype)))
    if lm_head_dtype != "fp16":
        model.lm_head = MatrixLinear(_matrix(model.lm_head.weight, lm_head_dtype))


def _linears(layers: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for parent in layers.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear) and child.bias is None and child.out_features > 1:
                yield parent, name, child


def _matrix(weight: Tensor, kind: LinearFormat) -> Int8Matrix | PackedMatrix:
    if kind == "int8":
        return Int8Matrix(weight)
    rows, columns = weight.shape
    if not is_supported(rows, columns, _INT4_GROUP):
        raise ValueError(
            f"a matrix of {tuple(weight.shape)} cannot be int4 on this processor; use int8"
        )
    matrix = PackedMatrix(rows, columns, _INT4_GROUP)
    matrix.load(int4.quantize(weight.detach(), _INT4_GROUP))
    return matrix


class Projection:
    """Linear layers over the same input, side by side, as a decode step wants them: fp32 in and
    out. fp32 weights are joined into one transposed matrix; others are called as they are.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._modules = modules
        self._weight_t: Tensor | None = None
        self._bias: Tensor | None = None
        linears = [module for module in modules if isinstance(module, nn.Linear)]
        if len(linears) == len(modules) and linears[0].weight.dtype is torch.float32:
            weights = [linear.weight for linear in linears]
            self._weight_t = (weights[0] if len(weights) == 1 else torch.cat(weights)).t()
            if linears[0].bias is not None:
                self._bias = torch.cat([linear.bias for linear in linears])

    def product(self, inputs: Tensor) -> Tensor:
        """``inputs`` fp32 [n, columns]; returns fp32 [n, rows of all layers]."""
        if self._weight_t is None:
            parts = [_call(module, inputs) for module in self._modules]
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        output = inputs @ self._weight_t
        if self._bias is not None:
            output += self._bias
        return output

    def added_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """``residual`` plus the product."""
        if self._weight_t is None:
            return residual + self.product(inputs)
        output = torch.addmm(residual, inputs, self._weight_t)
        if self._bias is not None:
            output += self._bias
        return output


def _call(module: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    if isinstance(module, nn.Linear):
        return module(inputs.to(module.weight.dtype)).to(torch.float32)
    return module(inputs)

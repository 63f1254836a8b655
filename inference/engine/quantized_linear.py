"""A linear layer of prefill whose weight stays quantised.

Owns the call contract of ``nn.Linear`` over a :class:`LinearWeight`: stock model code calls it as
it calls ``nn.Linear``, while the decode kernels read the same bytes. Knows nothing of models.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inference.kernels.linear import LinearWeight
from inference.kernels.quantize import dequantize_into


class DequantizeWorkspace:
    """Memory for one dense block of a weight, shared by all layers of a device.

    Layers run one after the other in stream order, so one block is enough for all.
    """

    def __init__(self, num_elements: int, dtype: torch.dtype, device: torch.device | str) -> None:
        """``num_elements``: of one block; at least the columns of the widest weight."""
        self.memory = torch.empty(num_elements, dtype=dtype, device=device)

    @property
    def size_bytes(self) -> int:
        """Bytes of the block."""
        return self.memory.numel() * self.memory.element_size()

    def block(self, rows: int, columns: int) -> Tensor:
        """The first ``rows * columns`` elements as a matrix."""
        return self.memory[: rows * columns].view(rows, columns)


class QuantizedLinear(nn.Module):
    """``y = x @ W.T`` with ``nn.Linear``'s call: ``x`` [..., in_features] -> [..., out_features].

    The weight is made dense a block of rows at a time, in the type of ``x``, which must be that
    of the workspace. It is no parameter of the module: ``.to()`` leaves it where it is.
    """

    def __init__(self, weight: LinearWeight, workspace: DequantizeWorkspace) -> None:
        """Raises ``ValueError`` when not even one row fits into the workspace."""
        super().__init__()
        if workspace.memory.numel() < weight.columns:
            raise ValueError(
                f"a workspace of {workspace.memory.numel()} elements holds no row of "
                f"{weight.columns}"
            )
        self.linear_weight = weight
        self.workspace = workspace
        self.in_features = weight.columns
        self.out_features = weight.rows

    def forward(self, x: Tensor) -> Tensor:
        """Raises ``ValueError`` when ``x`` is not of the workspace's type."""
        weight = self.linear_weight
        if x.dtype != self.workspace.memory.dtype:
            raise ValueError(f"the input is {x.dtype}, not {self.workspace.memory.dtype}")
        step = self.workspace.memory.numel() // weight.columns
        if step >= weight.rows:
            return F.linear(x, self._dense(0, weight.rows))
        out = x.new_empty(*x.shape[:-1], weight.rows)
        for start in range(0, weight.rows, step):
            stop = min(start + step, weight.rows)
            out[..., start:stop] = F.linear(x, self._dense(start, stop))
        return out

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"{self.in_features}, {self.out_features}, {self.linear_weight.format}"

    def _dense(self, start: int, stop: int) -> Tensor:
        block = self.workspace.block(stop - start, self.in_features)
        dequantize_into(self.linear_weight.slice_rows(start, stop), block)
        return block

"""Random shared experts for the tests."""

from __future__ import annotations

from typing import Literal

import torch

from inference.kernels.linear import LinearWeight
from inference.kernels.moe import SharedExpert
from inference.kernels.quantize import quantize_int8


def shared_expert(
    hidden: int, size: int, form: Literal["fp32", "fp16", "int8"], seed: int = 0
) -> SharedExpert:
    """A shared expert on the CPU whose outputs are about as large as its inputs."""
    generator = torch.Generator().manual_seed(seed)

    def weight(rows: int, columns: int) -> LinearWeight:
        dense = torch.randn(rows, columns, generator=generator) / columns**0.5
        if form == "int8":
            return quantize_int8(dense)
        if form == "fp16":
            return LinearWeight("fp16", dense.half(), None, rows, columns)
        return LinearWeight("fp32", dense, None, rows, columns)

    gate = torch.randn(hidden, generator=generator) / hidden**0.5
    return SharedExpert(weight(2 * size, hidden), weight(hidden, size), gate)

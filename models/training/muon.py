"""Muon: momentum whose update of every matrix is made orthogonal before it is taken.

Owns the optimiser of the weights that are matrices between hidden states; stacked experts
``[experts, rows, columns]`` are as many matrices. torch.optim.Muon takes 2-D weights only and
cannot be captured in a CUDA graph. Source: Jordan et al., "Muon" (2024), coefficients of its
Newton-Schulz iteration; Liu et al., "Muon is scalable for LLM training" (arXiv 2502.16982), the
scale that lets it share a learning rate with AdamW.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_ADAMW_RMS = 0.2
"""Root mean square of an AdamW update in units of its learning rate."""


class Muon(torch.optim.Optimizer):
    """Matrices of one shape are updated together. ``lr`` may be a tensor that a graph reads."""

    def __init__(
        self, weights: Iterable[Tensor], lr: float | Tensor, *, momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(weights, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update of all weights that have a gradient; ``closure`` is not supported."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[tuple(weight.shape[-2:])].append(weight)
            for shape, weights in by_shape.items():
                ahead = [self._ahead(weight, group["momentum"]) for weight in weights]
                update = orthogonal(torch.cat([moved.view(-1, *shape) for moved in ahead]))
                scale = _ADAMW_RMS * math.sqrt(max(shape))
                counts = [weight.numel() // math.prod(shape) for weight in weights]
                for weight, part in zip(weights, update.split(counts), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.sub_(part.reshape(weight.shape) * (group["lr"] * scale))

    def _ahead(self, weight: Tensor, momentum: float) -> Tensor:
        """The gradient after Nesterov momentum."""
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        buffer: Tensor = state["momentum"]
        gradient = weight.grad
        assert gradient is not None
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices [n, rows, columns] with orthogonal rows or columns, to about a third
    of a singular value; fp32, computed in bf16 on CUDA."""
    found = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = found.shape[-2] > found.shape[-1]
    if tall:
        found = found.mT
    found = found / (found.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    first, second, third = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = found @ found.mT
        found = first * found + (second * square + third * square @ square) @ found
    return (found.mT if tall else found).float()

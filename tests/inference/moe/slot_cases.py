"""Small experts over slots, and one step of them, for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference.checkpoint.format import ExpertShape
from inference.kernels.library import KernelLibrary
from inference.kernels.moe import SharedExpert
from inference.moe.expert_arena import ExpertArena
from inference.moe.expert_slots import ExpertSlots

EPS = 1e-6


@dataclass(frozen=True)
class Sizes:
    """A mixture of experts small enough for the emulator."""

    hidden: int = 64
    intermediate: int = 32
    group_size: int = 32
    experts: int = 8
    k: int = 2
    layers: int = 2

    @property
    def shape(self) -> ExpertShape:
        return ExpertShape(self.hidden, self.intermediate, self.group_size)


class Case:
    """Random weights of ``sizes``, on the library's device and on the CPU."""

    def __init__(
        self,
        library: KernelLibrary,
        sizes: Sizes = Sizes(),
        *,
        seed: int = 0,
        router_scale: float = 1.0,
    ) -> None:
        self.library = library
        self.sizes = sizes
        generator = torch.Generator().manual_seed(seed)
        self.arena = ExpertArena.random(
            sizes.shape,
            layers=range(sizes.layers),
            num_experts=sizes.experts,
            seed=seed,
            device=library.device,
        )
        self.routers = [
            router_scale * torch.randn(sizes.experts, sizes.hidden, generator=generator)
            for _ in range(sizes.layers)
        ]
        self.norm = torch.rand(sizes.hidden, generator=generator) + 0.5

    def slots(self, per_layer: int | Sequence[int], max_batch: int = 1, **more: Any) -> ExpertSlots:
        """New slots over the weights."""
        counts = [per_layer] * self.sizes.layers if isinstance(per_layer, int) else per_layer
        return ExpertSlots(
            self.library,
            self.arena,
            routers=[router.to(self.library.device) for router in self.routers],
            slots_per_layer=counts,
            num_experts_per_tok=self.sizes.k,
            max_batch=max_batch,
            norm_topk_prob=more.pop("norm_topk_prob", True),
            **more,
        )

    def decode(
        self,
        slots: ExpertSlots,
        layer: int,
        x: Tensor,
        positions: Sequence[int],
        *,
        zero_centred: bool = False,
        sequence_slots: Sequence[int] | None = None,
    ) -> Tensor:
        """One layer of one step; returns what ``x`` on the CPU becomes."""
        device = self.library.device
        there = x.to(device, copy=True)
        sequences = None
        if sequence_slots is not None:
            sequences = torch.tensor(sequence_slots, dtype=torch.int32, device=device)
        slots.decode(
            layer,
            there,
            self.norm.to(device),
            EPS,
            zero_centred,
            torch.tensor(positions, dtype=torch.int32, device=device),
            sequences,
        )
        return there.cpu()

    def steps(self, slots: ExpertSlots, rows: int, count: int, *, seed: int = 5) -> list[Tensor]:
        """Outputs of ``count`` steps of all layers on the same random inputs every time."""
        generator = torch.Generator().manual_seed(seed)
        outputs = []
        for position in range(count):
            for layer in range(self.sizes.layers):
                # A part that stays makes routing repeat itself, as real text does.
                x = torch.randn(8, self.sizes.hidden, generator=generator)[:rows]
                outputs.append(self.decode(slots, layer, x, [position] * rows))
        return outputs


def on(device: torch.device, shared: SharedExpert) -> SharedExpert:
    """The same shared expert on ``device``."""
    from dataclasses import replace

    def moved(weight: Any) -> Any:
        scales = None if weight.scales is None else weight.scales.to(device)
        return replace(weight, weight=weight.weight.to(device), scales=scales)

    return SharedExpert(moved(shared.gate_up), moved(shared.down), shared.gate.to(device))

"""One decode step of the experts against torch and against the CPU engine's modules.

Both sum in fp32, in another order: outputs of size ~1 differ by less than 1e-5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.checkpoint.loader import load_model
from inference.kernels import reference_moe
from inference.kernels.library import KernelLibrary
from inference.kernels.moe import SharedExpert, shared_format
from inference.kernels.quantize import quantize_int4_linear
from inference.moe.expert_arena import ExpertArena
from inference.moe.expert_slots import ExpertSlots
from inference.moe.router import Router
from tests.inference.kernels.moe_weights import shared_expert
from tests.inference.moe.slot_cases import EPS, Case, Sizes, on

TOLERANCE = 1e-5


def expected(case: Case, layer: int, x: Tensor, positions: list[int], **more: Any) -> Tensor:
    return reference_moe.decode_layer(
        x,
        case.norm,
        eps=EPS,
        zero_centred=more.get("zero_centred", False),
        router=case.routers[layer],
        num_experts_per_tok=case.sizes.k,
        normalise=more.get("normalise", True),
        packed=lambda expert: case.arena.packed(layer, expert),
        shared=more.get("shared"),
        positions=positions,
    )


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(),
        Sizes(hidden=256, intermediate=128, experts=32, k=4),
        Sizes(hidden=128, intermediate=96, group_size=32, experts=5, k=5),
        # Longer than what a lane keeps in flight, in both matrices.
        Sizes(hidden=2304, intermediate=768, group_size=128, experts=3, k=2, layers=1),
        Sizes(hidden=64, intermediate=32, experts=512, k=10, layers=1),
    ],
    ids=["tiny", "demo", "odd", "long", "many"],
)
def test_outputs_equal_the_reference(kernels: KernelLibrary, sizes: Sizes) -> None:
    case = Case(kernels, sizes)
    slots = case.slots(sizes.k, max_batch=2)
    generator = torch.Generator().manual_seed(1)
    for step in range(2):
        for layer in range(sizes.layers):
            x = torch.randn(2, sizes.hidden, generator=generator)
            output = case.decode(slots, layer, x, [step, step])
            assert torch.allclose(
                output, expected(case, layer, x, [step, step]), atol=TOLERANCE, rtol=TOLERANCE
            )
    slots.verify()


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
@pytest.mark.parametrize("zero_centred", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_batches_and_options(
    kernels: KernelLibrary, batch: int, zero_centred: bool, normalise: bool
) -> None:
    case = Case(kernels)
    slots = case.slots(4, max_batch=batch, norm_topk_prob=normalise)
    positions = [-1 if row == 2 else row for row in range(batch)]
    x = torch.randn(batch, 64, generator=torch.Generator().manual_seed(batch))
    output = case.decode(slots, 1, x, positions, zero_centred=zero_centred)
    wanted = expected(case, 1, x, positions, zero_centred=zero_centred, normalise=normalise)
    assert torch.allclose(output, wanted, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("form", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize(("hidden", "size"), [(64, 32), (64, 48), (256, 1536), (2304, 32)])
def test_shared_expert(kernels: KernelLibrary, form: Any, hidden: int, size: int) -> None:
    sizes = Sizes(hidden=hidden, experts=4, layers=1)
    case = Case(kernels, sizes)
    shared = shared_expert(hidden, size, form)
    slots = case.slots(2, max_batch=4, shared=[on(kernels.device, shared)])
    x = torch.randn(3, hidden, generator=torch.Generator().manual_seed(2))
    output = case.decode(slots, 0, x, [4, -1, 0])
    wanted = expected(case, 0, x, [4, -1, 0], shared=shared)
    assert torch.allclose(output, wanted, atol=TOLERANCE, rtol=TOLERANCE)
    without = expected(case, 0, x, [4, -1, 0])
    assert not torch.allclose(output, without, atol=0.05)


def test_a_shared_expert_in_int4_is_refused() -> None:
    with pytest.raises(ValueError, match="int4"):
        shared_format(quantize_int4_linear(torch.randn(64, 64), 32))
    shared = shared_expert(64, 32, "fp32")
    assert isinstance(shared, SharedExpert)
    assert shared.size == 32


def test_equals_the_modules_of_the_cpu_engine(kernels: KernelLibrary, tiny_model_dir: Path) -> None:
    loaded = load_model(tiny_model_dir)
    arena = ExpertArena.from_store(loaded.store, device=kernels.device)
    modules = [layer.mlp for layer in loaded.model.model.layers]
    assert all(isinstance(module.gate, Router) for module in modules)
    slots = ExpertSlots(
        kernels,
        arena,
        routers=[module.gate.weight.data.to(kernels.device) for module in modules],
        slots_per_layer=[3] * len(modules),
        num_experts_per_tok=2,
        max_batch=1,
        norm_topk_prob=bool(loaded.config.norm_topk_prob),
    )
    generator = torch.Generator().manual_seed(4)
    positions = torch.zeros(1, dtype=torch.int32, device=kernels.device)
    for _ in range(4):
        for layer, module in enumerate(modules):
            x = torch.randn(1, 64, generator=generator)
            _, weights, ids = module.gate(x)
            wanted = x + module.experts(x, ids, weights)
            there = x.to(kernels.device, copy=True)
            slots.decode(layer, there, None, 0.0, False, positions)
            assert torch.allclose(there.cpu(), wanted, atol=2e-5)

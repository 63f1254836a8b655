"""Choosing experts: ties, noise, and logits no weights should give."""

from __future__ import annotations

import math

import pytest
import torch

from inference.kernels import reference_moe
from inference.kernels.library import KernelLibrary
from inference.moe import router
from inference.moe.expert_slots import ExpertSlots
from tests.inference.moe.slot_cases import Case, Sizes

SIZES = Sizes(experts=40, k=3, layers=2)


def chosen(slots: ExpertSlots) -> tuple[torch.Tensor, torch.Tensor]:
    tables = slots.tables
    return tables.topk_ids.view(-1, 3).cpu().long(), tables.topk_weights.view(-1, 3).cpu()


def test_equal_logits_give_the_lowest_ids(kernels: KernelLibrary) -> None:
    case = Case(kernels, SIZES)
    case.routers[0] = torch.zeros(40, 64)
    case.routers[0][[9, 33, 38]] = 1.0
    slots = case.slots(4, max_batch=2)
    x = torch.stack([torch.ones(64), -torch.ones(64)])
    case.decode(slots, 0, x, [0, 0])
    ids, weights = chosen(slots)
    assert ids.tolist() == [[9, 33, 38], [0, 1, 2]]
    assert torch.allclose(weights, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_weights_are_the_softmax_over_all(kernels: KernelLibrary, scale: float) -> None:
    case = Case(kernels, SIZES, router_scale=scale)
    for normalise in (False, True):
        slots = case.slots(3, norm_topk_prob=normalise)
        x = torch.randn(1, 64, generator=torch.Generator().manual_seed(3))
        case.decode(slots, 0, x, [0])
        weights, ids = reference_moe.top_k(slots.tables.logits.cpu(), 3, normalise)
        ours, our_weights = chosen(slots)
        assert torch.equal(ours, ids)
        assert torch.allclose(our_weights, weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_logits_still_choose_k_experts(kernels: KernelLibrary, value: float) -> None:
    case = Case(kernels, SIZES)
    slots = case.slots(3)
    x = torch.zeros(1, 64)
    x[0, 5] = value
    case.decode(slots, 0, x, [0])
    ids, _ = chosen(slots)
    assert len(set(ids[0].tolist())) == 3
    assert all(0 <= expert < 40 for expert in ids[0].tolist())
    slots.verify()


def test_gumbel_noise_is_that_of_the_cpu_router(kernels: KernelLibrary) -> None:
    case = Case(kernels, SIZES)
    noisy = case.slots(3, max_batch=2, gumbel_temperature=0.7, seed=11)
    plain = case.slots(3, max_batch=2)
    zero = case.slots(3, max_batch=2, gumbel_temperature=0.0, seed=11)
    generator = torch.Generator().manual_seed(6)
    differs = 0
    for position in range(20):
        x = torch.randn(2, 64, generator=generator)
        outputs = [case.decode(slots, 1, x, [position, 7]) for slots in (noisy, plain, zero)]
        assert torch.equal(outputs[1], outputs[2])
        noise = router.gumbel_noise(11, 1, [position, 7], num_experts=40)
        logits = noisy.tables.logits.cpu() + 0.7 * noise
        weights, ids = reference_moe.top_k(logits, 3, True)
        ours, our_weights = chosen(noisy)
        assert torch.equal(ours, ids)
        assert torch.allclose(our_weights, weights, atol=1e-4)
        differs += int((ours != chosen(plain)[0]).any())
    assert differs > 10


def test_noise_draws_experts_by_their_probability(kernels: KernelLibrary) -> None:
    """At temperature 1 the first expert is drawn from the softmax (the Gumbel-max trick)."""
    sizes = Sizes(experts=4, k=1, layers=1)
    case = Case(kernels, sizes)
    slots = case.slots(1, max_batch=8, gumbel_temperature=1.0, seed=3)
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(8)).expand(8, 64)
    case.routers[0] *= 0.2
    slots = case.slots(1, max_batch=8, gumbel_temperature=1.0, seed=3)
    counts = torch.zeros(4)
    for step in range(100):
        case.decode(slots, 0, x, list(range(8 * step, 8 * step + 8)))
        counts += torch.bincount(slots.tables.topk_ids.cpu().long(), minlength=4)
    wanted = torch.softmax(slots.tables.logits[0].cpu(), -1)
    # Five standard deviations of 800 draws.
    assert torch.allclose(counts / 800, wanted, atol=5 * 0.5 / 800**0.5)
    assert counts.max() < 800

"""Experts on many tokens against torch.

fp16 rounds weights, inner and outer activations once each: outputs of size ~2 differ by less than
6e-3. fp32 sums in another order.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inference.kernels import moe_prefill, reference_moe
from inference.kernels.library import KernelLibrary
from inference.moe import expert_prefill
from inference.moe.expert_slots import ExpertSlots
from tests.inference.moe.slot_cases import Case, Sizes

TOLERANCE = {torch.float16: 6e-3, torch.float32: 1e-5}


def inputs(sizes: Sizes, num_tokens: int, dtype: torch.dtype, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, sizes.hidden, generator=generator).to(dtype)
    logits = torch.randn(num_tokens, sizes.experts, generator=generator)
    weights, ids = reference_moe.top_k(logits, sizes.k, True)
    return hidden, ids, weights.to(dtype)


def run(case: Case, slots: ExpertSlots, layer: int, *tensors: Tensor) -> Tensor:
    there = [tensor.to(case.library.device) for tensor in tensors]
    hidden = there[0].clone()
    output = slots.prefill(layer, *there)
    assert torch.equal(there[0], hidden)
    return output.cpu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("sizes", "num_tokens"),
    [
        (Sizes(), 1),
        (Sizes(), 40),
        (Sizes(hidden=256, intermediate=128, experts=16, k=4, layers=1), 80),
        (Sizes(hidden=320, intermediate=96, experts=5, k=2, layers=1), 30),
        (Sizes(hidden=384, intermediate=256, group_size=128, experts=2, k=1, layers=1), 150),
        (Sizes(experts=2, k=1, layers=1), 700),
        (Sizes(hidden=128, intermediate=64, group_size=64, experts=3, k=3, layers=1), 17),
    ],
    ids=["one", "tiny", "demo", "odd", "tiles", "more tiles than blocks", "ragged"],
)
def test_outputs_equal_the_reference(
    kernels: KernelLibrary, sizes: Sizes, num_tokens: int, dtype: torch.dtype
) -> None:
    case = Case(kernels, sizes)
    slots = case.slots(sizes.k, staging_experts=3)
    for layer in range(sizes.layers):
        hidden, ids, weights = inputs(sizes, num_tokens, dtype, layer)
        output = run(case, slots, layer, hidden, ids, weights)
        wanted = reference_moe.experts(
            hidden.float(), ids, weights.float(), lambda e, at=layer: case.arena.packed(at, e)
        )
        assert output.dtype == dtype
        assert (output.float() - wanted).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_streamed_gathered_in_place_and_resident_give_the_same_bits(
    kernels: KernelLibrary, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = Sizes(layers=3)
    case = Case(kernels, sizes)
    staged = [case.slots(2, staging_experts=count) for count in (1, 3, 4, 8)]
    resident, in_place = case.slots(8), case.slots(8)
    for layer in range(3):
        resident.warm_start(layer, range(8))
        staged[0].warm_start(layer, [7, 2])
    assert bool((resident.tables.slot_of >= 0).all())
    assert bool((in_place.tables.slot_of < 0).all())
    # Layers in order, then out of it: what was copied ahead is then of no use. Among many tokens
    # some touch few experts.
    for step, layer in enumerate((0, 1, 2, 0, 2, 2, 1)):
        tensors = inputs(sizes, (40, 3, 1)[step % 3], dtype, layer)
        wanted = run(case, resident, layer, *tensors)
        assert torch.equal(run(case, in_place, layer, *tensors), wanted)
        for pairs_an_expert in (0, 2, 1000):  # all streamed, as it is, all gathered
            monkeypatch.setattr(expert_prefill, "STREAMING_PAIRS", pairs_an_expert)
            for slots in staged:
                assert torch.equal(run(case, slots, layer, *tensors), wanted)


def test_many_pairs_stream(emulated_kernels: KernelLibrary) -> None:
    case = Case(emulated_kernels)
    few, all_fit = case.slots([2, 8])._prefill, case.slots(8)._prefill
    assert few.streams(0, 2 * case.sizes.experts)
    assert not few.streams(0, 2 * case.sizes.experts - 1)
    assert not few.streams(1, 1000)
    assert not all_fit.streams(0, 1000)


def test_experts_are_split_by_slots(kernels: KernelLibrary) -> None:
    # Experts 0 ... 299; every third has tokens, every second a slot.
    ids = torch.arange(0, 300, 3, device=kernels.device).unsqueeze(1)
    pairs = moe_prefill.SortedPairs.of(ids, 300)
    experts = torch.arange(300, dtype=torch.int32, device=kernels.device)
    missing, resident = torch.zeros_like(experts), torch.zeros_like(experts)
    slot_of = experts % 2 * -6 + 5
    moe_prefill.sort_experts(kernels, pairs, slot_of, missing, resident)
    assert missing.tolist() == list(range(3, 300, 6)) + [-1] * 250
    assert resident.tolist() == [e if e % 6 == 0 else -1 for e in range(300)]


@pytest.mark.parametrize("num_tokens", [3, 40], ids=["gathered", "streamed"])
def test_resident_experts_are_not_copied(kernels: KernelLibrary, num_tokens: int) -> None:
    sizes = Sizes(layers=2)
    case = Case(kernels, sizes)
    slots = case.slots(4, staging_experts=3)
    first = inputs(sizes, num_tokens, torch.float16)
    wanted = [run(case, slots, layer, *first) for layer in range(2)]
    slots.warm_start(0, [1, 2, 3, 7])
    slots.warm_start(1, [0, 5])
    for layer, resident in ((0, [1, 2, 3, 7]), (1, [0, 5])):
        # Their bytes on the host are not looked at.
        for expert in resident:
            case.arena.blobs[layer][expert].bitwise_xor_(0x5A)
    for layer in range(2):
        assert torch.equal(run(case, slots, layer, *first), wanted[layer])
    for layer, resident in ((0, [1, 2, 3, 7]), (1, [0, 5])):
        for expert in resident:
            case.arena.blobs[layer][expert].bitwise_xor_(0x5A)
    slots.verify()
    # Slots that change between two layers of a chunk.
    run(case, slots, 0, *first)
    slots.warm_start(1, [1, 2, 3, 4])
    assert torch.equal(run(case, slots, 1, *first), wanted[1])


def test_a_token_does_not_depend_on_the_others(kernels: KernelLibrary) -> None:
    sizes = Sizes(layers=1)
    case = Case(kernels, sizes)
    slots = case.slots(2)
    hidden, ids, weights = inputs(sizes, 33, torch.float16)
    together = run(case, slots, 0, hidden, ids, weights)
    for token in (0, 17, 32):
        one = slice(token, token + 1)
        assert torch.equal(run(case, slots, 0, hidden[one], ids[one], weights[one]), together[one])


def test_slots_and_tables_stay_as_they_are(kernels: KernelLibrary) -> None:
    case = Case(kernels)
    slots = case.slots(3)
    case.steps(slots, 1, 3)
    before = [slots.tables.expert_of.clone(), slots.tables.frequency.clone(), slots.counters()]
    run(case, slots, 1, *inputs(case.sizes, 20, torch.float16))
    slots.verify()
    assert torch.equal(slots.tables.expert_of, before[0])
    assert torch.equal(slots.tables.frequency, before[1])
    assert slots.counters().hits == before[2].hits


def test_no_tokens_and_other_dtypes(emulated_kernels: KernelLibrary) -> None:
    case = Case(emulated_kernels)
    slots = case.slots(3)
    hidden, ids, weights = inputs(case.sizes, 0, torch.float16)
    assert slots.prefill(0, hidden, ids, weights).shape == (0, 64)
    with pytest.raises(ValueError, match="bfloat16"):
        slots.prefill(0, torch.zeros(1, 64, dtype=torch.bfloat16), torch.zeros(1, 2), weights)


def test_pairs_are_sorted_by_expert() -> None:
    ids = torch.tensor([[2, 0], [0, 3], [2, 3]])
    pairs = moe_prefill.SortedPairs.of(ids, 5)
    assert pairs.order.tolist() == [1, 2, 0, 4, 3, 5]
    assert pairs.offsets.tolist() == [0, 2, 2, 4, 6, 6]

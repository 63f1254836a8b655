from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.errors import SlotMismatchError
from inference.kernels import reference_moe
from inference.kernels.library import KernelLibrary
from inference.moe.expert_slots import ExpertSlots, FatigueConfig
from inference.moe.prefetcher import PrefetchConfig
from inference.moe.router_counters import NAMES
from tests.inference.moe.slot_cases import EPS, Case, Sizes
from tests.inference.moe.slot_model import SlotModel

SIZES = Sizes(experts=16, k=3, layers=3)


def rows_of(slots: ExpertSlots, logits: Tensor, positions: list[int]) -> list[list[int]]:
    k = slots.num_experts_per_tok
    _, ids = reference_moe.top_k(logits[: len(positions)].cpu(), k, True)
    return [row if p >= 0 else [] for row, p in zip(ids.tolist(), positions, strict=True)]


@pytest.mark.parametrize(
    ("batch", "slot_counts", "prefetch"),
    [
        (1, [3, 4, 9], PrefetchConfig()),
        (1, [3, 5, 16], PrefetchConfig(count_predictions=True)),
        (1, [5, 3, 7], PrefetchConfig(enabled=True, width=2, max_copies=1)),
        (4, [3, 6, 12], PrefetchConfig(enabled=True, width=3, max_copies=3)),
    ],
)
def test_victims_and_counters_follow_the_rules(
    kernels: KernelLibrary, batch: int, slot_counts: list[int], prefetch: PrefetchConfig
) -> None:
    case = Case(kernels, SIZES)
    slots = case.slots(slot_counts, max_batch=batch, prefetch=prefetch, decay=0.75)
    model = SlotModel(
        slot_counts,
        SIZES.experts,
        decay=0.75,
        blob_bytes=case.arena.blob_bytes,
        width=prefetch.width,
        max_copies=prefetch.max_copies if prefetch.enabled else 0,
    )
    generator = torch.Generator().manual_seed(batch)
    tables = slots.tables
    for step in range(150 if batch == 1 else 60):
        positions = [step if row == 0 or (step + row) % 3 else -1 for row in range(batch)]
        for layer in range(SIZES.layers):
            x = torch.randn(batch, SIZES.hidden, generator=generator)
            case.decode(slots, layer, x, positions)
            rows = rows_of(slots, tables.logits, positions)
            assert tables.topk_ids.view(batch, -1).tolist() == [row or [-1] * 3 for row in rows]
            guesses = None
            if prefetch.predicts and layer + 1 < SIZES.layers:
                guesses = rows_of(slots, tables.next_logits, positions)
            model.step(layer, positions, rows, guesses)
            # The next layer's slots were chosen already.
            for index in range(SIZES.layers):
                in_slots = [-1 if e is None else e for e in model.slots[index]]
                assert tables.experts_in_slots(index).tolist() == in_slots
        if step % 20 == 0:
            slots.verify()
    slots.verify()
    assert np.array_equal(tables.frequency.cpu().numpy(), model.frequency)
    counters = slots.counters()
    ours = {name: getattr(counters, name) for name in NAMES[: NAMES.index("hit_ns")]}
    assert {n: v for n, v in ours.items() if v} == {n: v for n, v in model.counters.items() if v}
    assert np.array_equal(counters.uses.numpy(), model.uses)
    assert counters.misses > 0
    if prefetch.enabled:
        assert counters.prefetch_useful > 0
        assert counters.prefetch_wasted > 0


@pytest.mark.parametrize("batch", [1, 3])
def test_any_slots_and_prefetch_give_the_same_bits(kernels: KernelLibrary, batch: int) -> None:
    """k slots, some, all; prefetch off and on: every output of 12 steps has the same bits."""
    sizes = Sizes(layers=3)
    case = Case(kernels, sizes)
    wanted = case.steps(case.slots(sizes.experts, max_batch=batch), batch, 12)
    evictions = 0
    for per_layer in (2, 3, 5, 8):
        for enabled in (False, True):
            prefetch = PrefetchConfig(enabled=enabled, max_copies=2)
            slots = case.slots(per_layer, max_batch=batch, prefetch=prefetch)
            for expected, output in zip(wanted, case.steps(slots, batch, 12), strict=True):
                assert torch.equal(output, expected)
            evictions += slots.counters().evictions
            slots.verify()
    assert evictions > 50


def test_a_row_does_not_depend_on_the_others(kernels: KernelLibrary) -> None:
    case = Case(kernels)
    together = case.steps(case.slots(4, max_batch=8), 8, 5)
    alone = case.steps(case.slots(2), 1, 5)
    for eight, one in zip(together, alone, strict=True):
        assert torch.equal(eight[:1], one)


def test_padding_touches_nothing(kernels: KernelLibrary) -> None:
    case = Case(kernels)
    slots = case.slots(4, max_batch=4, prefetch=PrefetchConfig(enabled=True))
    x = torch.randn(4, 64)
    for layer in range(2):
        assert torch.equal(case.decode(slots, layer, x, [-1] * 4), x)
    assert (slots.tables.expert_of == -1).all()
    assert not slots.tables.counters.any()
    assert not slots.tables.frequency.any()
    output = case.decode(slots, 0, x, [-1, 3, -1, -1])
    assert torch.equal(output[[0, 2, 3]], x[[0, 2, 3]])
    assert not torch.equal(output[1], x[1])
    assert slots.counters().misses == 2


def test_verify_names_a_flipped_byte(kernels: KernelLibrary) -> None:
    case = Case(kernels)
    slots = case.slots(4)
    case.steps(slots, 1, 6)
    slots.verify()
    slot = 2
    expert = int(slots.tables.experts_in_slots(1)[slot])
    byte = slots.tables.slots(1)[slot, case.arena.blob_bytes - 1 :]
    byte.bitwise_xor_(1)
    with pytest.raises(SlotMismatchError, match=f"layer 1: expert {expert} in slot {slot}"):
        slots.verify()
    byte.bitwise_xor_(1)
    slots.verify()
    slots.tables.addresses[1, expert] = case.arena.blobs[1][expert].data_ptr()
    with pytest.raises(SlotMismatchError, match="layer 1"):
        slots.verify()


def test_counters_are_reset_and_give_rates(kernels: KernelLibrary) -> None:
    case = Case(kernels)
    slots = case.slots(8)
    case.steps(slots, 1, 10)
    counters = slots.counters()
    assert counters.hits + counters.misses == 10 * 2 * 2
    assert counters.hit_rate == counters.hits / 40
    assert counters.bytes_read == counters.misses * case.arena.blob_bytes
    assert counters.uses.sum(1).tolist() == [20, 20]
    assert counters.activation_shares().sum(1).tolist() == pytest.approx([1.0, 1.0])
    assert all(1 < entropy <= 3 for entropy in counters.entropies())
    # The last layer's time is taken up by the next one to run.
    assert counters.hit_layers + counters.miss_layers in (18, 19, 20)
    slots.reset_counters()
    assert slots.counters().hit_rate == 1.0
    case.steps(slots, 1, 10)
    assert slots.counters().misses == 0


def test_override_takes_ids_from_the_table(kernels: KernelLibrary) -> None:
    sizes = Sizes(layers=2)
    case = Case(kernels, sizes)
    slots = case.slots(3, max_batch=2, prefetch=PrefetchConfig(count_predictions=True))
    generator = torch.Generator().manual_seed(3)
    table = torch.stack([torch.rand(4, 8, generator=generator).argsort(1)[:, :2] for _ in range(5)])
    table = table.view(5, 2, 4).to(torch.int32)
    case.steps(slots, 2, 3)
    there = table.to(kernels.device)
    slots.routing_override(there, predicted=there)
    slots.reset_counters()
    for step in range(12):
        for layer in range(2):
            x = torch.randn(2, 64, generator=generator)
            output = case.decode(slots, layer, x, [step] * 2)
            ids = table[step % 5, layer].view(2, 2).long()
            assert torch.equal(slots.tables.topk_ids.view(2, 2).cpu().long(), ids)
            normed = reference_moe.rms_norm(x, case.norm, EPS, False)
            weights = torch.softmax(normed @ case.routers[layer].t(), -1).gather(-1, ids)
            weights = weights / weights.sum(-1, keepdim=True)
            expected = x + reference_moe.experts(
                normed, ids, weights, lambda expert, layer=layer: case.arena.packed(layer, expert)
            )
            assert torch.allclose(output, expected, atol=1e-5)
    assert slots.counters().prediction_accuracy == 1.0
    assert slots.counters().recall_on_misses == 1.0
    slots.routing_override(None)
    assert slots.tables.overrides[:2].tolist() == [0, 0]
    with pytest.raises(ValueError, match="experts that do not exist"):
        slots.routing_override(there + 7)
    with pytest.raises(ValueError, match="no override"):
        slots.routing_override(there[:, :1])


def test_warm_start_fills_slots(kernels: KernelLibrary) -> None:
    case = Case(kernels)
    slots = case.slots(4)
    wanted = case.steps(case.slots(8), 1, 4)
    case.steps(slots, 1, 4)
    for ids in ([5, 1, 5, 7], [0, 2, 3, 4, 6], [6]):
        slots.warm_start(1, ids)
        assert set(dict.fromkeys(ids[:4])) <= set(slots.tables.experts_in_slots(1).tolist())
        slots.verify()
    for expected, output in zip(wanted, case.steps(slots, 1, 4), strict=True):
        assert torch.equal(output, expected)


def test_impossible_sizes_are_refused(emulated_kernels: KernelLibrary) -> None:
    case = Case(emulated_kernels)
    for arguments, message in (
        (([1, 4], 1), "1 expert slots in a layer are fewer than the 2"),
        (([4], 1), "1 slot counts for 2 layers"),
        (([4, 4], 9), "9 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            case.slots(*arguments)
    with pytest.raises(ValueError, match="hidden must be a multiple of 64"):
        Case(emulated_kernels, Sizes(hidden=96)).slots(4)
    assert case.slots(99).tables.begins == [0, 8, 16]


def test_fatigue_breaks_a_repeated_combination(kernels: KernelLibrary) -> None:
    case = Case(kernels, Sizes(layers=1))
    x = torch.randn(1, 64)
    chosen = {}
    for name, fatigue in (
        ("off", FatigueConfig(repeats=3)),
        ("on", FatigueConfig(repeats=3, penalty=50.0)),
    ):
        slots = case.slots(8, max_batch=2, fatigue=fatigue, num_sequences=4)
        sets, outputs = [], []
        for position in range(8):
            outputs.append(case.decode(slots, 0, x, [position], sequence_slots=[3]))
            sets.append(frozenset(slots.tables.topk_ids[:2].tolist()))
        chosen[name] = sets, outputs, slots.counters().repeated_combinations
        # Another sequence in the same place begins anew.
        case.decode(slots, 0, x, [2], sequence_slots=[3])
        assert frozenset(slots.tables.topk_ids[:2].tolist()) == sets[0]
    sets, outputs, repeated = chosen["off"]
    assert len(set(sets)) == 1
    assert repeated == 7
    tired, tired_outputs, repeated = chosen["on"]
    # Three in a row, another one once, and again.
    assert [s == sets[0] for s in tired] == [True, True, True, False, True, True, True, False]
    assert not tired[3] & sets[0]
    assert repeated == 4
    for mine, theirs in zip(tired_outputs[:3], outputs[:3], strict=True):
        assert torch.equal(mine, theirs)

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inference.kernels import moe
from inference.kernels.library import KernelLibrary
from inference.moe.prefetcher import PrefetchConfig
from tests.inference.moe.slot_cases import Case, Sizes

SIZES = Sizes(layers=3)


@pytest.mark.parametrize("lost", ["all", "some"])
def test_copies_that_do_not_arrive_are_read_from_the_host(
    kernels: KernelLibrary, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Outputs keep their bits, late copies are counted, no slot keeps half an expert."""
    case = Case(kernels, SIZES)
    wanted = case.steps(case.slots(SIZES.experts), 1, 40)
    calls = 0
    copy = moe.copy_experts

    def copy_partly(library: KernelLibrary, *, blob_bytes: int, **more: Any) -> None:
        nonlocal calls
        calls += 1
        if lost == "some":
            copy(
                library, blob_bytes=blob_bytes if calls % 3 else blob_bytes // 2 // 16 * 16, **more
            )

    monkeypatch.setattr(moe, "copy_experts", copy_partly)
    slots = case.slots(4, prefetch=PrefetchConfig(enabled=True, max_copies=2))
    slots.tables.pool.fill_(0xA5)
    for expected, output in zip(wanted, case.steps(slots, 1, 40), strict=True):
        assert torch.equal(output, expected)
    counters = slots.counters()
    assert calls == 40 * 2
    assert counters.late > 0
    if lost == "all":
        assert counters.late == counters.prefetch_useful
    else:
        assert counters.late < counters.prefetch_useful
    expected_reads = counters.misses + counters.late + counters.prefetched
    assert counters.bytes_read == expected_reads * case.arena.blob_bytes


def test_prefetch_turns_misses_into_hits(kernels: KernelLibrary) -> None:
    """The same input in every layer makes predictions right where the routers agree."""
    case = Case(kernels, SIZES)
    case.routers = [case.routers[0]] * 3
    generator = torch.Generator().manual_seed(1)
    misses = []
    for enabled in (False, True):
        prefetch = PrefetchConfig(enabled=enabled, max_copies=2, count_predictions=True)
        slots = case.slots(4, prefetch=prefetch)
        generator.manual_seed(1)
        for position in range(30):
            x = torch.randn(1, 64, generator=generator)
            for layer in range(3):
                case.decode(slots, layer, x, [position])
        counters = slots.counters()
        assert counters.prediction_accuracy == 1.0
        assert counters.recall_on_misses == 1.0
        assert counters.predicted_total == 30 * 2 * 2
        assert counters.prefetch_wasted == counters.late == 0
        assert counters.prefetched == (counters.misses_with_prediction if enabled else 0)
        slots.verify()
        misses.append(counters.misses)
    # Only the first layer, for which there is no prediction, still misses.
    assert misses[1] == pytest.approx(misses[0] / 3, rel=0.01)


def test_copy_counts_its_bytes(kernels: KernelLibrary) -> None:
    device = kernels.device
    source = torch.randint(0, 256, (3, 16 * 1001), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    pairs = [[a.data_ptr(), b.data_ptr()] for a, b in zip(source, target, strict=True)]
    arrived = torch.zeros(3, dtype=torch.int32, device=device)

    def copied(count: int) -> Tensor:
        moe.copy_experts(
            kernels,
            copies=torch.tensor(pairs, device=device),
            count=torch.tensor([count], dtype=torch.int32, device=device),
            arrived=arrived,
            blob_bytes=source.shape[1],
            blocks=2,
        )
        return arrived.cpu()

    assert copied(0).tolist() == [0, 0, 0]
    assert copied(2).tolist() == [16016, 16016, 0]
    assert torch.equal(target[:2], source[:2])
    assert not target[2].any()


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"max_copies": 9}, {"max_copies": 0}, {"width": 0}, {"copy_blocks": 0}):
        with pytest.raises(ValueError, match="impossible prefetch settings"):
            PrefetchConfig(**wrong)  # type: ignore[arg-type]

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import MIB, EngineConfig
from inference.errors import MemoryPlanError
from inference.geometry import SHAPES, ModelGeometry
from inference.memory_plan import (
    CONTEXT_BYTES,
    MARGIN_BYTES,
    OUTSIDE_MARGIN_BYTES,
    MemoryPlan,
    plan_memory,
    share_slots,
)

QWEN36 = ModelGeometry.of_shape("qwen3.6-35b-a3b")
QWEN30 = ModelGeometry.of_shape("qwen3-30b-a3b")
ONE_CHAT = EngineConfig(device="cuda", max_model_len=8192, max_num_seqs=1)

configs = st.builds(
    EngineConfig,
    device=st.just("cuda"),
    gpu_memory_limit=st.integers(2000, 40000).map(lambda mib: mib * MIB),
    max_model_len=st.integers(1, 70000),
    max_num_seqs=st.integers(1, 8),
    backbone_dtype=st.sampled_from(["fp16", "int8"]),
    lm_head_dtype=st.sampled_from(["fp16", "int8", "int4"]),
    kv_cache_dtype=st.sampled_from(["fp16", "fp8"]),
    prefill_chunk_tokens=st.integers(1, 8192),
)
geometries = st.sampled_from([QWEN36, QWEN30])


def parts(plan: MemoryPlan) -> int:
    return (
        plan.context_bytes
        + plan.backbone_bytes
        + plan.head_bytes
        + plan.kv_bytes
        + plan.state_bytes
        + plan.workspace_bytes
        + plan.slot_bytes
        + plan.free_bytes
    )


def planned(
    geometry: ModelGeometry, config: EngineConfig
) -> tuple[MemoryPlan | None, MemoryPlanError | None]:
    try:
        return plan_memory(geometry, config), None
    except MemoryPlanError as error:
        return None, error


@settings(max_examples=150, deadline=None)
@given(geometry=geometries, config=configs)
def test_parts_add_up_or_every_remedy_fits(geometry: ModelGeometry, config: EngineConfig) -> None:
    plan, refusal = planned(geometry, config)
    if refusal is not None:
        assert "gpu_memory_limit" in refusal.remedies
        for name, value in refusal.remedies.items():
            assert name in str(refusal)
            plan_memory(geometry, replace(config, **{name: value}))  # type: ignore[arg-type]
    if plan is None:
        return
    assert parts(plan) == plan.gpu_memory_limit == config.gpu_memory_limit
    assert plan.free_bytes >= MARGIN_BYTES
    assert plan.slot_bytes == plan.num_slots * geometry.expert_bytes
    assert sum(size for _, size in plan.workspace) == plan.workspace_bytes
    assert len(plan.slots_per_layer) == len(geometry.routed_layers)
    assert all(8 <= slots <= geometry.num_experts for slots in plan.slots_per_layer)
    # What is left over is less than one expert, unless all of them are resident.
    left = plan.free_bytes - MARGIN_BYTES
    assert left < geometry.expert_bytes or plan.num_slots == geometry.num_all_experts
    assert plan.num_pages * plan.page_size >= config.max_num_seqs * config.max_model_len


@settings(max_examples=100, deadline=None)
@given(geometry=geometries, config=configs, more=st.integers(0, 20000))
def test_more_memory_never_gives_fewer_slots(
    geometry: ModelGeometry, config: EngineConfig, more: int
) -> None:
    small, _ = planned(geometry, config)
    if small is None:
        return
    limit = config.gpu_memory_limit + more * MIB
    large = plan_memory(geometry, replace(config, gpu_memory_limit=limit))
    pairs = zip(small.slots_per_layer, large.slots_per_layer, strict=True)
    assert all(after >= before for before, after in pairs)


@settings(max_examples=100, deadline=None)
@given(geometry=geometries, config=configs)
def test_a_remedy_is_the_largest_value_that_fits(
    geometry: ModelGeometry, config: EngineConfig
) -> None:
    _, refusal = planned(geometry, config)
    remedies = refusal.remedies if refusal is not None else {}
    for name, step in (("max_num_seqs", 1), ("gpu_memory_limit", -MIB), ("max_model_len", 64)):
        if name not in remedies:
            continue
        beyond = int(remedies[name]) + step
        if name == "gpu_memory_limit" or beyond < getattr(config, name):
            with pytest.raises(MemoryPlanError):
                plan_memory(geometry, replace(config, **{name: beyond}))  # type: ignore[arg-type]


def test_the_published_model_in_six_thousand_mib() -> None:
    plan = plan_memory(QWEN36, ONE_CHAT)
    assert plan.gpu_memory_limit == 6000 * 1024 * 1024
    # qwen-model budget: 4897 MB less the embedding and the head, routers doubled to fp32.
    assert plan.backbone_bytes == pytest.approx(1e6 * (4897 - 2 * 1017.1 + 41.9 + 4.9), rel=0.01)
    assert plan.head_bytes == 248320 * 2048 * 2
    assert plan.kv_bytes == 8192 * 20480
    assert plan.pinned_bytes == pytest.approx(16.61e9 + 1.017e9, rel=0.01)
    assert min(plan.slots_per_layer) >= 11
    # There the budget counts routers and norms in int8 too.
    int8 = plan_memory(QWEN36, replace(ONE_CHAT, backbone_dtype="int8", lm_head_dtype="int8"))
    assert int8.backbone_bytes + int8.head_bytes == pytest.approx(
        1e6 * (2451 - 509.1 - 21.0 - 1.3 + 84.2 + 7.0), rel=0.01
    )
    assert min(int8.slots_per_layer) >= 40


def test_the_plan_covers_what_was_measured_on_a_data_centre_card() -> None:
    """MiB on an H200 (torch 2.11) with a card of its own; both shapes, 8k tokens, one chat."""
    plan = plan_memory(QWEN36, ONE_CHAT)
    workspace = dict(plan.workspace)
    # Prefill of a chunk above what lies there after the start; 48 MiB for other routings.
    for geometry, chunk, measured in (
        (QWEN36, 512, 129.3),
        (QWEN36, 1024, 250.8),
        (QWEN30, 512, 55.3),
        (QWEN30, 1024, 74.5),
    ):
        of_chunk = plan_memory(geometry, replace(ONE_CHAT, prefill_chunk_tokens=chunk))
        assert dict(of_chunk.workspace)["prefill activations"] / MIB >= measured + 48
    # Outside torch's allocator: 684.8 with our kernels and cuBLAS, 66.0 more when 16,810 MiB of
    # host memory were pinned, 66.0 more after prefill, graphs and decode.
    assert workspace["page tables"] / MIB == pytest.approx(66.0, abs=1.0)
    outside = plan.gpu_memory_limit - plan.allocator_bytes - OUTSIDE_MARGIN_BYTES
    assert outside / MIB + 8 >= 684.8 + 66.0 + 66.0
    # A segment may be mapped a little beyond the cap, and yet the limit holds.
    assert plan.allocator_bytes / MIB + 20 + 684.8 + 66.0 + 66.0 < 6000
    planned = plan.gpu_memory_limit - plan.free_bytes
    assert planned / MIB <= 5900
    assert plan.allocator_bytes + outside - planned >= MARGIN_BYTES - OUTSIDE_MARGIN_BYTES


def test_eight_sequences_need_int8_and_the_refusal_says_so() -> None:
    eight = replace(ONE_CHAT, max_num_seqs=8)
    both = "backbone_dtype int8 together with lm_head_dtype int8"
    with pytest.raises(MemoryPlanError, match=f"use max_num_seqs <= 2 .* or {both}"):
        plan_memory(QWEN36, eight)
    plan_memory(QWEN36, replace(eight, backbone_dtype="int8", lm_head_dtype="int8"))
    backbone = replace(eight, backbone_dtype="int8")
    with pytest.raises(MemoryPlanError, match="use lm_head_dtype int8 or"):
        plan_memory(QWEN36, backbone)
    small_chunks = replace(eight, prefill_chunk_tokens=320)
    with pytest.raises(MemoryPlanError, match="use backbone_dtype int8 or max_num_seqs <= ") as one:
        plan_memory(QWEN36, small_chunks)
    assert one.value.remedies["backbone_dtype"] == "int8"


def test_a_dtype_that_does_not_help_is_not_offered() -> None:
    with pytest.raises(MemoryPlanError) as info:
        plan_memory(QWEN30, replace(ONE_CHAT, max_num_seqs=8))
    assert "backbone_dtype" not in info.value.remedies


def test_more_sequences_than_the_engine_decodes_together() -> None:
    with pytest.raises(MemoryPlanError, match="max_num_seqs <= 8"):
        plan_memory(QWEN36, replace(ONE_CHAT, max_num_seqs=9))


def test_a_measured_context_takes_the_place_of_the_constant() -> None:
    small = plan_memory(QWEN36, ONE_CHAT, context_bytes=300 * MIB)
    assert small.context_bytes == 300 * MIB
    more = (CONTEXT_BYTES - 300 * MIB) // QWEN36.expert_bytes
    assert small.num_slots - plan_memory(QWEN36, ONE_CHAT).num_slots in (more, more + 1)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_card_that_holds_everything_has_room_left(shape: str) -> None:
    plan = plan_memory(
        ModelGeometry.of_shape(shape), replace(ONE_CHAT, gpu_memory_limit=48_000 * MIB)
    )
    assert plan.num_slots == ModelGeometry.of_shape(shape).num_all_experts
    assert plan.free_bytes > 1000 * MIB


@pytest.mark.parametrize("num_slots", [16, 17, 64, 79, 80, 200, 512])
def test_sharing_favours_the_first_two_layers_a_little(num_slots: int) -> None:
    shares = share_slots(num_slots, 4, 128, least_each=4)
    assert sum(shares) == num_slots
    assert shares[0] >= shares[1] >= shares[2] >= shares[3] >= 4
    assert shares[0] - shares[3] <= 1 + num_slots // 4 // 8


def test_no_layer_gets_more_slots_than_it_has_experts() -> None:
    assert share_slots(40, 4, 10, least_each=2) == (10, 10, 10, 10)


def overrides() -> list[dict[str, Any]]:
    return [
        {"kv_cache_dtype": "fp8"},
        {"lm_head_dtype": "int8"},
        {"lm_head_dtype": "int4"},
        {"backbone_dtype": "int8"},
        {"prefill_chunk_tokens": 256},
        {"max_model_len": 2048},
    ]


@pytest.mark.parametrize("change", overrides(), ids=str)
@pytest.mark.parametrize("geometry", [QWEN36, QWEN30], ids=["3.6", "30b"])
def test_every_saving_buys_slots(geometry: ModelGeometry, change: dict[str, Any]) -> None:
    before = plan_memory(geometry, ONE_CHAT).num_slots
    assert plan_memory(geometry, replace(ONE_CHAT, **change)).num_slots > before

"""What a worker tells of its engine: on the CPU, on a GPU, and when the device has failed."""

from __future__ import annotations

import json

import torch

from app.exposition import ENGINE_GAUGES
from app.panel import engine_view
from app.store.presence import ProcessReport
from inference.engine.prefix_cache import PrefixCacheStats
from inference.llm import EngineStats
from inference.memory_plan import MemoryPlan
from inference.moe.expert_cache import CacheStats
from inference.moe.router_counters import NAMES, RouterCounters
from workers.engine_facts import EngineFacts, binned_loads

PLAN = MemoryPlan(
    gpu_memory_limit=6000,
    context_bytes=500,
    backbone_bytes=3000,
    head_bytes=200,
    kv_bytes=100,
    state_bytes=0,
    workspace_bytes=100,
    slot_bytes=2000,
    free_bytes=100,
    slots_per_layer=(8, 8),
    num_pages=4,
    page_size=64,
    prefill_chunk_tokens=512,
    prefill_staging_experts=8,
    pinned_bytes=0,
    workspace=(),
)


def router(uses: list[list[int]], **counts: int) -> RouterCounters:
    values = {name: counts.get(name, 0) for name in NAMES}
    return RouterCounters(**values, uses=torch.tensor(uses))


def stats(
    *,
    decoded: int = 0,
    on_gpu: RouterCounters | None = None,
    plan: MemoryPlan | None = None,
) -> EngineStats:
    return EngineStats(
        num_prefill_tokens=100,
        num_decode_tokens=decoded,
        num_steps=1,
        num_waiting=1,
        num_running=2,
        num_threads=2,
        grammar_failures=0,
        expert_cache=CacheStats(hits=90, misses=10, evictions=0, bytes_read=0),
        prefix_cache=PrefixCacheStats(1, 10, 100, 75),
        router=on_gpu,
        memory_plan=plan,
    )


def test_on_the_cpu_there_is_no_gpu_memory_and_no_heat_map() -> None:
    seen = iter([stats(decoded=10), stats(decoded=70)])
    seconds = iter([100.0, 103.0])
    facts = EngineFacts("demo-moe", lambda: next(seen), clock=lambda: next(seconds))
    first, second = facts(), facts()
    assert "decode_tokens_per_s" not in first
    assert (second["decode_tokens_per_s"], second["prefill_tokens_per_s"]) == (20.0, 0.0)
    assert (second["model"], second["num_running"], second["num_waiting"]) == ("demo-moe", 2, 1)
    assert (second["expert_hit_rate"], second["prefix_hit_rate"]) == (0.9, 0.75)
    for name in ("memory_plan", "gpu_memory_bytes", "activation", "expert_recall_on_misses"):
        assert name not in second


def test_on_a_gpu_every_gauge_has_its_fact_and_the_page_shows_them_all() -> None:
    counters = router(
        [[3, 1], [0, 4]],
        misses_with_prediction=4,
        predicted_right_on_misses=3,
        hit_ns=10**9,
        hit_layers=10,
        miss_ns=10**9,
        miss_layers=5,
    )
    read = stats(on_gpu=counters, plan=PLAN)
    facts = EngineFacts("big", lambda: read, gpu_bytes=lambda plan: 5500)()
    assert ENGINE_GAUGES.keys() <= facts.keys()
    assert (facts["gpu_memory_bytes"], facts["expert_slots"]) == (5500, 16)
    assert (facts["expert_recall_on_misses"], facts["stall_s"], facts["stall_share"]) == (
        *(0.75, 0.5, 0.25),
    )
    assert facts["activation"] == {"layers": 2, "experts": 2, "loads": [[1.5, 0.5], [0.0, 2.0]]}
    assert sum(size for _, size in facts["memory_plan"]) == PLAN.gpu_memory_limit
    told = json.loads(json.dumps(facts))
    view = engine_view.of(ProcessReport("turns", "h-1", "h", 1, 0.0, 1, 1, 0.0, told))
    assert view.heat is not None
    assert (view.heat.layers, len(view.heat.cells), view.plan_bytes) == (2, 4, 6000)
    assert {name for name, _, _ in view.figures} >= {"专家命中率", "等专家的时间占比", "专家槽位"}


def test_a_large_model_is_binned_and_small_to_send() -> None:
    uses = [[layer * expert for expert in range(256)] for layer in range(48)]
    loads = binned_loads(uses)
    assert (len(loads), {len(row) for row in loads}) == (40, {32})
    # The layer without any use is in the first bin, alone.
    assert set(loads[0]) == {0.0}
    assert all(abs(sum(row) / len(row) - 1) < 0.01 for row in loads[1:])
    facts = EngineFacts("big", lambda: stats(on_gpu=router(uses), plan=PLAN), lambda plan: 1)()
    assert len(json.dumps(facts)) < 16_000
    assert binned_loads([]) == []


def test_a_device_that_failed_does_not_end_the_heartbeat() -> None:
    def read() -> EngineStats:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert EngineFacts("big", read)() == {"model": "big"}

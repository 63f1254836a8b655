"""The measurement of the GPU engine, run on emulated kernels and a tiny model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from inference.benchmarks import gpu_latency
from inference.benchmarks.cache import run_gpu
from inference.benchmarks.gpu_figures import DecodeFigures, PartFigures, Workload
from inference.benchmarks.gpu_latency import (
    Build,
    Floor,
    GpuLatencyReport,
    floor_of,
    print_reports,
    prompt_ids,
    run,
)
from inference.benchmarks.link import LinkSpeed
from inference.benchmarks.memory_sampler import MemoryPeak
from inference.benchmarks.random_model import tiny_qwen3_5_moe_config, tiny_qwen3_moe_config
from inference.benchmarks.routing import DEVICE_DECAY, ROUTER, Routing
from inference.config import MIB, EngineConfig
from inference.geometry import ModelGeometry
from inference.kernels.library import KernelLibrary
from inference.memory_plan import plan_memory
from inference.moe.expert_slots import ExpertSlots
from inference.moe.router_counters import RouterCounters

LIMITS = EngineConfig(device="cuda", max_model_len=64, max_num_seqs=1, prefill_chunk_tokens=32)
SHORT = Workload(context=40, new_tokens=8, warm_up_tokens=4, part_steps=2, prompt_sizes=(4, 8))


def builder(library: KernelLibrary, hf_config: object, slots: int) -> Build:
    """Builds the runner of a tiny random model with ``slots`` expert slots a layer."""
    from inference.engine.gpu_loader import build_random_gpu_runner

    geometry = ModelGeometry.from_config(hf_config.to_dict(), group_size=32)  # type: ignore[attr-defined]

    def build(config: EngineConfig):  # type: ignore[no-untyped-def]
        plan = plan_memory(geometry, config, context_bytes=0)
        plan = replace(plan, slots_per_layer=(slots,) * len(geometry.routed_layers))
        return build_random_gpu_runner(
            hf_config, config, library=library, group_size=32, dtype=torch.float32, plan=plan
        )

    return build


@pytest.fixture(scope="module")
def reports(emulated_kernels: KernelLibrary) -> list[GpuLatencyReport]:
    build = builder(emulated_kernels, tiny_qwen3_5_moe_config(), slots=4)
    return run(build, "tiny", LIMITS, SHORT, prefetch="both", capped=False)


def test_both_settings_of_the_prefetch_are_measured_and_the_faster_is_last(
    reports: list[GpuLatencyReport],
) -> None:
    assert {report.prefetch for report in reports} == {True, False}
    assert reports[0].decode_tok_s <= reports[1].decode_tok_s
    by_mode = {report.prefetch: report.decode.counters for report in reports}
    assert by_mode[True].prefetched > 0
    assert by_mode[False].prefetched == 0
    for counters in by_mode.values():
        # Every layer uses its two experts in every step.
        assert counters.hits + counters.misses == 8 * 4 * 2
        assert counters.misses > 0


def test_every_figure_has_its_part(reports: list[GpuLatencyReport]) -> None:
    for report in reports:
        assert set(report.prefill_s) == {4, 8}
        assert min(report.parts.backbone_ms, report.parts.loop_ms) > 0
        assert report.decode.median_ms <= report.decode.slowest_ms
        assert report.decode_tok_s == pytest.approx(1e3 / report.decode.step_ms)
        assert report.decode.hit_rate == pytest.approx(
            1 - report.decode.fetched / (8 * 4 * 2), abs=1e-9
        )


def test_the_last_line_is_json_with_every_figure(
    reports: list[GpuLatencyReport], capsys: pytest.CaptureFixture[str]
) -> None:
    print_reports(reports)
    lines = capsys.readouterr().out.strip().splitlines()
    record = json.loads(lines[-1])
    for name in (
        "decode_tok_s",
        "prefill_tok_s",
        "hit_rate",
        "peak_mb",
        "link_gb_s",
        "floor_ms",
        "backbone_ms",
        "moe_ms",
        "prefill_8_tok_s",
        "slower",
    ):
        assert name in record
    assert record["peak_mb"] is None
    assert record["routing"] == "own"
    table = "\n".join(lines)
    for label in ("floor, link and memory together", "where a step goes", "hit rate", "routing"):
        assert label in table


@pytest.mark.parametrize(("wanted", "batch"), [(0.5, 1), (0.75, 2)])
def test_generated_routing_reaches_its_hit_rate_on_the_device(
    emulated_kernels: KernelLibrary, wanted: float, batch: int
) -> None:
    routing = Routing(own=False, skew=0.4, seed=3, wanted_hit_rate=wanted)
    workload = replace(
        SHORT, context=64, new_tokens=30, warm_up_tokens=14, batch=batch, routing=routing
    )
    config = replace(LIMITS, max_num_seqs=batch)
    build = builder(emulated_kernels, tiny_qwen3_moe_config(), slots=4)
    (report,) = run(build, "tiny", config, workload, prefetch="off", capped=False)
    assert report.decode.hit_rate == pytest.approx(wanted, abs=0.1)
    assert report.decode.routing.wanted_hit_rate == wanted
    assert str(report.decode.routing).startswith("generated:skew=")
    assert report.parts.moe_ms > 0


def test_the_simulation_agrees_with_the_device(emulated_kernels: KernelLibrary) -> None:
    build = builder(emulated_kernels, tiny_qwen3_moe_config(), slots=4)
    workload = replace(SHORT, context=50, new_tokens=24, warm_up_tokens=10)
    report = run_gpu(
        build,
        "tiny",
        LIMITS,
        workload,
        routings=["own", "generated:skew=0.3,reuse=0.4,seed=2"],
        counts=[2, 4, 8],
    )
    for row in report.rows:
        assert len(row.hit_rates) == 2
    curves = [[row.hit_rates[name] for row in report.rows] for name in report.rows[0].hit_rates]
    assert all(curve == sorted(curve) for curve in curves)
    for figures in report.prefetch:
        # Prefetched experts move the frequencies a little; the rule is the same.
        assert figures.hit_rate == pytest.approx(figures.simulated_hit_rate, abs=0.15)
        assert figures.useful_bytes + figures.wasted_bytes > 0


def test_a_floor_is_bytes_over_speed() -> None:
    geometry = ModelGeometry.of_shape("qwen3.6-35b-a3b")
    config = EngineConfig(device="cuda", max_model_len=8192, max_num_seqs=1)
    plan = plan_memory(geometry, config)
    speed = LinkSpeed("card", link_gb_s=50.0, memory_gb_s=4000.0)
    floor = floor_of(geometry, plan, config, speed, batch=1, context=8000, hits=160.0, misses=160.0)
    assert floor.link_ms == pytest.approx(160 * 1.622 / 50.0, rel=0.01)
    backbone = plan.backbone_bytes + plan.head_bytes
    rest = 8000 * 20480 + 2 * geometry.state_bytes + 160 * geometry.expert_bytes
    assert floor.memory_ms == pytest.approx((backbone + rest) / 4000e6)
    assert floor.overlapped_ms == max(floor.link_ms, floor.memory_ms)
    assert Floor(0, 0, 1.0, 2.0).serial_ms == 3.0


def test_a_context_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="use >= 386"):
        Workload(context=300)
    with pytest.raises(ValueError, match="at least 1"):
        Workload(batch=0)


def test_the_simulation_uses_the_decay_of_the_slots() -> None:
    assert inspect.signature(ExpertSlots).parameters["decay"].default == DEVICE_DECAY


def test_prompts_have_the_wanted_length() -> None:
    assert prompt_ids([5, 6], 100, 5) == [5, 6, 5, 6, 5]
    assert len(set(prompt_ids(None, 6144, 6144))) == 6144


class Noted:
    """A context manager that notes its begin and end."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name, self._events = name, events
        self.held_bytes = 5
        self.peak: MemoryPeak | None = None

    def __enter__(self) -> Noted:
        self._events.append(f"{self._name} begins")
        return self

    def __exit__(self, *exc: object) -> None:
        self._events.append(f"{self._name} ends")
        self.peak = MemoryPeak(5900 * MIB, 400, 80.0, 0.02, "NVML, process")


def test_the_card_is_filled_first_and_parts_are_measured_after_the_sampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    geometry = ModelGeometry.of_shape("qwen3.6-35b-a3b")
    config = EngineConfig(device="cuda", max_model_len=8192, max_num_seqs=1)
    runner = SimpleNamespace(
        plan=plan_memory(geometry, config),
        geometry=geometry,
        vocab_size=1000,
        warm_up=lambda: events.append("warm up"),
        set_prefetch=lambda enabled: events.append(f"prefetch {enabled}"),
    )
    counters = RouterCounters(*[0] * 18, uses=torch.zeros(1))
    decode = DecodeFigures(8.0, 8.0, 9.0, 9.0, counters, 4, ROUTER)

    def noted(name: str, result: object) -> Callable[..., object]:
        return lambda *args, **kwargs: (events.append(name), result)[1]

    monkeypatch.setattr(gpu_latency, "measure_link", noted("link", LinkSpeed("card", 50, 4000)))
    monkeypatch.setattr(gpu_latency, "Ballast", lambda leave: Noted(f"ballast {leave}", events))
    monkeypatch.setattr(gpu_latency, "used_bytes", noted("baseline", 7))
    monkeypatch.setattr(gpu_latency, "MemorySampler", lambda *a, **k: Noted("sampling", events))
    monkeypatch.setattr(gpu_latency, "measure_prefill", noted("prefill", {512: 0.5}))
    monkeypatch.setattr(gpu_latency, "fill_context", noted("fill", ([0], [1])))
    monkeypatch.setattr(gpu_latency, "measure_decode", noted("decode", decode))
    monkeypatch.setattr(gpu_latency, "measure_parts", noted("parts", PartFigures(7.0, 2.0, 5.0)))
    build = noted("build", runner)
    (report,) = run(build, "m", config, Workload(), prefetch="on")  # type: ignore[arg-type]
    assert events == [
        "link",
        f"ballast {6000 * MIB} begins",
        "baseline",
        "sampling begins",
        "build",
        "warm up",
        "prefill",
        "fill",
        "decode",
        "sampling ends",
        "parts",
        f"ballast {6000 * MIB} ends",
    ]
    record = report.to_json()
    assert (record["peak_mb"], record["decode_tok_s"], record["host_ms"]) == (5900, 125, 1)
    assert record["prefill_tok_s"] == 1024

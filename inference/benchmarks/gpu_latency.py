"""``python -m inference bench latency --device cuda``: tokens per second under a memory limit.

Owns the order of a measurement (link, ballast, load, prefill, decode, parts), the physical floor
beside the figures, and the table. The last line is JSON. Knows nothing of kernels.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from inference.benchmarks.ballast import Ballast
from inference.benchmarks.gpu_figures import (
    DecodeFigures,
    PartFigures,
    Workload,
    fill_context,
    measure_decode,
    measure_parts,
    measure_prefill,
)
from inference.benchmarks.link import LinkSpeed, measure_link
from inference.benchmarks.memory_sampler import MemoryPeak, MemorySampler, used_bytes
from inference.config import MIB, EngineConfig
from inference.geometry import ModelGeometry
from inference.memory_plan import MemoryPlan

if TYPE_CHECKING:
    from inference.engine.gpu_runner import GpuModelRunner

logger = logging.getLogger(__name__)

Prefetch = Literal["on", "off", "both"]
Build = Callable[[EngineConfig], "GpuModelRunner"]


@dataclass(frozen=True)
class Floor:
    """Least milliseconds of one step: bytes over measured speeds.

    ``overlapped_ms`` lets link and memory work at the same time, ``serial_ms`` one after another.
    """

    memory_bytes: float
    link_bytes: float
    memory_ms: float
    link_ms: float

    @property
    def overlapped_ms(self) -> float:
        """No step can be faster."""
        return max(self.memory_ms, self.link_ms)

    @property
    def serial_ms(self) -> float:
        """No step that reads every miss when it needs it can be faster."""
        return self.memory_ms + self.link_ms


def floor_of(
    geometry: ModelGeometry,
    plan: MemoryPlan,
    config: EngineConfig,
    speed: LinkSpeed,
    *,
    batch: int,
    context: int,
    hits: float,
    misses: float,
) -> Floor:
    """The floor of a step with ``hits`` and ``misses`` experts over all layers."""
    kv = batch * context * geometry.kv_bytes_per_token(config.kv_cache_dtype)
    state = 2 * batch * geometry.state_bytes
    memory = plan.backbone_bytes + plan.head_bytes + kv + state + hits * geometry.expert_bytes
    link = misses * geometry.expert_bytes
    return Floor(memory, link, memory / speed.memory_gb_s / 1e6, link / speed.link_gb_s / 1e6)


@dataclass(frozen=True)
class GpuLatencyReport:
    """Everything measured with one setting of the prefetch."""

    model: str
    config: EngineConfig
    plan: MemoryPlan
    workload: Workload
    speed: LinkSpeed
    prefetch: bool
    load_s: float
    warm_up_s: float
    prefill_s: dict[int, float]
    decode: DecodeFigures
    parts: PartFigures
    floor: Floor
    peak: MemoryPeak | None
    ballast_bytes: int

    @property
    def decode_tok_s(self) -> float:
        """Tokens a second of all rows of the batch, the host included."""
        return 1e3 * self.workload.batch / self.decode.step_ms

    def to_json(self) -> dict[str, Any]:
        """The flat record of the last line."""
        counters, steps = self.decode.counters, self.decode.steps
        largest = max(self.prefill_s)
        record: dict[str, Any] = {
            "decode_tok_s": self.decode_tok_s,
            "prefill_tok_s": largest / self.prefill_s[largest],
            "hit_rate": self.decode.hit_rate,
            "peak_mb": None if self.peak is None else self.peak.peak_bytes / MIB,
            "link_gb_s": self.speed.link_gb_s,
            "floor_ms": self.floor.overlapped_ms,
            "backbone_ms": self.parts.backbone_ms,
            "moe_ms": self.parts.moe_ms,
            "decode_ms": self.decode.step_ms,
            "decode_median_ms": self.decode.median_ms,
            "decode_slowest_ms": self.decode.slowest_ms,
            "decode_cold_ms": self.decode.cold_ms,
            "loop_ms": self.parts.loop_ms,
            "host_ms": self.decode.step_ms - self.parts.loop_ms,
            "stall_ms": counters.stall_ns / steps / 1e6,
            "floor_serial_ms": self.floor.serial_ms,
            "memory_gb_s": self.speed.memory_gb_s,
            "misses_per_step": self.decode.fetched / steps,
            "hit_rate_with_prefetch": counters.hit_rate,
            "link_mb_per_step": counters.bytes_read / steps / 1e6,
            "prefetch": self.prefetch,
            "early_launch": self.config.early_launch,
            "prefetch_useful": counters.prefetch_useful,
            "prefetch_wasted": counters.prefetch_wasted,
            "late": counters.late,
            "prediction_accuracy": counters.prediction_accuracy,
            "recall_on_misses": counters.recall_on_misses,
            "load_s": self.load_s,
            "warm_up_s": self.warm_up_s,
            "model": self.model,
            "device": self.speed.device,
            "routing": str(self.decode.routing),
            "batch": self.workload.batch,
            "context": self.workload.context,
            "new_tokens": self.workload.new_tokens,
            "gpu_memory_limit_mb": self.plan.gpu_memory_limit / MIB,
            "backbone_dtype": self.config.backbone_dtype,
            "lm_head_dtype": self.config.lm_head_dtype,
            "kv_cache_dtype": self.config.kv_cache_dtype,
            "slots_per_layer": min(self.plan.slots_per_layer),
            "num_slots": self.plan.num_slots,
            "samples_per_s": None if self.peak is None else self.peak.samples_per_s,
        }
        for size, seconds in self.prefill_s.items():
            record[f"prefill_{size}_tok_s"] = size / seconds
        return {key: _rounded(value) for key, value in record.items()}


def run(
    build: Build,
    model: str,
    config: EngineConfig,
    workload: Workload,
    *,
    prompt: Sequence[int] | None = None,
    prefetch: Prefetch = "off",
    capped: bool = True,
) -> list[GpuLatencyReport]:
    """Measure once, or with the prefetch off and on; the faster one comes last.

    ``capped`` fills the card but for the limit and samples the memory; only on a GPU. ``prompt``
    are token ids, repeated as needed; default: all ids in turn. Raises ``DeviceError``, and
    ``MeasurementError`` when link, ballast or sampler do not work.
    """
    speed = measure_link("cuda" if capped else "cpu")
    modes = {"on": (True,), "off": (False,), "both": (False, True)}[prefetch]
    with ExitStack() as stack:
        ballast = stack.enter_context(Ballast(config.gpu_memory_limit)) if capped else None
        sampled = ExitStack()
        sampler = None
        if capped:
            sampler = MemorySampler(os.getpid(), baseline_bytes=used_bytes())
            stack.enter_context(sampled)
            sampled.enter_context(sampler)
        start = time.perf_counter()
        runner = build(replace(config, expert_prefetch=modes[0]))
        loaded = time.perf_counter()
        runner.warm_up()
        warm = time.perf_counter()
        ids = prompt_ids(prompt, runner.vocab_size, workload.context)
        prefill_s = measure_prefill(
            runner, ids, [size for size in workload.prompt_sizes if size < workload.context]
        )
        slots, tokens = fill_context(runner, ids, workload)
        decodes: list[DecodeFigures] = []
        for mode in modes:
            if mode != modes[0]:
                runner.set_prefetch(mode)
            decodes.append(measure_decode(runner, slots, tokens, workload, cold=mode == modes[0]))
        sampled.close()  # the graphs of single parts below are no part of an engine
        parts: list[PartFigures] = []
        for mode in modes:
            if len(modes) > 1:
                runner.set_prefetch(mode)
            parts.append(measure_parts(runner, slots, tokens, workload))
        reports = [
            GpuLatencyReport(
                model=model,
                config=config,
                plan=runner.plan,
                workload=workload,
                speed=speed,
                prefetch=mode,
                load_s=loaded - start,
                warm_up_s=warm - loaded,
                prefill_s=prefill_s,
                decode=decode,
                parts=part,
                floor=_floor(runner, config, speed, workload, decode),
                peak=sampler.peak if sampler is not None else None,
                ballast_bytes=ballast.held_bytes if ballast is not None else 0,
            )
            for mode, decode, part in zip(modes, decodes, parts, strict=True)
        ]
    return sorted(reports, key=lambda report: report.decode_tok_s)


def _floor(
    runner: GpuModelRunner,
    config: EngineConfig,
    speed: LinkSpeed,
    workload: Workload,
    decode: DecodeFigures,
) -> Floor:
    counters = decode.counters
    return floor_of(
        runner.geometry,
        runner.plan,
        config,
        speed,
        batch=workload.batch,
        context=workload.context - workload.new_tokens // 2,
        hits=(counters.hits + counters.misses - decode.fetched) / decode.steps,
        misses=decode.fetched / decode.steps,
    )


def prompt_ids(ids: Sequence[int] | None, vocab_size: int, num_tokens: int) -> list[int]:
    """``num_tokens`` token ids: ``ids`` again and again, or all ids of the vocabulary."""
    if not ids:
        # A step that shares no factor with a vocabulary visits every id before it repeats.
        return [index * 7919 % vocab_size for index in range(num_tokens)]
    return [ids[index % len(ids)] for index in range(num_tokens)]


def _rounded(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def print_reports(reports: Sequence[GpuLatencyReport]) -> None:
    """A table for each setting of the prefetch, the faster one last, then one line of JSON."""
    for report in reports:
        for label, value in _rows(report):
            print(f"{label:<44}{value:>34}")
        print()
    last = reports[-1].to_json()
    if len(reports) > 1:
        last["slower"] = reports[0].to_json()
    print(json.dumps(last))


def _rows(report: GpuLatencyReport) -> list[tuple[str, str]]:
    record, plan, decode = report.to_json(), report.plan, report.decode
    floor, counters = report.floor, report.decode.counters
    rows = [
        ("model", report.model),
        ("device", report.speed.device),
        ("link, pinned host to device", f"{report.speed.link_gb_s:.1f} GB/s"),
        ("device memory, read + written", f"{report.speed.memory_gb_s:.0f} GB/s"),
        ("gpu_memory_limit", f"{plan.gpu_memory_limit / MIB:,.0f} MiB"),
    ]
    if report.peak is not None:
        rows += [
            ("peak, load to decode", f"{record['peak_mb']:,.0f} MiB"),
            ("  read", f"{report.peak.samples_per_s:.0f}/s, {report.peak.source}"),
            ("  held by the ballast", f"{report.ballast_bytes / MIB:,.0f} MiB"),
        ]
    rows += [
        (
            "backbone, head, KV",
            f"{record['backbone_dtype']}, {record['lm_head_dtype']}, {record['kv_cache_dtype']}",
        ),
        ("expert slots", f"{min(plan.slots_per_layer)} a layer, {plan.num_slots} in all"),
        ("batch, context", f"{report.workload.batch}, {report.workload.context} tokens"),
        ("routing", str(decode.routing)),
        ("prefetch", "on" if report.prefetch else "off"),
        ("load; warm-up", f"{report.load_s:.1f} s; {report.warm_up_s:.1f} s"),
    ]
    rows += [
        (f"prefill, {size} tokens", f"{size / seconds:,.0f} tok/s, {1e3 * seconds:.0f} ms")
        for size, seconds in report.prefill_s.items()
    ]
    rows += [
        ("decode, warm", f"{record['decode_tok_s']:.1f} tok/s, {decode.step_ms:.2f} ms a step"),
        ("  median; slowest step", f"{decode.median_ms:.2f}; {decode.slowest_ms:.2f} ms"),
        (
            "  cold, first steps",
            "not measured" if decode.cold_ms is None else f"{decode.cold_ms:.2f} ms",
        ),
        ("  floor, link and memory together", f"{floor.overlapped_ms:.2f} ms"),
        ("  floor, one after another", f"{floor.serial_ms:.2f} ms"),
        ("    memory", f"{floor.memory_bytes / 1e6:,.0f} MB, {floor.memory_ms:.2f} ms"),
        ("    link", f"{floor.link_bytes / 1e6:,.0f} MB, {floor.link_ms:.2f} ms"),
        ("hit rate", f"{decode.hit_rate:.3f}, {record['misses_per_step']:.1f} misses a step"),
        ("read over the link", f"{record['link_mb_per_step']:,.1f} MB a step"),
        ("where a step goes: without the host", f"{report.parts.loop_ms:.2f} ms"),
        ("  backbone", f"{report.parts.backbone_ms:.2f} ms"),
        ("  experts and router", f"{report.parts.moe_ms:.2f} ms"),
        ("  of it waiting for misses", f"{record['stall_ms']:.2f} ms"),
        ("  host", f"{record['host_ms']:.2f} ms"),
    ]
    if counters.predicted_total:
        rows += [
            ("prediction, right of all", f"{counters.prediction_accuracy:.3f}"),
            ("prediction, right of misses", f"{counters.recall_on_misses:.3f}"),
            (
                "prefetched: useful; wasted; late",
                f"{counters.prefetch_useful}; {counters.prefetch_wasted}; {counters.late}",
            ),
        ]
    return rows

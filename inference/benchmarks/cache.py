"""``python -m inference bench cache``: hit rate against the number of expert slots.

Owns the traces (generated, or recorded from a model), their simulation at every slot count, the
check of the simulation against the device's own counters, and the table. The last line is JSON.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from inference.benchmarks.gpu_figures import (
    Workload,
    choose_routing,
    fill_context,
    greedy_token,
)
from inference.benchmarks.gpu_latency import Build, prompt_ids
from inference.benchmarks.routing import (
    DEVICE_DECAY,
    RoutedShape,
    Routing,
    Table,
    generate,
    simulate,
)
from inference.config import EngineConfig
from inference.geometry import ModelGeometry

if TYPE_CHECKING:
    from inference.engine.gpu_runner import GpuModelRunner
    from inference.moe.router_counters import RouterCounters

GENERATED = ("generated:skew=0.3", "generated:skew=0.6,reuse=0.3", "generated:skew=1,reuse=0.6")
"""Routings simulated by default: nearly even, moderate, and very predictable."""


@dataclass(frozen=True)
class CacheRow:
    """Hit rates at one number of slots a layer, by routing."""

    slots: int
    hit_rates: dict[str, float]


@dataclass(frozen=True)
class PrefetchFigures:
    """What the device counted with the prefetch on, at the plan's slots."""

    routing: str
    slots: int
    hit_rate: float
    simulated_hit_rate: float
    recall_on_misses: float
    prediction_accuracy: float
    useful_bytes: int
    wasted_bytes: int
    late: int

    @classmethod
    def of(
        cls, routing: str, slots: int, counters: RouterCounters, blob_bytes: int, simulated: float
    ) -> PrefetchFigures:
        """From the counters of a run; ``hit_rate`` leaves prefetched experts out."""
        total = counters.hits + counters.misses
        fetched = counters.misses + counters.prefetch_useful
        return cls(
            routing=routing,
            slots=slots,
            hit_rate=1.0 - fetched / total if total else 1.0,
            simulated_hit_rate=simulated,
            recall_on_misses=counters.recall_on_misses,
            prediction_accuracy=counters.prediction_accuracy,
            useful_bytes=counters.prefetch_useful * blob_bytes,
            wasted_bytes=counters.prefetch_wasted * blob_bytes,
            late=counters.late,
        )


@dataclass(frozen=True)
class CacheReport:
    """Rows by slots, and figures of the device where there was one."""

    model: str
    num_experts: int
    num_experts_per_tok: int
    rows: list[CacheRow]
    prefetch: list[PrefetchFigures]


def slot_counts(num_experts: int, top_k: int) -> list[int]:
    """Slots a layer from ``top_k`` to all experts, in a dozen steps that grow."""
    counts = {top_k, num_experts}
    count = float(top_k)
    while count < num_experts:
        counts.add(round(count))
        count *= (num_experts / top_k) ** (1 / 11)
    return sorted(counts)


def run_generated(
    geometry: ModelGeometry,
    model: str,
    *,
    routings: Sequence[str] = GENERATED,
    counts: Sequence[int] = (),
    batch: int = 1,
    steps: int = 384,
) -> CacheReport:
    """Simulate generated routings; needs no GPU and no model. Raises ``ValueError``."""
    shape = _shape(geometry, batch)
    counts = counts or slot_counts(shape.num_experts, shape.num_experts_per_tok)
    tables = {text: generate(_fixed(text), shape, steps) for text in routings}
    return CacheReport(
        model=model,
        num_experts=shape.num_experts,
        num_experts_per_tok=shape.num_experts_per_tok,
        rows=_rows(tables, counts, shape, warm_up=steps // 3),
        prefetch=[],
    )


def run_gpu(
    build: Build,
    model: str,
    config: EngineConfig,
    workload: Workload,
    *,
    routings: Sequence[str],
    counts: Sequence[int] = (),
    prompt: Sequence[int] | None = None,
) -> CacheReport:
    """Record each routing from the engine with the prefetch on, and simulate other slot counts."""
    runner = build(replace(config, expert_prefetch=True))
    runner.warm_up()
    ids = prompt_ids(prompt, runner.vocab_size, workload.context)
    slots, tokens = fill_context(runner, ids, workload)
    geometry = runner.geometry
    shape = _shape(geometry, workload.batch)
    counts = counts or slot_counts(shape.num_experts, shape.num_experts_per_tok)
    tables: dict[str, Table] = {}
    figures = []
    for text in routings:
        used = choose_routing(runner, replace(workload, routing=Routing.parse(text)))
        table, counters = record(runner, slots, tokens, workload)
        simulated = simulate(
            table,
            runner.plan.slots_per_layer,
            shape.num_experts,
            decay=DEVICE_DECAY,
            warm_up=workload.warm_up_tokens,
        ).hit_rate
        tables[str(used)] = table
        figures.append(
            PrefetchFigures.of(
                str(used),
                min(runner.plan.slots_per_layer),
                counters,
                geometry.expert_bytes,
                simulated,
            )
        )
    return CacheReport(
        model=model,
        num_experts=shape.num_experts,
        num_experts_per_tok=shape.num_experts_per_tok,
        rows=_rows(tables, counts, shape, warm_up=workload.warm_up_tokens),
        prefetch=figures,
    )


def record(
    runner: GpuModelRunner, slots: Sequence[int], tokens: list[int], workload: Workload
) -> tuple[Table, RouterCounters]:
    """Decode and note which experts each step used; the counters of the steps after warm-up.

    A step's experts are read from the growth of the device's use counts. Rows of the table are
    filled up by repeating an expert.
    """
    runner.slots.reset_counters()
    width = workload.batch * runner.geometry.num_experts_per_tok
    before = runner.slots.counters().uses.clone()
    steps = []
    for step in range(workload.warm_up_tokens + workload.new_tokens):
        if step == workload.warm_up_tokens:
            runner.slots.reset_counters()
            before = torch.zeros_like(before)
        position = workload.prompt_tokens + step
        rows = runner.decode(tokens, slots, [position] * len(slots))
        tokens = [greedy_token(row) for row in rows]
        uses = runner.slots.counters().uses.clone()
        steps.append(_filled((uses - before).numpy() > 0, width))
        before = uses
    return np.stack(steps), runner.slots.counters()


def run_cpu(
    model_dir: Path | None,
    *,
    counts: Sequence[int] = (),
    new_tokens: int = 128,
    prompt_tokens: int = 300,
) -> CacheReport:
    """The CPU engine on ``model_dir``, or a random model, once for each number of slots."""
    from inference.benchmarks.random_model import write_random_model

    if model_dir is None:
        with tempfile.TemporaryDirectory(prefix="random-moe-") as folder:
            return _run_cpu(
                write_random_model(Path(folder)), "random", counts, new_tokens, prompt_tokens
            )
    return _run_cpu(model_dir, model_dir.name, counts, new_tokens, prompt_tokens)


def _run_cpu(
    model_dir: Path, name: str, counts: Sequence[int], new_tokens: int, prompt_tokens: int
) -> CacheReport:
    from inference.benchmarks.latency import TOOL, system_message
    from inference.llm import LLM
    from inference.protocol import Message
    from inference.sampling_params import SamplingParams

    geometry = ModelGeometry.of_folder(model_dir)
    counts = counts or slot_counts(geometry.num_experts, geometry.num_experts_per_tok)
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens)
    rows = []
    for count in counts:
        with LLM(model_dir, max_num_seqs=1, expert_cache_slots=count) as llm:
            text = system_message(llm, "", prompt_tokens)
            for question in ("一", "二，华北呢？", "三"):
                llm.chat([text, Message("user", question)], (TOOL,), params)
            rows.append(CacheRow(count, {"own": llm.stats.expert_cache.hit_rate}))
    return CacheReport(name, geometry.num_experts, geometry.num_experts_per_tok, rows, [])


def _shape(geometry: ModelGeometry, batch: int) -> RoutedShape:
    return RoutedShape(
        len(geometry.routed_layers), geometry.num_experts, geometry.num_experts_per_tok, batch
    )


def _fixed(text: str) -> Routing:
    routing = Routing.parse(text)
    if routing.own or routing.wanted_hit_rate is not None:
        raise ValueError(f"{text!r}: without a model, give skew and reuse")
    return routing


def _rows(
    tables: dict[str, Table], counts: Sequence[int], shape: RoutedShape, *, warm_up: int
) -> list[CacheRow]:
    rows = []
    for count in counts:
        if not shape.num_experts_per_tok <= count <= shape.num_experts:
            raise ValueError(
                f"{count} slots a layer: from {shape.num_experts_per_tok} to {shape.num_experts}"
            )
        slots = [count] * shape.num_layers
        rates = {
            text: simulate(
                table, slots, shape.num_experts, decay=DEVICE_DECAY, warm_up=warm_up
            ).hit_rate
            for text, table in tables.items()
        }
        rows.append(CacheRow(count, rates))
    return rows


def _filled(used: Any, width: int) -> Any:
    """Expert ids int32 [layers, width] of the marks ``used`` [layers, experts]."""
    table = np.empty((len(used), width), dtype=np.int32)
    for layer, marks in enumerate(used):
        ids = np.flatnonzero(marks)
        assert len(ids), "a step used no expert"
        table[layer] = np.resize(ids, width)
    return table


def print_report(report: CacheReport) -> None:
    """The table of hit rates, the device's figures, then one line of JSON."""
    names = list(report.rows[0].hit_rates)
    print(f"{report.model}: {report.num_experts_per_tok} of {report.num_experts} experts a token")
    for number, name in enumerate(names):
        print(f"  {chr(ord('A') + number)} = {name}")
    print("slots a layer" + "".join(f"{chr(ord('A') + n):>10}" for n in range(len(names))))
    for row in report.rows:
        share = f"{row.slots} ({row.slots / report.num_experts:.0%})"
        print(f"{share:<13}" + "".join(f"{row.hit_rates[name]:>10.3f}" for name in names))
    for figures in report.prefetch:
        print(
            f"{figures.routing}, {figures.slots} slots: hit rate {figures.hit_rate:.3f} measured, "
            f"{figures.simulated_hit_rate:.3f} simulated; prediction right "
            f"{figures.prediction_accuracy:.3f}, of misses {figures.recall_on_misses:.3f}; "
            f"prefetched {figures.useful_bytes / 1e6:.1f} MB useful, "
            f"{figures.wasted_bytes / 1e6:.1f} MB wasted, {figures.late} late"
        )
    print(
        json.dumps(
            {
                "model": report.model,
                "slots": [row.slots for row in report.rows],
                "hit_rates": {
                    name: [round(row.hit_rates[name], 4) for row in report.rows] for name in names
                },
                "prefetch": [vars(figures) for figures in report.prefetch],
            }
        )
    )

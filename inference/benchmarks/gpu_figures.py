"""Times of one GPU runner: prefill, decode cold and warm, and where the time of a step goes.

Owns the loops and the clocks around them. Knows nothing of where the runner comes from, of memory
caps or of printing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from inference.benchmarks.routing import (
    DEVICE_DECAY,
    ROUTER,
    RoutedShape,
    Routing,
    calibrate,
    generate,
    predictions,
)

if TYPE_CHECKING:
    from inference.engine.gpu_runner import GpuModelRunner
    from inference.engine.logits import Logits
    from inference.moe.router_counters import RouterCounters

_COLD_TOKENS = 32
_PREFILL_REPEATS = 3
_MAX_TABLE_STEPS = 2048


@dataclass(frozen=True)
class Workload:
    """What is measured. ``context`` counts prompt and new tokens of one sequence."""

    context: int = 8192
    new_tokens: int = 256
    warm_up_tokens: int = 128
    part_steps: int = 64
    batch: int = 1
    prompt_sizes: tuple[int, ...] = (512, 2048)
    routing: Routing = ROUTER

    def __post_init__(self) -> None:
        least = self.warm_up_tokens + self.new_tokens + 2
        if min(self.new_tokens, self.batch) < 1 or self.warm_up_tokens < 1:
            raise ValueError("new tokens, warm-up tokens and batch must be at least 1")
        if self.context < least:
            raise ValueError(f"a context of {self.context} tokens is too short; use >= {least}")

    @property
    def prompt_tokens(self) -> int:
        """Tokens in front of the first decode step, so that the last one fills the context."""
        return self.context - self.warm_up_tokens - self.new_tokens - 1


@dataclass(frozen=True)
class DecodeFigures:
    """Times of one step in milliseconds, all rows of the batch together."""

    step_ms: float
    median_ms: float
    slowest_ms: float
    cold_ms: float | None
    """The first steps; ``None`` when the slots were filled by an earlier run."""
    counters: RouterCounters
    steps: int
    routing: Routing

    @property
    def fetched(self) -> int:
        """Experts used that were in no slot before this step: misses, and useful prefetches."""
        return self.counters.misses + self.counters.prefetch_useful

    @property
    def hit_rate(self) -> float:
        """Share of experts used that lay in a slot before this step, prefetched ones not."""
        total = self.counters.hits + self.counters.misses
        return 1.0 - self.fetched / total if total else 1.0


@dataclass(frozen=True)
class PartFigures:
    """Milliseconds of one step without the host between steps: all of it, and its parts.

    ``moe_ms`` is measured by itself where the choices are given, else all less the backbone.
    """

    loop_ms: float
    backbone_ms: float
    moe_ms: float


def measure_prefill(
    runner: GpuModelRunner, prompt: Sequence[int], sizes: Sequence[int]
) -> dict[int, float]:
    """Seconds from tokens to candidates of each prompt size, the median of some runs."""
    seconds = {}
    for size in sizes:
        runs = []
        for _ in range(_PREFILL_REPEATS):
            slot = runner.kv_cache.allocate()
            start = time.perf_counter()
            runner.prefill(prompt[:size], slot, 0)
            runs.append(time.perf_counter() - start)
            runner.kv_cache.free(slot)
        seconds[size] = statistics.median(runs)
    return seconds


def choose_routing(runner: GpuModelRunner, workload: Workload) -> Routing:
    """Put generated choices in place of the router's, as ``workload`` says; returns them."""
    if workload.routing.own:
        runner.slots.routing_override(None)
        return workload.routing
    geometry = runner.geometry
    shape = RoutedShape(
        num_layers=len(geometry.routed_layers),
        num_experts=geometry.num_experts,
        num_experts_per_tok=geometry.num_experts_per_tok,
        batch=workload.batch,
    )
    routing = calibrate(workload.routing, shape, runner.plan.slots_per_layer, decay=DEVICE_DECAY)
    padded = replace(shape, batch=runner.slots.max_batch)
    steps = min(_MAX_TABLE_STEPS, workload.warm_up_tokens + workload.new_tokens)
    table = generate(routing, padded, steps)
    guesses = predictions(routing, padded, table)
    device = runner.slots.library.device
    runner.slots.routing_override(
        torch.from_numpy(table).to(device), torch.from_numpy(guesses).to(device)
    )
    return routing


def fill_context(
    runner: GpuModelRunner, prompt: Sequence[int], workload: Workload
) -> tuple[list[int], list[int]]:
    """Prefill every sequence of the batch; returns their slots and first new tokens."""
    slots, tokens = [], []
    for row in range(workload.batch):
        # Rows differ by one token in front, so that no two compute the same.
        ids = [*prompt[row : row + 1], *prompt[: workload.prompt_tokens - 1]]
        slot = runner.kv_cache.allocate()
        tokens.append(greedy_token(runner.prefill(ids, slot, 0)))
        slots.append(slot)
    return slots, tokens


def measure_decode(
    runner: GpuModelRunner,
    slots: Sequence[int],
    tokens: list[int],
    workload: Workload,
    *,
    cold: bool = True,
) -> DecodeFigures:
    """Decode as the engine does: one call a step, the greedy token chosen on the host."""
    routing = choose_routing(runner, workload)
    runner.slots.reset_counters()
    cold_steps = min(_COLD_TOKENS, workload.warm_up_tokens)
    position = workload.prompt_tokens

    def steps(count: int) -> list[float]:
        nonlocal tokens, position
        times = []
        for _ in range(count):
            start = time.perf_counter()
            rows = runner.decode(tokens, slots, [position] * len(slots))
            tokens = [greedy_token(row) for row in rows]
            times.append(1e3 * (time.perf_counter() - start))
            position += 1
        return times

    first = steps(cold_steps)
    steps(workload.warm_up_tokens - cold_steps)
    runner.slots.reset_counters()
    warm = steps(workload.new_tokens)
    return DecodeFigures(
        step_ms=statistics.fmean(warm),
        median_ms=statistics.median(warm),
        slowest_ms=max(warm),
        cold_ms=statistics.fmean(first) if cold else None,
        counters=runner.slots.counters(),
        steps=workload.new_tokens,
        routing=routing,
    )


def measure_parts(
    runner: GpuModelRunner, slots: Sequence[int], tokens: Sequence[int], workload: Workload
) -> PartFigures:
    """Times of a step and of its parts, steps launched without waiting for each other."""
    count = min(workload.part_steps, workload.new_tokens)
    positions = [workload.prompt_tokens] * len(slots)

    def milliseconds(parts: str) -> float:
        runner.capture(parts, loop=True)  # type: ignore[arg-type]
        best = float("inf")
        for _ in range(2):
            start = time.perf_counter()
            runner.decode_loop(tokens, slots, positions, count, parts=parts)  # type: ignore[arg-type]
            best = min(best, time.perf_counter() - start)
        return 1e3 * best / count

    loop_ms, backbone_ms = milliseconds("all"), milliseconds("backbone")
    moe_ms = loop_ms - backbone_ms if workload.routing.own else milliseconds("moe")
    return PartFigures(loop_ms, backbone_ms, max(0.0, moe_ms))


def greedy_token(logits: Logits) -> int:
    """The best token of a row that came with candidates."""
    candidates = logits.candidates
    assert candidates is not None
    return int(candidates.ids[0])

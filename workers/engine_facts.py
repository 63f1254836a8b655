"""What a turn worker tells of its engine at every heartbeat.

Owns the names of the facts (``app.exposition.ENGINE_GAUGES`` and the engine tab of the admin page
read them), the rates between two beats and the binning of the heat map. A fact that cannot be
known on this device is left out. Knows nothing of Redis.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from app.log import fields
from inference.llm import EngineStats
from inference.memory_plan import MemoryPlan
from inference.moe.router_counters import RouterCounters

log = logging.getLogger(__name__)

MOST_ROWS = 40
MOST_COLUMNS = 32


def gpu_memory_bytes(plan: MemoryPlan) -> int:
    """What this process holds on the GPU: torch's allocator, and what the plan measured or
    assumed for the CUDA context."""
    return torch.cuda.memory_reserved() + plan.context_bytes


class EngineFacts:
    """The facts of one engine; not thread-safe, the heartbeat's thread is the only caller.

    ``read`` gives the engine's counters, ``gpu_bytes`` what the process holds on the GPU.
    """

    def __init__(
        self,
        model: str,
        read: Callable[[], EngineStats],
        gpu_bytes: Callable[[MemoryPlan], int] = gpu_memory_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._read = read
        self._gpu_bytes = gpu_bytes
        self._clock = clock
        self._before: tuple[float, int, int] | None = None

    def __call__(self) -> dict[str, Any]:
        """JSON values. Never raises: a heartbeat must not end with the GPU."""
        facts: dict[str, Any] = {"model": self._model}
        try:
            stats = self._read()
            facts |= _counters(stats)
            facts |= self._rates(stats)
            if stats.router is not None:
                facts |= _router(stats.router)
            if stats.memory_plan is not None:
                facts |= _memory(stats.memory_plan)
                facts["gpu_memory_bytes"] = self._gpu_bytes(stats.memory_plan)
        except RuntimeError as error:  # what torch raises for anything wrong with the device
            log.warning("engine facts not read", extra=fields(error=type(error).__name__))
        return facts

    def _rates(self, stats: EngineStats) -> dict[str, float]:
        """Tokens a second since the beat before."""
        now_s = self._clock()
        before, after = self._before, (now_s, stats.num_prefill_tokens, stats.num_decode_tokens)
        self._before = after
        if before is None or now_s <= before[0]:
            return {}
        seconds = now_s - before[0]
        return {
            "prefill_tokens_per_s": round((after[1] - before[1]) / seconds, 1),
            "decode_tokens_per_s": round((after[2] - before[2]) / seconds, 1),
        }


def _counters(stats: EngineStats) -> dict[str, Any]:
    cache, prefix = stats.expert_cache, stats.prefix_cache
    facts: dict[str, Any] = {
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "prefill_tokens": stats.num_prefill_tokens,
        "decode_tokens": stats.num_decode_tokens,
        "expert_hits": cache.hits,
        "expert_misses": cache.misses,
        "expert_hit_rate": round(cache.hit_rate, 4),
    }
    if prefix.tokens_asked:
        facts["prefix_hit_rate"] = round(prefix.tokens_reused / prefix.tokens_asked, 4)
    return facts


def _router(router: RouterCounters) -> dict[str, Any]:
    """What only the device counts; the recall is no figure before the first prediction."""
    facts: dict[str, Any] = {"stall_s": round(router.stall_ns / 1e9, 3)}
    if router.misses_with_prediction:
        facts["expert_recall_on_misses"] = round(router.recall_on_misses, 4)
    busy_ns = router.hit_ns + router.miss_ns
    if busy_ns:
        facts["stall_share"] = round(router.stall_ns / busy_ns, 4)
    uses = router.uses.tolist()
    facts["activation"] = {
        "layers": len(uses),
        "experts": len(uses[0]) if uses else 0,
        "loads": binned_loads(uses),
    }
    return facts


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    """The plan's parts; they add up to the limit."""
    parts = (
        ("CUDA 上下文和内核", plan.context_bytes),
        ("骨干权重", plan.backbone_bytes),
        ("输出层", plan.head_bytes),
        ("KV 缓存", plan.kv_bytes),
        ("循环状态", plan.state_bytes),
        ("工作区", plan.workspace_bytes),
        (f"专家槽位（{plan.num_slots} 个）", plan.slot_bytes),
        ("留空", plan.free_bytes),
    )
    return {
        "expert_slots": plan.num_slots,
        "memory_plan": [[name, size] for name, size in parts if size],
    }


def binned_loads(uses: Sequence[Sequence[int]]) -> list[list[float]]:
    """Uses ``[layers][experts]`` as loads, 1.0 being an even share of the layer, binned to at most
    ``MOST_ROWS`` x ``MOST_COLUMNS`` by the mean."""
    loads = []
    for layer in uses:
        even = sum(layer) / len(layer) if layer else 0.0
        loads.append([use / even if even else 0.0 for use in layer])
    rows = [_columns(row) for row in loads]
    return [
        [round(sum(column) / len(column), 2) for column in zip(*rows[start:end], strict=True)]
        for start, end in _bins(len(rows), MOST_ROWS)
    ]


def _columns(row: Sequence[float]) -> list[float]:
    return [sum(row[start:end]) / (end - start) for start, end in _bins(len(row), MOST_COLUMNS)]


def _bins(length: int, most: int) -> list[tuple[int, int]]:
    """Ends of at most ``most`` bins of nearly equal size."""
    count = min(length, most)
    edges = [index * length // count for index in range(count)] + [length] if count else []
    return list(itertools.pairwise(edges))

"""A memory plan as a table for people: ``python -m inference plan``.

Owns the wording. Knows nothing of how the numbers come about.
"""

from __future__ import annotations

from inference.config import MIB, EngineConfig
from inference.geometry import ModelGeometry
from inference.memory_plan import MemoryPlan


def plan_table(geometry: ModelGeometry, config: EngineConfig, plan: MemoryPlan) -> str:
    """The parts of ``plan`` in MiB, one a line, with what each is for."""
    slots = plan.slots_per_layer
    layers = len(slots)
    rows = [
        ("CUDA context", plan.context_bytes, "driver, kernels"),
        ("backbone", plan.backbone_bytes, f"{config.backbone_dtype}, router fp32"),
        ("head", plan.head_bytes, config.lm_head_dtype),
        (
            "KV page pool",
            plan.kv_bytes,
            f"{plan.num_pages} pages of {plan.page_size} tokens, {config.kv_cache_dtype}",
        ),
        ("recurrent state", plan.state_bytes, f"{config.max_num_seqs} sequences"),
        ("workspace", plan.workspace_bytes, f"prompt chunks of {plan.prefill_chunk_tokens} tokens"),
        *((f"  {name}", size, "") for name, size in plan.workspace if size),
        (
            "expert slots",
            plan.slot_bytes,
            f"{_range(slots)} a layer, {plan.num_slots} of {geometry.num_all_experts} experts "
            f"({plan.num_slots / geometry.num_all_experts:.0%})",
        ),
        ("free", plan.free_bytes, "allocator rounding"),
        ("GPU memory", plan.gpu_memory_limit, "gpu_memory_limit"),
        (
            "pinned host RAM",
            plan.pinned_bytes,
            f"{layers} x {geometry.num_experts} experts, embedding",
        ),
    ]
    lines = [f"{'part':<26}{'MiB':>10}"]
    lines += [f"{name:<26}{_mib(size):>10}   {note}".rstrip() for name, size, note in rows]
    return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"


def _range(slots: tuple[int, ...]) -> str:
    least, most = min(slots), max(slots)
    return str(least) if least == most else f"{least}-{most}"

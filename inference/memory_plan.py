"""What lies where in GPU memory: the plan made before anything is allocated.

Owns the formulas of every part, the number of expert slots that is left, and the refusal of what
does not fit. Knows nothing of CUDA: a plan is made on any machine, and the engine obeys it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from inference.config import MIB, EngineConfig
from inference.errors import MemoryPlanError
from inference.geometry import ModelGeometry, matrix_bytes

CONTEXT_BYTES = 720 * MIB
"""CUDA context, kernels and libraries of one process on a data-centre card (685 with ours and
cuBLAS, the rest for what prefill loads); an engine on a GPU passes what it measured."""
MARGIN_BYTES = 104 * MIB
"""Left free for what no formula counts: rounding of the allocator, fragmentation."""
OUTSIDE_MARGIN_BYTES = 40 * MIB
"""The part of the margin that torch's allocator may not take: it may pass its cap by less than
one segment of 20 MiB, and drivers differ in what they take besides."""
PAGE_SIZE = 64
BATCH_SIZES = (1, 2, 4, 8)
PREFILL_STAGING_EXPERTS = 16
"""Experts in each of the two buffers that prefill streams experts through."""
MAX_CANDIDATES = 64
ATTENTION_SPLITS = 64

_CUBLAS_BYTES = 32 * MIB
_GRAPH_BYTES = 8 * MIB
_LATE_KERNEL_BYTES = 16 * MIB  # variants for shapes that no warm-up ran
_BYTES_PER_PAGE_ENTRY = 256  # 16 bytes of page tables for each 4 KiB of pinned host memory
_OUTSIDE_ALLOCATOR = ("CUDA graphs", "page tables", "late kernels")
_DELTA_CHUNK = 64
_ALLOCATOR_ROUNDING = 1.1


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of GPU memory by part; they add up to ``gpu_memory_limit``."""

    gpu_memory_limit: int
    context_bytes: int
    backbone_bytes: int
    head_bytes: int
    kv_bytes: int
    state_bytes: int
    workspace_bytes: int
    slot_bytes: int
    """All expert slots of all layers."""
    free_bytes: int
    slots_per_layer: tuple[int, ...]
    """Expert slots of each routed layer."""
    num_pages: int
    page_size: int
    prefill_chunk_tokens: int
    prefill_staging_experts: int
    pinned_bytes: int
    """Page-locked host memory: packed experts and the embedding table."""
    workspace: tuple[tuple[str, int], ...]
    """The terms of ``workspace_bytes``."""

    @property
    def allocator_bytes(self) -> int:
        """Most that torch's allocator may take."""
        outside = sum(size for name, size in self.workspace if name in _OUTSIDE_ALLOCATOR)
        return self.gpu_memory_limit - self.context_bytes - outside - OUTSIDE_MARGIN_BYTES

    @property
    def num_slots(self) -> int:
        """Expert slots of all layers."""
        return sum(self.slots_per_layer)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {**asdict(self), "num_slots": self.num_slots, "workspace": dict(self.workspace)}


def plan_memory(
    geometry: ModelGeometry, config: EngineConfig, *, context_bytes: int | None = None
) -> MemoryPlan:
    """Divide ``config.gpu_memory_limit``; all that is left becomes expert slots.

    Every layer gets at least ``num_experts_per_tok`` slots. Raises ``MemoryPlanError`` naming
    the numbers to change; each of them alone makes the plan fit.
    """
    if config.max_num_seqs > BATCH_SIZES[-1]:
        raise MemoryPlanError(
            f"max_num_seqs {config.max_num_seqs} is more than the {BATCH_SIZES[-1]} sequences "
            f"the GPU engine decodes together",
            f"use max_num_seqs <= {BATCH_SIZES[-1]}",
            {"max_num_seqs": BATCH_SIZES[-1]},
        )
    context = CONTEXT_BYTES if context_bytes is None else context_bytes
    parts = _fixed_parts(geometry, config)
    fixed = context + parts.total
    room = config.gpu_memory_limit - fixed - MARGIN_BYTES
    num_slots = min(room // geometry.expert_bytes, geometry.num_all_experts)
    if num_slots < _least_slots(geometry):
        raise _refusal(geometry, config, context)
    slot_bytes = num_slots * geometry.expert_bytes
    return MemoryPlan(
        gpu_memory_limit=config.gpu_memory_limit,
        context_bytes=context,
        backbone_bytes=parts.backbone,
        head_bytes=parts.head,
        kv_bytes=parts.kv,
        state_bytes=parts.state,
        workspace_bytes=sum(size for _, size in parts.workspace),
        slot_bytes=slot_bytes,
        free_bytes=config.gpu_memory_limit - fixed - slot_bytes,
        slots_per_layer=share_slots(
            num_slots,
            len(geometry.routed_layers),
            geometry.num_experts,
            least_each=geometry.num_experts_per_tok,
        ),
        num_pages=_num_pages(config),
        page_size=PAGE_SIZE,
        prefill_chunk_tokens=min(config.prefill_chunk_tokens, config.max_model_len),
        prefill_staging_experts=_staging_experts(geometry),
        pinned_bytes=_pinned_bytes(geometry),
        workspace=parts.workspace,
    )


def share_slots(
    num_slots: int, num_layers: int, num_experts: int, *, least_each: int
) -> tuple[int, ...]:
    """Slots of each layer: ``least_each`` first, then one each in turn.

    In every eighth turn the first two layers, whose choice is least predictable, get one more.
    More slots never mean fewer in any layer.
    """
    shares = [least_each] * num_layers
    left = num_slots - least_each * num_layers
    turn = 0
    while left > 0 and min(shares) < num_experts:
        turn += 1
        order = [*range(num_layers), *(range(min(2, num_layers)) if turn % 8 == 0 else ())]
        for layer in order:
            if left > 0 and shares[layer] < num_experts:
                shares[layer] += 1
                left -= 1
    return tuple(shares)


@dataclass(frozen=True)
class _FixedParts:
    """What a configuration needs besides the context and the expert slots."""

    backbone: int
    head: int
    kv: int
    state: int
    workspace: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        sizes = sum(size for _, size in self.workspace)
        return self.backbone + self.head + self.kv + self.state + sizes


def _fixed_parts(geometry: ModelGeometry, config: EngineConfig) -> _FixedParts:
    return _FixedParts(
        backbone=_backbone_bytes(geometry, config),
        head=matrix_bytes(
            (geometry.head_matrix,), config.lm_head_dtype, group_size=geometry.group_size
        ),
        kv=_num_pages(config) * PAGE_SIZE * geometry.kv_bytes_per_token(config.kv_cache_dtype),
        state=config.max_num_seqs * geometry.state_bytes,
        workspace=_workspace(geometry, config),
    )


def _num_pages(config: EngineConfig) -> int:
    """Pages with which every sequence can grow to the whole context."""
    return config.max_num_seqs * -(-config.max_model_len // PAGE_SIZE)


def _least_slots(geometry: ModelGeometry) -> int:
    return len(geometry.routed_layers) * geometry.num_experts_per_tok


def _backbone_bytes(geometry: ModelGeometry, config: EngineConfig) -> int:
    """Linears in ``backbone_dtype``; routers, norms and convolutions in fp32 and, for prefill
    through the stock classes, small ones again in fp16."""
    linears = matrix_bytes(geometry.backbone_matrices, config.backbone_dtype)
    return linears + 4 * geometry.router_values + 6 * geometry.small_values


def _pinned_bytes(geometry: ModelGeometry) -> int:
    return geometry.num_all_experts * geometry.expert_bytes + geometry.embedding_bytes


def _staging_experts(geometry: ModelGeometry) -> int:
    return min(PREFILL_STAGING_EXPERTS, geometry.num_experts)


def _workspace(geometry: ModelGeometry, config: EngineConfig) -> tuple[tuple[str, int], ...]:
    batch = next(size for size in BATCH_SIZES if size >= config.max_num_seqs)
    graphs = sum(size <= batch for size in BATCH_SIZES)
    largest = max(geometry.backbone_matrices, key=lambda matrix: matrix[0] * matrix[1])
    return (
        ("logits", batch * (5 * geometry.vocab_size + 8 * MAX_CANDIDATES)),
        ("decode buffers", _decode_bytes(geometry, config, batch)),
        ("CUDA graphs", graphs * _GRAPH_BYTES),
        ("page tables", _pinned_bytes(geometry) // _BYTES_PER_PAGE_ENTRY),
        ("late kernels", _LATE_KERNEL_BYTES),
        ("cuBLAS", _CUBLAS_BYTES),
        ("prefill activations", _prefill_bytes(geometry, config)),
        ("prefill experts", 2 * _staging_experts(geometry) * geometry.expert_bytes),
        (
            "prefill dequantisation",
            2 * largest[0] * largest[1] if config.backbone_dtype == "int8" else 0,
        ),
    )


def _decode_bytes(geometry: ModelGeometry, config: EngineConfig, batch: int) -> int:
    """Static buffers of the decode step, the tables of experts, and the rotary table."""
    widest = max(rows for rows, _ in geometry.backbone_matrices)
    used = batch * geometry.num_experts_per_tok + 1
    floats = batch * (4 * geometry.hidden_size + 4 * widest)
    floats += batch * used * (2 * geometry.moe_intermediate_size + geometry.hidden_size)
    floats += batch * geometry.num_heads * ATTENTION_SPLITS * (geometry.head_dim + 2)
    floats += config.max_model_len * geometry.rotary_dim
    return 4 * floats + 64 * geometry.num_all_experts


def _prefill_bytes(geometry: ModelGeometry, config: EngineConfig) -> int:
    """Most bytes alive at once in a prompt chunk: one layer's, and the residual stream.

    Counted from the stock forward in fp16: attention gives keys and values of the whole context
    repeated for every query head and a mask; the delta rule works in fp32 in chunks of 64.
    """
    tokens = min(config.prefill_chunk_tokens, config.max_model_len)
    hidden, context = geometry.hidden_size, config.max_model_len
    queries = geometry.num_heads * geometry.head_dim
    gathered = 12 * geometry.num_kv_heads * geometry.head_dim  # from pages, then contiguous
    attention = tokens * 2 * (6 * queries + 2 * hidden) + context * (gathered + 4 * queries)
    attention += tokens * context * 3
    inner = geometry.moe_intermediate_size
    per_route = 2 * hidden + 6 * inner + 4 * hidden
    experts = tokens * (geometry.num_experts_per_tok * per_route + 4 * geometry.num_experts)
    experts += tokens * 2 * (3 * geometry.shared_intermediate_size + 2 * hidden)
    dense = 0
    if len(geometry.routed_layers) < geometry.num_layers:
        dense = tokens * 6 * geometry.dense_intermediate_size
    delta = 0
    if geometry.linear_attention is not None:
        linear = geometry.linear_attention
        values = linear.num_v_heads * max(linear.head_k_dim, linear.head_v_dim)
        half = 2 * (2 * linear.conv_dim + linear.value_dim + 3 * values)
        full = 4 * (10 * values + 4 * _DELTA_CHUNK * linear.num_v_heads)
        delta = tokens * (half + full)
    residual = tokens * 2 * 4 * hidden
    return int(_ALLOCATOR_ROUNDING * (residual + max(attention, experts, dense, delta)))


def _refusal(geometry: ModelGeometry, config: EngineConfig, context: int) -> MemoryPlanError:
    """The error for ``config``, with every single change that makes it fit.

    Where no single format is small enough, the message names two that are together.
    """

    def needed(**change: Any) -> int:
        parts = _fixed_parts(geometry, replace(config, **change))
        slots = _least_slots(geometry) * geometry.expert_bytes
        return context + parts.total + slots + MARGIN_BYTES

    def fits(name: str, value: int | str) -> bool:
        return needed(**{name: value}) <= config.gpu_memory_limit

    remedies: dict[str, int | str] = {}
    for name, smaller in _SMALLER_DTYPES.items():
        known = ("fp16", *smaller)
        for dtype in known[known.index(getattr(config, name)) + 1 :]:
            if name not in remedies and fits(name, dtype):
                remedies[name] = dtype
    for name, unit in (
        ("max_num_seqs", 1),
        ("max_model_len", PAGE_SIZE),
        ("prefill_chunk_tokens", 64),
    ):
        most = _most_fitting(getattr(config, name), unit, partial(fits, name))
        if most:
            remedies[name] = most
    least_mib = -(-needed() // MIB)
    remedies["gpu_memory_limit"] = least_mib * MIB
    sentence = _sentence(remedies)
    if not any(name in remedies for name in _SMALLER_DTYPES):
        change = {"backbone_dtype": "int8", "lm_head_dtype": "int8"}
        if config.lm_head_dtype == "fp16" and needed(**change) <= config.gpu_memory_limit:
            sentence += " or backbone_dtype int8 together with lm_head_dtype int8"
    asked = (
        f"{config.max_num_seqs} sequences of {config.max_model_len} tokens"
        if config.max_num_seqs > 1
        else f"1 sequence of {config.max_model_len} tokens"
    )
    return MemoryPlanError(
        f"{asked} with backbone_dtype {config.backbone_dtype} need {least_mib:,} MiB of GPU memory "
        f"with {geometry.num_experts_per_tok} expert slots a layer, gpu_memory_limit is "
        f"{config.gpu_memory_limit // MIB:,} MiB",
        f"use {sentence}",
        remedies,
    )


_SMALLER_DTYPES = {
    "backbone_dtype": ("int8",),
    "lm_head_dtype": ("int8", "int4"),
    "kv_cache_dtype": ("fp8",),
}


def _most_fitting(value: int, unit: int, fits: Callable[[int], bool]) -> int:
    """The largest multiple of ``unit`` below ``value`` that fits; 0 for none."""
    low, high = 0, (value - 1) // unit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * unit) else (low, middle - 1)
    return low * unit


def _sentence(remedies: dict[str, int | str]) -> str:
    texts = []
    for name, value in remedies.items():
        if name == "gpu_memory_limit":
            texts.append(f"{name} >= {int(value) // MIB}MiB")
        else:
            texts.append(f"{name} {value}" if isinstance(value, str) else f"{name} <= {value}")
    return " or ".join(texts)

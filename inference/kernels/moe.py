"""Launches of the kernels of the mixture of experts.

Owns grids and the order of arguments; the meaning of each tensor is at ``SlotTables`` and in the
sources. Knows nothing of when a step runs what.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from inference.kernels.library import KernelLibrary
    from inference.kernels.linear import LinearWeight
    from inference.moe.slot_tables import SlotTables

MAX_EXPERTS = 512
MAX_PAIRS = 128
MAX_BATCH = 8
MAX_WORDS = 16
MAX_COPIES = 8
COMBINATION_INTS = MAX_WORDS + 2

_ROUTE, _SELECT, _EXPERTS = "moe_route.cu", "moe_select.cu", "moe_experts.cu"
_FORMATS = {"fp32": 0, "fp16": 1, "int8": 2}


@dataclass(frozen=True)
class SharedExpert:
    """The expert every token goes to, times sigmoid(``gate`` . x).

    ``gate_up`` [2 * size, hidden] has the gate rows first; ``down`` [hidden, size]; both fp32,
    fp16 or int8. ``gate`` fp32 [hidden].
    """

    gate_up: LinearWeight
    down: LinearWeight
    gate: Tensor

    @property
    def size(self) -> int:
        """Its intermediate size."""
        return self.down.columns


@dataclass(frozen=True)
class SelectSettings:
    """What ``moe_select`` is told besides its tables."""

    num_experts_per_tok: int
    normalise: bool
    predict: bool
    width: int
    max_copies: int
    num_sequences: int
    repeats: int
    penalty: float
    temperature: float
    decay: float
    seed: int


def shared_format(weight: LinearWeight) -> int:
    """The number of a format in the kernels. Raises ``ValueError`` for INT4."""
    try:
        return _FORMATS[weight.format]
    except KeyError:
        raise ValueError(f"a shared expert in {weight.format} is not supported") from None


def route(
    library: KernelLibrary,
    tables: SlotTables,
    x: Tensor,
    norm: Tensor | None,
    *,
    eps: float,
    zero_centred: bool,
    router: Tensor,
    shared_gate: Tensor | None,
    next_router: Tensor | None,
) -> None:
    """Logits of the rows of ``x`` fp32 [batch, hidden] after their norm.

    ``router`` and ``next_router`` fp32 [experts, hidden]; ``norm`` fp32 [hidden] or None: the rows
    are taken as they are. Writes ``logits``, ``next_logits``, ``shared_logits``, ``normed`` and
    ``packed``.
    """
    batch, hidden = x.shape
    experts = router.shape[0]
    next_experts = 0 if next_router is None else next_router.shape[0]
    rows = experts + (shared_gate is not None) + next_experts
    library.launch(
        _ROUTE,
        "moe_route",
        grid=(-(-rows // 4), 1, 1),
        block=(256, 1, 1),
        args=[
            x,
            norm,
            router,
            shared_gate,
            next_router,
            tables.normed,
            tables.packed,
            tables.logits,
            tables.shared_logits,
            tables.next_logits,
            batch,
            hidden,
            experts,
            next_experts,
            float(eps),
            int(zero_centred),
        ],
        shared_bytes=4 * hidden,
    )


def select(
    library: KernelLibrary,
    tables: SlotTables,
    index: int,
    positions: Tensor,
    sequence_slots: Tensor | None,
    settings: SelectSettings,
) -> None:
    """Choose the experts of the ``index``-th routed layer, and their slots.

    ``positions`` int32 [batch], negative for padding; ``sequence_slots`` int32 [batch] names the
    sequence of each row, default its number.
    """
    library.launch(
        _SELECT,
        "moe_select",
        grid=(1, 1, 1),
        block=(256, 1, 1),
        args=[
            tables.logits,
            tables.next_logits,
            positions,
            sequence_slots,
            tables.addresses,
            tables.host_layers,
            tables.slot_of,
            tables.expert_of,
            tables.slot_begin,
            ctypes.c_uint64(tables.pool.data_ptr()),
            tables.blob_bytes,
            tables.frequency,
            tables.predicted,
            tables.copies,
            tables.copy_experts,
            tables.copy_counts,
            tables.arrived,
            tables.combinations,
            tables.jobs,
            tables.job_pairs,
            tables.num_jobs,
            tables.topk_ids,
            tables.topk_weights,
            tables.counters,
            tables.uses,
            tables.timer,
            tables.steps,
            tables.overrides,
            index,
            tables.layers[index],
            tables.num_layers,
            positions.shape[0],
            tables.num_experts,
            settings.num_experts_per_tok,
            int(settings.normalise),
            int(settings.predict),
            settings.width,
            settings.max_copies,
            settings.num_sequences,
            settings.repeats,
            ctypes.c_int32(settings.seed & 0x7FFFFFFF),
            float(settings.decay),
            float(settings.temperature),
            float(settings.penalty),
        ],
    )


def gate_up(
    library: KernelLibrary,
    tables: SlotTables,
    index: int,
    positions: Tensor,
    *,
    hidden: int,
    intermediate: int,
    group_size: int,
    num_experts_per_tok: int,
    shared: SharedExpert | None,
    shared_inner: Tensor | None,
    pdl: bool,
) -> None:
    """silu(gate) * up of all jobs of ``tables`` into ``inner``, and of the shared expert.

    ``shared_inner`` fp32 [batch, size]. ``pdl`` must be False when copies were joined.
    """
    batch = positions.shape[0]
    shared_blocks = 0 if shared is None else -(-shared.size // 4)
    # 16-byte units of a blob that moe_down reads; two a thread are copied by these blocks.
    down_units = hidden * (intermediate // 2 + 2 * (intermediate // group_size)) // 16
    side_blocks = max(shared_blocks, min(128, -(-down_units // 256)))
    jobs = min(batch * num_experts_per_tok, tables.num_experts)
    library.launch(
        _EXPERTS,
        "moe_gate_up",
        grid=(side_blocks + jobs * -(-intermediate // 8), 1, 1),
        block=(128, 1, 1),
        args=[
            tables.jobs,
            tables.job_pairs,
            tables.num_jobs,
            tables.arrived[index],
            tables.packed,
            tables.normed,
            positions,
            tables.inner,
            shared_inner,
            None if shared is None else shared.gate_up.weight,
            None if shared is None else shared.gate_up.scales,
            tables.counters,
            tables.timer,
            0 if shared is None else shared_format(shared.gate_up),
            0 if shared is None else shared.size,
            shared_blocks,
            side_blocks,
            tables.blob_bytes,
            batch,
            hidden,
            intermediate,
            group_size,
            num_experts_per_tok,
        ],
        shared_bytes=2 * 2 * 8 * (hidden // group_size),
        pdl=pdl,
    )


def down(
    library: KernelLibrary,
    tables: SlotTables,
    index: int,
    positions: Tensor,
    x: Tensor,
    *,
    intermediate: int,
    group_size: int,
    num_experts_per_tok: int,
    shared: SharedExpert | None,
    shared_inner: Tensor | None,
) -> None:
    """Add the weighted outputs of the jobs' experts, and the shared one's, to ``x``."""
    batch, hidden = x.shape
    library.launch(
        _EXPERTS,
        "moe_down",
        grid=(hidden // 8, 1, 1),
        block=(256 if shared is None else 384, 1, 1),
        args=[
            tables.jobs,
            tables.job_pairs,
            tables.num_jobs,
            tables.arrived[index],
            tables.topk_weights,
            tables.inner,
            shared_inner,
            tables.shared_logits,
            positions,
            None if shared is None else shared.down.weight,
            None if shared is None else shared.down.scales,
            x,
            tables.timer,
            0 if shared is None else shared_format(shared.down),
            0 if shared is None else shared.size,
            tables.blob_bytes,
            batch,
            hidden,
            intermediate,
            group_size,
            num_experts_per_tok,
        ],
        shared_bytes=4 * 8 * batch * (num_experts_per_tok + 1),
    )


def copy_experts(
    library: KernelLibrary,
    *,
    copies: Tensor,
    count: Tensor,
    arrived: Tensor,
    blob_bytes: int,
    blocks: int,
) -> None:
    """Copy ``count`` blobs of ``copies`` int64 [n, 2] = (source, target) and count their bytes."""
    library.launch(
        _EXPERTS,
        "moe_copy",
        grid=(blocks, 1, 1),
        block=(256, 1, 1),
        args=[copies, count, arrived, blob_bytes],
        pdl=False,
    )

"""A bounded number of experts per layer, ready to multiply.

Owns the slots, which expert lies in which, the choice of what is evicted, and the counters.
A slot holds a dequantised expert, or a packed one where that is faster to multiply. Knows nothing
of tokens or routing weights. Not thread-safe: the engine thread is its only user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from inference.checkpoint import int4
from inference.checkpoint.format import PROJECTIONS, ExpertShape
from inference.moe.expert_store import ExpertStore, PackedExpert
from inference.moe.packed_matrix import PackedMatrix, is_supported

CachePolicy = Literal["lru", "decayed_frequency"]
SlotFormat = Literal["dense", "packed"]
Weight = Tensor | PackedMatrix
# One row times one expert of group 32, one core: 256 x 128 dense 11.7 us, packed 12.2;
# 512 x 256: 62 and 25; 2048 x 512: 1475 and 237. Below the line dense is as fast, and exact.
_PACKED_FROM_WEIGHTS = 200_000


def slot_format(shape: ExpertShape) -> SlotFormat:
    """What slots of experts of ``shape`` should hold on this processor."""
    large = 3 * shape.hidden_size * shape.intermediate_size >= _PACKED_FROM_WEIGHTS
    packable = all(
        is_supported(*shape.dense(projection), shape.group_size) for projection in PROJECTIONS
    )
    return "packed" if large and packable else "dense"


@dataclass(frozen=True)
class CacheStats:
    """Counters since the start (or ``reset_stats``). ``bytes_read`` is packed bytes fetched."""

    hits: int
    misses: int
    evictions: int
    bytes_read: int

    @property
    def hit_rate(self) -> float:
        """Hits among all expert uses, 1.0 before the first use."""
        total = self.hits + self.misses
        return self.hits / total if total else 1.0


class _Layer:
    """Slots of one layer; ``value`` is what the policy compares, per expert."""

    def __init__(
        self, store: ExpertStore, num_slots: int, dtype: torch.dtype, slot_format: SlotFormat
    ) -> None:
        self.packed: list[tuple[PackedMatrix, PackedMatrix]] = []
        self.gate_up_t: list[Tensor] = []
        self.down_t: list[Tensor] = []
        self.slot_of: dict[int, int] = {}
        self.free = list(range(num_slots - 1, -1, -1))
        self.last_use = [0] * store.num_experts
        self.frequency = [0.0] * store.num_experts
        if slot_format == "packed":
            sizes = [
                (*store.shape.dense(projection), store.shape.group_size)
                for projection in PROJECTIONS
            ]
            self.packed = [
                (PackedMatrix(*sizes[0]), PackedMatrix(*sizes[1])) for _ in range(num_slots)
            ]
            return
        gate_up = torch.empty((num_slots, *store.shape.dense("gate_up_proj")), dtype=dtype)
        down = torch.empty((num_slots, *store.shape.dense("down_proj")), dtype=dtype)
        self.gate_up_t = [slot.t() for slot in gate_up]
        self.down_t = [slot.t() for slot in down]

    def weights(self, slot: int) -> tuple[Weight, Weight]:
        """What ``slot`` holds."""
        return self.packed[slot] if self.packed else (self.gate_up_t[slot], self.down_t[slot])

    def load(self, slot: int, expert: PackedExpert) -> None:
        """Put ``expert`` into ``slot``."""
        if self.packed:
            for matrix, packed in zip(
                self.packed[slot], (expert.gate_up_proj, expert.down_proj), strict=True
            ):
                matrix.load(packed)
            return
        dtype = self.gate_up_t[slot].dtype
        self.gate_up_t[slot].t().copy_(int4.dequantize(expert.gate_up_proj, dtype))
        self.down_t[slot].t().copy_(int4.dequantize(expert.down_proj, dtype))


class ExpertCache:
    """Per-layer expert slots over an ``ExpertStore``.

    ``num_slots`` per layer is never smaller than ``num_experts_per_tok``. The output of the
    model does not depend on ``num_slots`` or ``policy``, only the counters and the time do.
    """

    def __init__(
        self,
        store: ExpertStore,
        *,
        num_slots: int,
        num_experts_per_tok: int,
        policy: CachePolicy = "decayed_frequency",
        decay: float = 0.98,
        dtype: torch.dtype = torch.float32,
        slot_format: SlotFormat = "dense",
    ) -> None:
        """Raises ``ValueError`` when ``num_slots`` is below ``num_experts_per_tok``, or the
        experts cannot stay packed. ``dtype`` is that of dense slots.
        """
        if num_slots < num_experts_per_tok:
            raise ValueError(
                f"{num_slots} expert slots per layer are fewer than the {num_experts_per_tok} "
                "experts of one token; raise expert_cache_slots"
            )
        self.store = store
        self.num_slots = min(num_slots, store.num_experts)
        self.policy = policy
        self._decay = decay
        self.slot_format = slot_format
        self.input_dtype = dtype if slot_format == "dense" else None
        """What the weights of ``fetch`` can be multiplied with; ``None``: any float dtype."""
        self._layers = {
            layer: _Layer(store, self.num_slots, dtype, slot_format) for layer in store.layers
        }
        self._tick = 0
        self.reset_stats()

    @property
    def stats(self) -> CacheStats:
        """A snapshot of the counters."""
        return CacheStats(self._hits, self._misses, self._evictions, self._bytes_read)

    def reset_stats(self) -> None:
        """Set the counters to zero; slots stay as they are."""
        self._hits = self._misses = self._evictions = self._bytes_read = 0

    def waves(self, layer: int, expert_ids: Sequence[int]) -> list[list[int]]:
        """Split distinct ``expert_ids`` into lists that fit into the slots, residents first."""
        resident = self._layers[layer].slot_of
        ordered = sorted(expert_ids, key=lambda expert: expert not in resident)
        return [
            ordered[start : start + self.num_slots]
            for start in range(0, len(ordered), self.num_slots)
        ]

    def fetch(self, layer: int, expert_ids: Sequence[int]) -> list[tuple[Weight, Weight]]:
        """Make distinct ``expert_ids`` (at most ``num_slots``) resident and return their weights.

        Each pair is ``gate_up_proj.T`` [hidden, 2*intermediate] and ``down_proj.T``
        [intermediate, hidden], or both as ``PackedMatrix``: views of slots, valid until the next
        ``fetch`` of this layer.
        """
        state = self._layers[layer]
        self._tick += 1
        for expert in expert_ids:
            age = self._tick - state.last_use[expert]
            state.frequency[expert] = state.frequency[expert] * self._decay**age + 1.0
            state.last_use[expert] = self._tick
        weights = []
        for expert in expert_ids:
            slot = state.slot_of.get(expert)
            if slot is None:
                slot = self._load(layer, state, expert, expert_ids)
            else:
                self._hits += 1
            weights.append(state.weights(slot))
        return weights

    def _load(self, layer: int, state: _Layer, expert: int, needed: Sequence[int]) -> int:
        self._misses += 1
        if state.free:
            slot = state.free.pop()
        else:
            victim = min(
                (other for other in state.slot_of if other not in needed),
                key=lambda other: self._value(state, other),
            )
            slot = state.slot_of.pop(victim)
            self._evictions += 1
        packed = self.store.get(layer, expert)
        state.load(slot, packed)
        self._bytes_read += packed.gate_up_proj.size_bytes + packed.down_proj.size_bytes
        state.slot_of[expert] = slot
        return slot

    def _value(self, state: _Layer, expert: int) -> float:
        if self.policy == "lru":
            return float(state.last_use[expert])
        return state.frequency[expert] * self._decay ** (self._tick - state.last_use[expert])

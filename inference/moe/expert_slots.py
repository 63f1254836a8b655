"""The routed experts of a model on a device with room for a few of them per layer.

Owns the order of work of one layer: route, select, the experts, the prefetch beside them; and the
doors to what the device decided: counters, checks, warm start, overrides. The tables are in
``slot_tables.py``, the arithmetic in ``inference/kernels``. Not thread-safe: one engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inference.errors import SlotMismatchError
from inference.kernels import moe
from inference.kernels.step import withdraw_waiting
from inference.moe.expert_arena import ExpertArena
from inference.moe.expert_prefill import ExpertPrefill
from inference.moe.prefetcher import ExpertPrefetcher, PrefetchConfig
from inference.moe.router_counters import RouterCounters
from inference.moe.slot_tables import SlotTables

if TYPE_CHECKING:
    from inference.kernels.library import KernelLibrary


@dataclass(frozen=True)
class FatigueConfig:
    """Lower the logits of a combination that occurred ``repeats`` times in a row; 0.0 is off."""

    repeats: int = 5
    penalty: float = 0.0


class ExpertSlots:
    """Slots over an ``ExpertArena``, filled and emptied by the device itself.

    Outputs do not depend on the number of slots, on their contents or on the prefetch; only time
    and counters do. Layers are named by their index in the model, as in ``arena.layers``.
    """

    def __init__(
        self,
        library: KernelLibrary,
        arena: ExpertArena,
        *,
        routers: Sequence[Tensor],
        slots_per_layer: Sequence[int],
        num_experts_per_tok: int,
        max_batch: int,
        norm_topk_prob: bool,
        shared: Sequence[moe.SharedExpert] | None = None,
        decay: float = 0.98,
        prefetch: PrefetchConfig | None = None,
        gumbel_temperature: float = 0.0,
        fatigue: FatigueConfig | None = None,
        seed: int = 0,
        num_sequences: int | None = None,
        staging_experts: int = 16,
    ) -> None:
        """``routers`` fp32 [num_experts, hidden] and ``shared``: one a routed layer, on the device.

        ``num_sequences`` bounds ``sequence_slots`` of ``decode`` (default ``max_batch``);
        ``staging_experts`` is the size of each of the two buffers of a large prefill.

        Raises:
            ValueError: Sizes the kernels do not run, or fewer slots than experts of one token.
            GPUOutOfMemoryError: The slots do not fit.
        """
        _check_sizes(arena, slots_per_layer, num_experts_per_tok, max_batch)
        fatigue = fatigue or FatigueConfig()
        prefetch = prefetch or PrefetchConfig()
        self.library = library
        self.arena = arena
        self.num_experts_per_tok = num_experts_per_tok
        self.max_batch = max_batch
        self._index = {layer: index for index, layer in enumerate(arena.layers)}
        self._routers = list(routers)
        self._shared = None if shared is None else list(shared)
        for weights in (self._routers, self._shared):
            if weights is not None and len(weights) != len(arena.layers):
                raise ValueError(f"{len(weights)} weights for {len(arena.layers)} routed layers")
        num_sequences = num_sequences or max_batch
        self.tables = SlotTables(
            arena,
            library.device,
            slots_per_layer=slots_per_layer,
            num_experts_per_tok=num_experts_per_tok,
            max_batch=max_batch,
            num_sequences=num_sequences,
        )
        self._settings = moe.SelectSettings(
            num_experts_per_tok=num_experts_per_tok,
            normalise=norm_topk_prob,
            predict=prefetch.predicts,
            width=prefetch.width,
            max_copies=prefetch.max_copies if prefetch.enabled else 0,
            num_sequences=num_sequences,
            repeats=fatigue.repeats,
            penalty=fatigue.penalty,
            temperature=gumbel_temperature,
            decay=decay,
            seed=seed,
        )
        self._shared_inner = None
        if self._shared:
            self._shared_inner = torch.zeros(
                max_batch, self._shared[0].size, dtype=torch.float32, device=library.device
            )
        self.prefetcher = ExpertPrefetcher(library, self.tables, prefetch)
        self._prefill = ExpertPrefill(library, arena, self.tables, staging_experts)
        self._override: list[Tensor] = []

    def decode(
        self,
        layer: int,
        x: Tensor,
        norm: Tensor | None,
        eps: float,
        zero_centred: bool,
        positions: Tensor,
        sequence_slots: Tensor | None = None,
    ) -> None:
        """Add the experts' output for the normed rows to the residual stream ``x`` in place.

        Args:
            layer: Index of the layer in the model. Layers run in their order in every step.
            x: fp32 [batch, hidden]. Rows of padding stay as they are.
            norm: fp32 [hidden], or None where ``x`` is to be taken as it is.
            eps: Of the norm.
            zero_centred: Whether the norm multiplies by 1 + ``norm``.
            positions: int32 [batch], negative for padding.
            sequence_slots: int32 [batch], whose combination record a row goes on; default its
                number.
        """
        index = self._index[layer]
        predicts = self._settings.predict and index + 1 < len(self._routers)
        shared = None if self._shared is None else self._shared[index]
        moe.route(
            self.library,
            self.tables,
            x,
            norm,
            eps=eps,
            zero_centred=zero_centred,
            router=self._routers[index],
            shared_gate=None if shared is None else shared.gate,
            next_router=self._routers[index + 1] if predicts else None,
        )
        moe.select(self.library, self.tables, index, positions, sequence_slots, self._settings)
        joined = self.prefetcher.join(index)
        shape = self.arena.shape
        sizes = {
            "intermediate": shape.intermediate_size,
            "group_size": shape.group_size,
            "num_experts_per_tok": self.num_experts_per_tok,
        }
        moe.gate_up(
            self.library,
            self.tables,
            index,
            positions,
            hidden=shape.hidden_size,
            shared=shared,
            shared_inner=self._shared_inner,
            pdl=not joined,
            **sizes,
        )
        # From here on this layer reads nothing from the host: the link is the prefetch's.
        self.prefetcher.fork(index + 1)
        moe.down(
            self.library,
            self.tables,
            index,
            positions,
            x,
            shared=shared,
            shared_inner=self._shared_inner,
            **sizes,
        )

    def prefill(self, layer: int, hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """The routed experts' output for many tokens.

        ``hidden`` fp16 or fp32 [num_tokens, hidden]; ids and weights [num_tokens, k]. Returns the
        weighted sums, shaped and typed like ``hidden``, which stays unmodified. Slots stay as they
        are.
        """
        return self._prefill.forward(self._index[layer], hidden, topk_ids, topk_weights)

    def verify(self) -> None:
        """Compare every resident expert with its blob on the host, and the tables with each other.

        Raises:
            SlotMismatchError: One differs; names the layer, expert and slot.
        """
        withdraw_waiting(self.library.device)
        tables = self.tables
        for index, layer in enumerate(self.arena.layers):
            experts = tables.experts_in_slots(index).tolist()
            slot_of = tables.slot_of[index].tolist()
            addresses = tables.addresses[index].tolist()
            slots = tables.slots(index)
            for slot, expert in enumerate(experts):
                if expert < 0:
                    continue
                in_tables = slot_of[expert] == slot and addresses[expert] == slots[slot].data_ptr()
                host = self.arena.blobs[index][expert].to(slots.device)
                if not in_tables or not torch.equal(slots[slot], host):
                    raise SlotMismatchError(layer, expert, slot)
            blobs = self.arena.blobs[index]
            for expert, slot in enumerate(slot_of):
                at_home = addresses[expert] == blobs[expert].data_ptr()
                if (slot < 0 and not at_home) or (slot >= 0 and experts[slot] != expert):
                    raise SlotMismatchError(layer, expert, slot)

    def counters(self) -> RouterCounters:
        """A snapshot; waits for the work submitted so far (a step that waits: 0.2 s at most)."""
        return RouterCounters.from_tensors(self.tables.counters.cpu(), self.tables.uses.cpu())

    def reset_counters(self) -> None:
        """Set the counters to zero, in stream order; slots and frequencies stay."""
        withdraw_waiting(self.library.device)
        self.tables.counters.zero_()
        self.tables.uses.zero_()

    def warm_start(self, layer: int, ids: Sequence[int]) -> None:
        """Make the first of ``ids`` resident that fit, in front of what lies there; host-driven.

        Not between the layers of a step. Their frequencies become at least 1.
        """
        withdraw_waiting(self.library.device)
        index = self._index[layer]
        tables = self.tables
        wanted = list(dict.fromkeys(ids))[: tables.begins[index + 1] - tables.begins[index]]
        resident = tables.experts_in_slots(index).tolist()
        frequency = tables.frequency[index].tolist()
        free = [slot for slot, expert in enumerate(resident) if expert not in wanted]
        free.sort(key=lambda slot: frequency[resident[slot]] if resident[slot] >= 0 else -1.0)
        slots = tables.slots(index)
        for expert in wanted:
            if expert not in resident:
                slot = free.pop(0)
                evicted = resident[slot]
                if evicted >= 0:
                    tables.slot_of[index, evicted] = -1
                    tables.addresses[index, evicted] = self.arena.blobs[index][evicted].data_ptr()
                slots[slot].copy_(self.arena.blobs[index][expert], non_blocking=True)
                tables.experts_in_slots(index)[slot] = expert
                tables.slot_of[index, expert] = slot
                tables.addresses[index, expert] = slots[slot].data_ptr()
                resident[slot] = expert
            tables.frequency[index, expert] = max(frequency[expert], 1.0)

    def set_prefetch(self, prefetch: PrefetchConfig) -> None:
        """Change the prefetch between steps. Graphs captured before go on with the old one.

        What was prefetched last is forgotten as such; every step waits for its copies, so the
        experts lie in their slots.
        """
        withdraw_waiting(self.library.device)
        if self.library.device.type == "cuda":
            torch.cuda.synchronize(self.library.device)
        self._settings = replace(
            self._settings,
            predict=prefetch.predicts,
            width=prefetch.width,
            max_copies=prefetch.max_copies if prefetch.enabled else 0,
        )
        self.prefetcher = ExpertPrefetcher(self.library, self.tables, prefetch)
        self.tables.copy_counts.zero_()
        self.tables.copy_experts.fill_(-1)
        self.tables.predicted.zero_()

    def routing_override(self, ids: Tensor | None, predicted: Tensor | None = None) -> None:
        """Take the experts from a table instead of the router; for benchmarks.

        ``ids`` int32 [steps, routed layers, max_batch * k] on the device: row ``s % steps`` serves
        the s-th step from now, which the device counts; a row's ids are distinct. ``predicted`` of
        the same shape replaces the predictions *for* a layer. Weights stay the router's for these
        ids. None ends it. Works under a captured graph.
        """
        withdraw_waiting(self.library.device)
        tables = self.tables
        shape = (len(self.arena.layers), self.max_batch * self.num_experts_per_tok)
        for table in (ids, predicted):
            if table is None:
                continue
            if table.dtype != torch.int32 or tuple(table.shape[1:]) != shape:
                raise ValueError(f"{table.dtype} {tuple(table.shape)} is no override of {shape}")
            if table.device != tables.overrides.device or not table.is_contiguous():
                raise ValueError("the override must be contiguous and on the device")
            if int(table.min()) < 0 or int(table.max()) >= self.arena.num_experts:
                raise ValueError("the override names experts that do not exist")
        if ids is None and predicted is not None:
            raise ValueError("predictions are replaced together with the ids only")
        if ids is not None and predicted is not None and len(ids) != len(predicted):
            raise ValueError("ids and predictions have different numbers of steps")
        self._override = [table for table in (ids, predicted) if table is not None]
        addresses = [0 if table is None else table.data_ptr() for table in (ids, predicted)]
        steps = 1 if ids is None else len(ids)
        tables.overrides.copy_(torch.tensor([*addresses, steps, shape[1]]))
        tables.steps.zero_()


def _check_sizes(
    arena: ExpertArena, slots_per_layer: Sequence[int], num_experts_per_tok: int, max_batch: int
) -> None:
    if len(slots_per_layer) != len(arena.layers):
        raise ValueError(f"{len(slots_per_layer)} slot counts for {len(arena.layers)} layers")
    if min(slots_per_layer) < min(num_experts_per_tok, arena.num_experts):
        raise ValueError(
            f"{min(slots_per_layer)} expert slots in a layer are fewer than the "
            f"{num_experts_per_tok} experts of one token"
        )
    shape = arena.shape
    if not 1 <= max_batch <= moe.MAX_BATCH or num_experts_per_tok > 16:
        raise ValueError(f"{max_batch} rows of {num_experts_per_tok} experts are not supported")
    if num_experts_per_tok > arena.num_experts or arena.num_experts > moe.MAX_EXPERTS:
        raise ValueError(f"{arena.num_experts} experts are not supported")
    if shape.hidden_size % 64 or shape.intermediate_size % 32 or shape.group_size % 32:
        raise ValueError(
            f"{shape} is not supported: hidden must be a multiple of 64, "
            "intermediate and group sizes of 32"
        )

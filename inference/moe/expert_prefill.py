"""The experts of one layer on a prompt chunk.

Owns the way of the experts without a slot into two staging buffers: all of the layer by the copy
engine, ahead of the routing, or those with tokens by a kernel, once the routing is known; and the
order of those copies. Knows nothing of routing; leaves the slots alone.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inference.kernels import moe_prefill
from inference.kernels.moe_prefill import SortedPairs

if TYPE_CHECKING:
    from inference.checkpoint.format import ExpertShape
    from inference.kernels.library import KernelLibrary
    from inference.moe.expert_arena import ExpertArena
    from inference.moe.slot_tables import SlotTables

# From this many pairs for each expert of the layer all experts are streamed. At even routing
# 1 - exp(-2) = 86 % of them are touched then. Copies of the touched ones alone start only when the
# routing is known, and a kernel reads the link at about 90 % of the copy engine's rate, so they
# take as long.
STREAMING_PAIRS = 2


@dataclass(frozen=True)
class _Staged:
    """A group of experts on its way into a staging buffer."""

    index: int
    group: int
    buffer: int


@dataclass(frozen=True)
class _Work:
    """The tokens of one layer, and where results go."""

    library: KernelLibrary
    shape: ExpertShape
    pairs: SortedPairs
    hidden: Tensor
    inner: Tensor
    outputs: Tensor

    def run(self, experts: Tensor, addresses: Tensor, *, pdl: bool) -> None:
        """See ``moe_prefill.run_experts``."""
        moe_prefill.run_experts(
            self.library,
            self.shape,
            self.pairs,
            self.hidden,
            experts=experts,
            addresses=addresses,
            inner=self.inner,
            outputs=self.outputs,
            pdl=pdl,
        )


class ExpertPrefill:
    """Runs many tokens through the experts of a layer."""

    def __init__(
        self,
        library: KernelLibrary,
        arena: ExpertArena,
        tables: SlotTables,
        staging_experts: int,
    ) -> None:
        self._library = library
        self._arena = arena
        self._tables = tables
        self._group_size = min(staging_experts, arena.num_experts)
        self._staged: deque[_Staged] = deque()
        self._next_buffer = 0
        self._last_streamed = tables.num_layers
        # Of each layer: the experts that are streamed, in groups; the same as int32
        # [layers, experts], padded by -1; and e at place e for those that are not, else -1.
        self._groups: list[list[list[int]]] = []
        self._order = self._kept = torch.zeros(0)
        self._all = torch.arange(arena.num_experts, dtype=torch.int32, device=library.device)
        self._missing, self._resident = torch.empty_like(self._all), torch.empty_like(self._all)
        self._stream: torch.cuda.Stream | None = None
        all_fit = all(self._all_fit(index) for index in range(tables.num_layers))
        count = 0 if all_fit else self._group_size
        self._staging = torch.zeros(
            (2, count, arena.blob_bytes), dtype=torch.uint8, device=library.device
        )
        steps = torch.arange(count, dtype=torch.int64) * arena.blob_bytes
        self._addresses = torch.stack([steps + buffer.data_ptr() for buffer in self._staging]).to(
            library.device
        )
        if library.device.type == "cuda":
            self._stream = torch.cuda.Stream(library.device)
            self._copied = [torch.cuda.Event() for _ in range(2)]
            self._computed = [torch.cuda.Event() for _ in range(2)]

    def forward(self, index: int, hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """See ``ExpertSlots.prefill``; ``index`` counts routed layers."""
        if hidden.dtype not in (torch.float16, torch.float32):
            raise ValueError(f"activations are fp16 or fp32, not {hidden.dtype}")
        num_tokens, k = topk_ids.shape
        shape = self._arena.shape
        result = torch.empty_like(hidden, memory_format=torch.contiguous_format)
        if num_tokens == 0:
            return result
        pairs = SortedPairs.of(topk_ids, self._arena.num_experts)
        inner = hidden.new_empty((num_tokens * k, shape.intermediate_size))
        outputs = hidden.new_empty((num_tokens * k, shape.hidden_size))
        work = _Work(self._library, shape, pairs, hidden.contiguous(), inner, outputs)
        if self._all_fit(index):  # what has no slot yet is read in place
            work.run(self._all, self._tables.addresses[index], pdl=True)
        elif self.streams(index, num_tokens * k):
            self._stream_layer(index, work)
        else:
            self._gather_layer(index, work)
        weights = topk_weights.to(torch.float32).contiguous()
        moe_prefill.combine(self._library, outputs, weights, result)
        return result

    def streams(self, index: int, num_pairs: int) -> bool:
        """Whether ``num_pairs`` touch so many experts that all without a slot are copied."""
        return not self._all_fit(index) and num_pairs >= STREAMING_PAIRS * self._arena.num_experts

    def _all_fit(self, index: int) -> bool:
        slots = self._tables.begins[index + 1] - self._tables.begins[index]
        return slots >= self._arena.num_experts

    def _gather_layer(self, index: int, work: _Work) -> None:
        """Copy what is touched in waves, each while the wave before is multiplied.

        The list is made on the device: as many waves are launched as there may be, and those
        beyond its end find nothing to do.
        """
        self._staged.clear()
        slot_of = self._tables.slot_of[index]
        moe_prefill.sort_experts(self._library, work.pairs, slot_of, self._missing, self._resident)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._library.device))
        most = min(self._arena.num_experts, work.pairs.order.shape[0])
        waves = self._missing[:most].split(self._group_size)
        buffers = [self._gather(index, wave) for wave in waves[:2]]
        work.run(self._resident, self._tables.addresses[index], pdl=False)
        for number, wave in enumerate(waves):
            self._multiply(work, wave, buffers[number])
            if number + 2 < len(waves):
                buffers.append(self._gather(index, waves[number + 2]))

    def _gather(self, index: int, wave: Tensor) -> int:
        with self._copies() as buffer:
            targets = self._addresses[buffer, : len(wave)]
            moe_prefill.gather(self._library, self._arena.blobs[index], wave, targets)
        return buffer

    def _stream_layer(self, index: int, work: _Work) -> None:
        if index <= self._last_streamed:
            self._choose_streamed()
        self._last_streamed = index
        if self._staged and (self._staged[0].index, self._staged[0].group) != (index, 0):
            self._staged.clear()  # copied ahead for a layer that did not come
        groups = self._groups[index]
        if sum(map(len, groups)) < self._arena.num_experts:
            # Should one have lost its slot meanwhile, it is read in place.
            work.run(self._kept[index], self._tables.addresses[index], pdl=True)
        first = 0
        for number, group in enumerate(groups):
            while len(self._staged) < 2 and self._stage_next(index, number):
                pass
            last = first + len(group)
            self._multiply(work, self._order[index, first:last], self._staged.popleft().buffer)
            first = last
        # The copies of the next layer run while its attention does.
        while len(self._staged) < 2 and self._stage_next(index, len(groups)):
            pass

    def _stage_next(self, index: int, group: int) -> bool:
        """Copy what comes after the groups on their way; False at the end of the model.

        ``group`` of layer ``index`` is what is needed now.
        """
        if self._staged:
            index, group = self._staged[-1].index, self._staged[-1].group + 1
        while group == len(self._groups[index]):
            index, group = index + 1, 0
            if index == self._tables.num_layers:
                return False
        with self._copies() as buffer:
            self._copy(index, self._groups[index][group], buffer)
        self._staged.append(_Staged(index, group, buffer))
        return True

    def _choose_streamed(self) -> None:
        """Experts without a slot are streamed; once a chunk, for the host must wait for the answer.

        Should the slots change before the last layer, the addresses of the experts that are not
        streamed are taken from the table when they are used.
        """
        self._staged.clear()
        missing = (self._tables.slot_of < 0).cpu()
        for index in filter(self._all_fit, range(len(missing))):
            missing[index] = False
        size = self._group_size
        ids = [row.nonzero().flatten().tolist() for row in missing]
        self._groups = [
            [experts[at : at + size] for at in range(0, len(experts), size)] for experts in ids
        ]
        numbers = torch.arange(self._arena.num_experts, dtype=torch.int32).expand(missing.shape)
        kept = torch.where(missing, -1, numbers)
        present, order = torch.sort(missing, dim=1, descending=True, stable=True)
        lists = torch.where(present, order.to(torch.int32), -1)
        self._order, self._kept = lists.to(self._library.device), kept.to(self._library.device)

    def _multiply(self, work: _Work, experts: Tensor, buffer: int) -> None:
        """Run the experts that lie in a buffer, or are on their way there."""
        addresses = self._addresses[buffer, : len(experts)]
        if self._stream is None:
            work.run(experts, addresses, pdl=False)
            return
        stream = torch.cuda.current_stream(self._library.device)
        stream.wait_event(self._copied[buffer])
        work.run(experts, addresses, pdl=False)
        self._computed[buffer].record(stream)

    @contextmanager
    def _copies(self) -> Iterator[int]:
        """Makes the block's copies, into the buffer it yields, run beside the computation."""
        buffer = self._next_buffer
        self._next_buffer = 1 - buffer
        if self._stream is None:
            yield buffer
            return
        self._stream.wait_event(self._computed[buffer])
        with torch.cuda.stream(self._stream):
            yield buffer
            self._copied[buffer].record(self._stream)

    def _copy(self, index: int, experts: list[int], buffer: int) -> None:
        """Copy runs of neighbours at once; each expert to its place in the group."""
        place = 0
        for _, run in itertools.groupby(enumerate(experts), lambda pair: pair[1] - pair[0]):
            neighbours = [expert for _, expert in run]
            source = self._arena.blobs[index][neighbours[0] : neighbours[-1] + 1]
            self._staging[buffer, place : place + len(neighbours)].copy_(source, non_blocking=True)
            place += len(neighbours)

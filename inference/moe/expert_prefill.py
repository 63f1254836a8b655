"""The experts of one layer on a prompt chunk.

Owns the choice between reading experts in place and streaming the layer's experts that have no slot
through two staging buffers by the copy engine, and the order of those copies. Knows nothing of
routing; leaves the slots alone.
"""

from __future__ import annotations

import itertools
from collections import deque
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


@dataclass(frozen=True)
class _Staged:
    """A group of experts on its way into a staging buffer."""

    index: int
    group: int
    buffer: int


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
        self._num_groups = -(-arena.num_experts // self._group_size)
        self._staged: deque[_Staged] = deque()
        self._next_buffer = 0
        self._streamed: Tensor | None = None  # bool [layers, experts], and the same on the host
        self._streamed_here = torch.zeros(0)
        self._stream: torch.cuda.Stream | None = None
        all_resident = all(
            tables.begins[index + 1] - tables.begins[index] >= arena.num_experts
            for index in range(tables.num_layers)
        )
        count = 0 if all_resident else self._group_size
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
        if self.streams(index, num_tokens * k):
            self._stream_layer(index, pairs, hidden.contiguous(), inner, outputs)
        else:
            moe_prefill.run_experts(
                self._library,
                shape,
                pairs,
                hidden.contiguous(),
                addresses=self._tables.addresses[index],
                first_expert=0,
                inner=inner,
                outputs=outputs,
                pdl=True,
            )
        weights = topk_weights.to(torch.float32).contiguous()
        moe_prefill.combine(self._library, outputs, weights, result)
        return result

    def streams(self, index: int, num_pairs: int) -> bool:
        """Whether ``num_pairs`` touch so many experts that the whole layer is copied.

        With as many pairs as experts, an even router touches 63 % of them; from there on copies at
        full link speed, made while the experts before are multiplied, win over reads in place.
        """
        slots = self._tables.begins[index + 1] - self._tables.begins[index]
        return slots < self._arena.num_experts <= num_pairs

    def _stream_layer(
        self, index: int, pairs: SortedPairs, hidden: Tensor, inner: Tensor, outputs: Tensor
    ) -> None:
        if index == 0 or self._streamed is None:
            self._choose_streamed()
        assert self._streamed is not None
        if self._staged and (self._staged[0].index, self._staged[0].group) != (index, 0):
            self._staged.clear()  # copied ahead for a layer that did not come
        for group in range(self._num_groups):
            while len(self._staged) < 2 and self._stage_next(index, group):
                pass
            staged = self._staged.popleft()
            experts = self._experts(group)
            if self._stream is not None:
                stream = torch.cuda.current_stream(self._library.device)
                stream.wait_event(self._copied[staged.buffer])
            moe_prefill.run_experts(
                self._library,
                self._arena.shape,
                pairs,
                hidden,
                addresses=self._where(index, experts, staged.buffer),
                first_expert=experts.start,
                inner=inner,
                outputs=outputs,
                pdl=False,
            )
            if self._stream is not None:
                self._computed[staged.buffer].record(stream)
        # The copies of the next layer run while its attention does.
        while len(self._staged) < 2 and self._stage_next(index, self._num_groups):
            pass

    def _stage_next(self, index: int, group: int) -> bool:
        """Copy what comes after the groups on their way; False at the end of the model.

        ``group`` of layer ``index`` is what is needed now.
        """
        if self._staged:
            index, group = self._staged[-1].index, self._staged[-1].group + 1
        if group == self._num_groups:
            index, group = index + 1, 0
        if index == self._tables.num_layers:
            return False
        buffer = self._next_buffer
        if self._stream is None:
            self._copy(index, group, buffer)
        else:
            self._stream.wait_event(self._computed[buffer])
            with torch.cuda.stream(self._stream):
                self._copy(index, group, buffer)
                self._copied[buffer].record(self._stream)
        self._staged.append(_Staged(index, group, buffer))
        self._next_buffer = 1 - buffer
        return True

    def _choose_streamed(self) -> None:
        """Experts without a slot are streamed; once a chunk, for the host must wait for the answer.

        Should the slots change before the last layer, an expert that has lost its slot is read in
        place: the addresses of the others are taken from the table when they are used.
        """
        self._streamed = self._tables.slot_of < 0
        self._streamed_here = self._streamed.cpu()
        self._staged.clear()

    def _where(self, index: int, experts: range, buffer: int) -> Tensor:
        """Addresses of a group: in the staging buffer, in slots, or in host memory."""
        assert self._streamed is not None
        part = slice(experts.start, experts.stop)
        staged = self._addresses[buffer, : len(experts)]
        return torch.where(self._streamed[index, part], staged, self._tables.addresses[index, part])

    def _copy(self, index: int, group: int, buffer: int) -> None:
        """Copy runs of neighbours that are streamed, each expert to its place in the group."""
        experts = self._experts(group)
        wanted = self._streamed_here[index, experts.start : experts.stop].tolist()
        first = 0
        for is_streamed, run in itertools.groupby(wanted):
            last = first + len(list(run))
            if is_streamed:
                source = self._arena.blobs[index][experts.start + first : experts.start + last]
                self._staging[buffer, first:last].copy_(source, non_blocking=True)
            first = last

    def _experts(self, group: int) -> range:
        start = group * self._group_size
        return range(start, min(start + self._group_size, self._arena.num_experts))


def workspace_bytes(
    shape: ExpertShape,
    *,
    num_tokens: int,
    num_experts_per_tok: int,
    itemsize: int,
    staging_experts: int,
) -> int:
    """Device memory of one prefill of ``num_tokens``: pairs, results and the staging buffers."""
    pairs = num_tokens * num_experts_per_tok
    rows = pairs * (shape.intermediate_size + shape.hidden_size) + num_tokens * shape.hidden_size
    # torch.sort of the ids: keys and values, int32 and int64, and as much again to work in.
    return rows * itemsize + 2 * pairs * 16 + 2 * staging_experts * shape.size_bytes

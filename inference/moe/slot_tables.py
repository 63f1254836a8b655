"""The device memory behind the slots of one model: the pool and the tables over it.

Owns the tensors that the kernels read and write, their sizes and first values. Knows nothing of
the order of a step. Layers are counted by their index among the routed ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.errors import GPUOutOfMemoryError
from inference.kernels import moe
from inference.moe.expert_arena import ExpertArena
from inference.moe.router_counters import NUM_COUNTERS


class SlotTables:
    """Pool, tables, job lists and counters; see the comments for shapes."""

    def __init__(
        self,
        arena: ExpertArena,
        device: torch.device,
        *,
        slots_per_layer: Sequence[int],
        num_experts_per_tok: int,
        max_batch: int,
        num_sequences: int,
    ) -> None:
        """Raises ``GPUOutOfMemoryError`` when the pool does not fit."""
        layers, experts = len(arena.layers), arena.num_experts
        pairs = max_batch * num_experts_per_tok
        hidden, intermediate = arena.shape.hidden_size, arena.shape.intermediate_size
        self.layers = arena.layers
        self.num_layers = layers
        self.num_experts = experts
        self.blob_bytes = arena.blob_bytes
        counts = [min(count, experts) for count in slots_per_layer]
        begins = [sum(counts[:index]) for index in range(layers + 1)]
        self.begins = begins

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        try:
            # [slots of all layers, blob]
            self.pool = zeros(begins[-1], self.blob_bytes, dtype=torch.uint8)
        except torch.OutOfMemoryError as error:
            raise GPUOutOfMemoryError(
                f"{begins[-1]} expert slots need {begins[-1] * self.blob_bytes / 2**20:.0f} MiB",
                "lower gpu_memory_limit or free the GPU of other processes",
            ) from error
        self.host_layers = torch.tensor([blobs.data_ptr() for blobs in arena.blobs], device=device)
        self.slot_begin = torch.tensor(begins, dtype=torch.int32, device=device)
        # Where each expert is read now: a slot, or host memory.
        offsets = torch.arange(experts, dtype=torch.int64, device=device) * self.blob_bytes
        self.addresses = self.host_layers.unsqueeze(1) + offsets
        self.slot_of = zeros(layers, experts).fill_(-1)  # within the layer
        self.expert_of = zeros(begins[-1]).fill_(-1)
        self.frequency = zeros(layers, experts, dtype=torch.float32)
        # Prediction of the running step: bits of the experts by row of the batch.
        self.predicted = zeros(layers, moe.MAX_BATCH, moe.MAX_WORDS)
        self.copies = zeros(layers, moe.MAX_COPIES, 2, dtype=torch.int64)  # (source, target)
        self.copy_experts = zeros(layers, moe.MAX_COPIES).fill_(-1)
        self.copy_counts = zeros(layers)
        self.arrived = zeros(layers, moe.MAX_COPIES)  # bytes
        self.combinations = zeros(layers, num_sequences, moe.COMBINATION_INTS)
        self.combinations[:, :, -1] = -1
        # Of the layer that runs: records of moe_select, pairs by job, outputs of the router.
        # Kernels read a record before they know whether it is one: 8 are always there.
        self.jobs = zeros(max(pairs, 8), 4, dtype=torch.int64)
        self.job_pairs = zeros(max(pairs, 8), moe.MAX_BATCH)
        self.num_jobs = zeros(2)  # all, and those that fill a slot: the first
        self.topk_ids = zeros(pairs)
        self.topk_weights = zeros(pairs, dtype=torch.float32)
        self.logits = zeros(max_batch, experts, dtype=torch.float32)
        self.next_logits = zeros(max_batch, experts, dtype=torch.float32)
        self.shared_logits = zeros(max_batch, dtype=torch.float32)
        self.normed = zeros(max_batch, hidden, dtype=torch.float32)
        self.packed = zeros(max_batch, hidden, dtype=torch.float32)
        self.inner = zeros(pairs, intermediate, dtype=torch.float32)
        self.counters = zeros(NUM_COUNTERS, dtype=torch.int64)
        self.uses = zeros(layers, experts, dtype=torch.int64)
        self.timer = zeros(4, dtype=torch.int64)
        self.steps = zeros(1, dtype=torch.int64)
        self.overrides = zeros(4, dtype=torch.int64)  # ids, predicted ids, steps, pairs a row

    def slots(self, index: int) -> Tensor:
        """The slots of one layer, uint8 [slots, blob_bytes]; a view."""
        return self.pool[self.begins[index] : self.begins[index + 1]]

    def experts_in_slots(self, index: int) -> Tensor:
        """Which expert lies in each slot of a layer, int32 [slots]; -1 free. A view."""
        return self.expert_of[self.begins[index] : self.begins[index + 1]]

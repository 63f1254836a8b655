"""Which sequences run in the next step.

Owns the waiting and running sequences and the KV slots they hold. First come, first served;
prefill chunks and decode steps take turns, so that a long prompt never stalls running answers
for more than one chunk. Knows nothing of tensors.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from inference.engine.prefix_cache import PrefixCache, SequenceCache
from inference.engine.sequence import Sequence, SequenceStatus


@dataclass(frozen=True)
class Prefill:
    """Compute prompt tokens ``start`` to ``end`` of one sequence."""

    sequence: Sequence
    start: int
    end: int


@dataclass(frozen=True)
class Decode:
    """Compute the newest token of each sequence in one batch."""

    sequences: tuple[Sequence, ...]


class Scheduler:
    """Continuous batching over at most as many sequences as the KV cache has slots."""

    def __init__(
        self, kv_cache: SequenceCache, prefix_cache: PrefixCache, *, prefill_chunk_tokens: int
    ) -> None:
        self._kv_cache = kv_cache
        self._prefix_cache = prefix_cache
        self._chunk = prefill_chunk_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._decode_next = False
        self._boundaries: dict[int, int] = {}

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    def unfinished(self) -> list[Sequence]:
        """All sequences that are waiting or running."""
        return [*self._running, *self._waiting]

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._waiting.append(sequence)

    def schedule(self) -> Prefill | Decode | None:
        """The next step, ``None`` when there is nothing to do."""
        self._admit()
        prefilling = next((seq for seq in self._running if not seq.is_prefilled), None)
        decoding = tuple(seq for seq in self._running if seq.is_prefilled)
        if prefilling is not None and not (decoding and self._decode_next):
            self._decode_next = True
            return self._next_chunk(prefilling)
        self._decode_next = False
        return Decode(decoding) if decoding else None

    def _next_chunk(self, sequence: Sequence) -> Prefill:
        """The next prompt tokens of ``sequence``, up to where a snapshot is to be taken."""
        start = sequence.num_computed_tokens
        end = min(start + self._chunk, sequence.num_prompt_tokens)
        boundary = self._boundaries.get(sequence.sequence_id)
        if boundary is not None and start < boundary:
            return Prefill(sequence, start, min(end, boundary))
        if boundary == start:
            self._prefix_cache.store(sequence.token_ids[:boundary], sequence.slot)
            del self._boundaries[sequence.sequence_id]
        return Prefill(sequence, start, end)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out; its computed tokens go to the prefix cache, its slot is freed."""
        if sequence.status is SequenceStatus.RUNNING:
            computed = sequence.token_ids[: sequence.num_computed_tokens]
            self._prefix_cache.store(computed, sequence.slot)
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out without trusting its slot; for failed steps."""
        if sequence.status is SequenceStatus.RUNNING:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._kv_cache.free(sequence.slot)
        self._boundaries.pop(sequence.sequence_id, None)
        sequence.slot = -1

    def _admit(self) -> None:
        while self._waiting and self._kv_cache.num_free_slots:
            sequence = self._waiting.popleft()
            sequence.slot = self._kv_cache.allocate()
            sequence.status = SequenceStatus.RUNNING
            self._running.append(sequence)
            cached = self._prefix_cache.restore(sequence.token_ids, sequence.slot)
            sequence.num_computed_tokens = sequence.num_cached_tokens = cached
            boundary = self._prefix_cache.boundary(sequence.token_ids, cached)
            if boundary is not None:
                self._boundaries[sequence.sequence_id] = boundary

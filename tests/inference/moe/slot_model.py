"""What ``moe_select`` decides, in plain Python: the rules, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

Rows = Sequence[Sequence[int]]
"""Experts by rank of each row of the batch; an empty row is padding."""


class SlotModel:
    """Slots, frequencies, predictions and counters of a few layers."""

    def __init__(
        self,
        slots_per_layer: Sequence[int],
        num_experts: int,
        *,
        decay: float,
        blob_bytes: int,
        width: int = 0,
        max_copies: int = 0,
    ) -> None:
        layers = len(slots_per_layer)
        self.slots: list[list[int | None]] = [[None] * count for count in slots_per_layer]
        self.frequency = np.zeros((layers, num_experts), dtype=np.float32)
        self.uses = np.zeros((layers, num_experts), dtype=np.int64)
        self.predicted: list[list[set[int]]] = [[] for _ in range(layers)]
        self.in_flight: list[list[int]] = [[] for _ in range(layers)]
        self.counters: Counter[str] = Counter()
        self._last: dict[tuple[int, int], tuple[int, set[int]]] = {}
        self._decay = np.float32(decay)
        self._blob_bytes = blob_bytes
        self._width = width
        self._max_copies = max_copies

    def step(
        self, layer: int, positions: Sequence[int], rows: Rows, next_rows: Rows | None
    ) -> None:
        """One layer of one step; ``next_rows`` is the prediction for the next layer."""
        count = self.counters
        for row, (position, experts) in enumerate(zip(positions, rows, strict=True)):
            if experts:
                now = (position, set(experts))
                last = self._last.get((layer, row))
                count["repeated_combinations"] += last == (position - 1, now[1])
                self._last[layer, row] = now
        used = {expert for row in rows for expert in row}
        slots, flying = self.slots[layer], self.in_flight[layer]
        misses = sorted(used - set(slots))
        count["hits"] += len(used) - len(misses)
        count["misses"] += len(misses)
        count["prefetch_useful"] += len(used & set(flying))
        count["prefetch_wasted"] += len(set(flying) - used)
        self.frequency[layer] *= self._decay
        for expert in used:
            self.frequency[layer, expert] += np.float32(1)
        for row in rows:
            for expert in row:
                self.uses[layer, expert] += 1
        if self.predicted[layer]:
            self._count_predictions(layer, rows, misses)
        safe = used | set(flying) | set().union(*self.predicted[layer])
        count["unfilled"] += len(misses) - self._place(layer, misses, safe)
        count["bytes_read"] += len(misses) * self._blob_bytes
        if next_rows is not None:
            self._prefetch(layer + 1, next_rows)

    def _count_predictions(self, layer: int, rows: Rows, misses: Sequence[int]) -> None:
        count, predicted = self.counters, self.predicted[layer]
        for row, guess in zip(rows, predicted, strict=True):
            count["predicted_total"] += len(row)
            count["predicted_right"] += len(guess & set(row))
        used = {expert for row in rows for expert in row}
        for expert in set(misses) | (used & set(self.in_flight[layer])):
            count["misses_with_prediction"] += 1
            count["predicted_right_on_misses"] += any(
                expert in guess for row, guess in zip(rows, predicted, strict=True) if expert in row
            )

    def _prefetch(self, layer: int, rows: Rows) -> None:
        self.predicted[layer] = [set(row) for row in rows]
        ranks = range(min(self._width, max((len(row) for row in rows), default=0)))
        by_rank = [row[rank] for rank in ranks for row in rows if row]
        wanted = [e for e in dict.fromkeys(by_rank) if e not in self.slots[layer]]
        wanted = wanted[: self._max_copies]
        placed = self._place(layer, wanted, set().union(*self.predicted[layer]))
        self.in_flight[layer] = wanted[:placed]
        self.counters["prefetched"] += placed
        self.counters["bytes_read"] += placed * self._blob_bytes

    def _place(self, layer: int, experts: Sequence[int], safe: set[int]) -> int:
        """Put ``experts`` into the least valued slots; returns how many found one."""
        slots = self.slots[layer]
        victims = sorted(
            (-1.0 if expert is None else float(self.frequency[layer, expert]), slot)
            for slot, expert in enumerate(slots)
            if expert is None or expert not in safe
        )
        placed = 0
        for expert, (_, slot) in zip(experts, victims, strict=False):
            self.counters["evictions"] += slots[slot] is not None
            slots[slot] = expert
            placed += 1
        return placed

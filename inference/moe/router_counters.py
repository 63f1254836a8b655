"""What the router and the slots did, counted on the device.

Owns the names and the order of the counters and what is computed from them. Knows nothing of how
they are counted: ``moe_select.cu`` and ``moe_experts.cu`` do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

# The order of the enum in moe_select.cu.
NAMES = (
    "hits",
    "misses",
    "bytes_read",
    "prefetched",
    "prefetch_useful",
    "prefetch_wasted",
    "predicted_right",
    "predicted_total",
    "predicted_right_on_misses",
    "misses_with_prediction",
    "evictions",
    "late",
    "repeated_combinations",
    "unfilled",
    "hit_ns",
    "hit_layers",
    "miss_ns",
    "miss_layers",
)
NUM_COUNTERS = 32


@dataclass(frozen=True)
class RouterCounters:
    """Counters since the start or ``reset_counters``; an expert counts once a layer and step.

    ``bytes_read`` came over the link, prefetched ones included. A prefetched expert that is used
    counts as a hit; ``misses_with_prediction`` are the experts that would have been misses without
    the prefetch, in layers with a prediction. ``late`` prefetches were read again from the host,
    ``unfilled`` misses found no victim. ``hit_ns`` and ``miss_ns`` are the times of gate_up and
    down, of layers without and with a miss. ``uses`` int64 [layers, experts] counts (row, expert).
    """

    hits: int
    misses: int
    bytes_read: int
    prefetched: int
    prefetch_useful: int
    prefetch_wasted: int
    predicted_right: int
    predicted_total: int
    predicted_right_on_misses: int
    misses_with_prediction: int
    evictions: int
    late: int
    repeated_combinations: int
    unfilled: int
    hit_ns: int
    hit_layers: int
    miss_ns: int
    miss_layers: int
    uses: Tensor

    @classmethod
    def from_tensors(cls, values: Tensor, uses: Tensor) -> RouterCounters:
        """From int64 [NUM_COUNTERS] and the uses."""
        numbers = values.tolist()
        return cls(**dict(zip(NAMES, numbers, strict=False)), uses=uses)

    @property
    def hit_rate(self) -> float:
        """Hits among all experts used, 1.0 before the first."""
        total = self.hits + self.misses
        return self.hits / total if total else 1.0

    @property
    def prediction_accuracy(self) -> float:
        """Share of the (row, expert) pairs that were predicted; 0.0 without predictions."""
        return self.predicted_right / self.predicted_total if self.predicted_total else 0.0

    @property
    def recall_on_misses(self) -> float:
        """Share of the experts not resident before the prediction that it named."""
        total = self.misses_with_prediction
        return self.predicted_right_on_misses / total if total else 0.0

    @property
    def stall_ns(self) -> int:
        """Time layers with a miss took beyond the mean of the layers without."""
        if not self.hit_layers:
            return self.miss_ns
        return max(0, round(self.miss_ns - self.miss_layers * self.hit_ns / self.hit_layers))

    def activation_shares(self) -> Tensor:
        """Share of each expert among the uses of its layer, fp64 [layers, experts]."""
        uses = self.uses.double()
        return uses / uses.sum(dim=1, keepdim=True).clamp(min=1)

    def entropies(self) -> list[float]:
        """Entropy in bits of each layer's shares; log2(experts) is an even load."""
        return [
            -sum(share * math.log2(share) for share in row if share > 0)
            for row in self.activation_shares().tolist()
        ]

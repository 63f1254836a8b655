"""What a runner hands to a sampler: the scores of one sequence's next token.

Owns the two forms scores come in: a whole row on the host, and the sorted best of a row that
stays on the device until somebody needs all of it. Knows nothing of penalties or randomness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from inference.logit_mask import LogitMask

MAX_CANDIDATES = 64


@dataclass(frozen=True)
class Candidates:
    """The best entries of one masked row, best first, the lower id first among equals.

    ``ids`` int32 [n] and ``values`` fp32 [n] on the host; valid until the runner's next step.
    """

    ids: Tensor
    values: Tensor


class Logits(Protocol):
    """Scores of one sequence after its mask."""

    @property
    def candidates(self) -> Candidates | None:
        """The best entries, ``None`` when only the whole row is known."""
        ...

    def row(self) -> Tensor:
        """All scores, fp32 [vocab_size] on the host; the caller may modify them."""
        ...


class DenseLogits:
    """A row that lies on the host already; the mask is applied when it is read."""

    candidates: Candidates | None = None

    def __init__(self, logits: Tensor, mask: LogitMask) -> None:
        self._logits = logits
        self._mask = mask

    def row(self) -> Tensor:
        """See ``Logits``."""
        self._mask.apply(self._logits)
        return self._logits


class DeviceLogits:
    """Candidates on the host, the masked row on the device. Valid until the next step."""

    def __init__(self, candidates: Candidates, logits: Tensor | Callable[[], Tensor]) -> None:
        """``logits`` fp32 [vocab_size] on a device, or what makes a copy of it on the host."""
        self._candidates = candidates
        self._logits = logits

    @property
    def candidates(self) -> Candidates | None:
        """See ``Logits``."""
        return self._candidates

    def row(self) -> Tensor:
        """See ``Logits``; waits for the copy from the device."""
        if isinstance(self._logits, Tensor):
            return self._logits.to("cpu", copy=True)
        return self._logits()

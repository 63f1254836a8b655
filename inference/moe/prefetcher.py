"""Copies of predicted experts beside the main work.

Owns the settings of the prefetch and the side stream of its copy kernel. What is copied, and
where to, the device decides (``moe_select.cu``); whether it arrived in time, ``moe_experts.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from inference.kernels import moe

if TYPE_CHECKING:
    from inference.kernels.library import KernelLibrary
    from inference.moe.slot_tables import SlotTables


@dataclass(frozen=True)
class PrefetchConfig:
    """How the next layer's experts are guessed and fetched.

    ``enabled`` copies up to ``max_copies`` (at most 8) of the ``width`` most likely experts a layer
    with ``copy_blocks`` thread blocks. ``count_predictions`` guesses without copying, for the
    counters; ``enabled`` implies it.

    The defaults suit a link of 50 GB/s: it is idle for 50 to 60 us between the misses of two
    layers, the time of one to two experts; the last ranks of a prediction are its least certain;
    8 blocks keep 256 KB in flight, twice what the link holds.
    """

    enabled: bool = False
    width: int = 6
    max_copies: int = 2
    copy_blocks: int = 8
    count_predictions: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_copies <= moe.MAX_COPIES or self.width < 1 or self.copy_blocks < 1:
            raise ValueError(f"impossible prefetch settings: {self}")

    @property
    def predicts(self) -> bool:
        """Whether the next layer's router runs at all."""
        return self.enabled or self.count_predictions


class ExpertPrefetcher:
    """Forks a copy after the misses of one layer are read, joins it before the experts of the next.

    Forked any earlier it would only take the link from those misses.
    """

    def __init__(self, library: KernelLibrary, tables: SlotTables, config: PrefetchConfig) -> None:
        self.config = config
        self._library = library
        self._tables = tables
        self._stream: torch.cuda.Stream | None = None
        self._forked: list[torch.cuda.Event] = []
        self._copied: list[torch.cuda.Event] = []
        self._pending: set[int] = set()
        if library.device.type == "cuda" and config.enabled:
            self._stream = torch.cuda.Stream(library.device)
            self._forked = [torch.cuda.Event() for _ in range(tables.num_layers)]
            self._copied = [torch.cuda.Event() for _ in range(tables.num_layers)]

    def fork(self, index: int) -> None:
        """Start the copies for layer ``index``; its predictions are chosen on the stream."""
        if not self.config.enabled or index >= self._tables.num_layers:
            return
        self._pending.add(index)
        if self._stream is None:
            self._copy(index)
            return
        self._forked[index].record(torch.cuda.current_stream(self._library.device))
        self._stream.wait_event(self._forked[index])
        with torch.cuda.stream(self._stream):
            self._copy(index)
            self._copied[index].record(self._stream)

    def join(self, index: int) -> bool:
        """Let the current stream wait for the copies of layer ``index``; whether there are any.

        The next launch then depends on two streams and must not use ``pdl``.
        """
        if index not in self._pending:
            return False
        self._pending.remove(index)
        if self._stream is not None:
            torch.cuda.current_stream(self._library.device).wait_event(self._copied[index])
        return True

    def _copy(self, index: int) -> None:
        moe.copy_experts(
            self._library,
            copies=self._tables.copies[index],
            count=self._tables.copy_counts[index : index + 1],
            arrived=self._tables.arrived[index],
            blob_bytes=self._tables.blob_bytes,
            blocks=self.config.copy_blocks,
        )

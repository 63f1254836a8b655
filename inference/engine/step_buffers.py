"""What passes between host and device in one decode step.

Owns the layout of the packed inputs and of the candidates, on the host (pinned) and on the
device. Knows nothing of who copies them, or when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from inference.engine.logits import MAX_CANDIDATES

PADDING = -(2**30)
"""Position of a row without a sequence; far enough below 0 to stay there in a decode loop."""


class StepInputs:
    """What the host tells one step: token ids, positions, state slots and block tables.

    One int32 buffer on the host (with one word more: the rows whose mask changed) and one on the
    device; ``token_ids``, ``positions`` and ``state_slots`` [batch] and ``block_tables``
    [batch, pages] are views of the device's.
    """

    def __init__(self, batch: int, num_pages: int, device: torch.device) -> None:
        size = batch * (3 + num_pages)
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(size + 1, dtype=torch.int32, pin_memory=on_gpu)
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self._numbers = self.host.numpy()
        self._batch = batch
        self.tables_key: object = None  # of the caller: what the tables in the buffer are of
        self.token_ids, self.positions, self.state_slots = self.device[: 3 * batch].view(3, batch)
        self.block_tables = self.device[3 * batch :].view(batch, num_pages)
        self._tables = self._numbers[3 * batch : size].reshape(batch, num_pages)
        self.clear()
        self.upload()

    def clear(self) -> None:
        """Make every row of the host's buffer padding."""
        self.write([], [], [], None)
        self.tables_key = None

    def write(
        self,
        token_ids: Seq[int],
        positions: Seq[int],
        slots: Seq[int],
        tables: Tensor | None,
        changed_masks: int = 0,
    ) -> None:
        """Fill the host's buffer; rows beyond the sequences become padding.

        ``tables`` int32 [sequences, pages] on the host, ``None``: as they are. Bit ``i`` of
        ``changed_masks`` says that row ``i`` of the masks is to be taken with the inputs.
        """
        count, batch, numbers = len(token_ids), self._batch, self._numbers
        numbers[:count] = token_ids
        numbers[batch : batch + count] = positions
        numbers[2 * batch : 2 * batch + count] = slots
        if count < batch:
            numbers[count:batch] = 0
            numbers[batch + count : 2 * batch] = PADDING
            numbers[2 * batch + count : 3 * batch] = 0
        if tables is not None:
            self._tables[:count] = tables.numpy()
        numbers[-1] = changed_masks

    def upload(self) -> None:
        """Copy to the device in stream order."""
        self.device.copy_(self.host[:-1], non_blocking=True)


class StepOutputs:
    """The candidates of each row, ``ids`` int32 and ``values`` fp32 [batch, 64], and their copy
    ``host_ids``, ``host_values``; ``host`` and ``device`` int32 [2, batch, 64] hold both."""

    def __init__(self, batch: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        shape = (2, batch, MAX_CANDIDATES)
        self.host = torch.zeros(shape, dtype=torch.int32, pin_memory=on_gpu)
        self.device = torch.zeros(shape, dtype=torch.int32, device=device)
        self.ids, self.values = self.device[0], self.device[1].view(torch.float32)
        self.host_ids, self.host_values = self.host[0], self.host[1].view(torch.float32)
        self._best = self.host_values.numpy()[:, 0]

    def finite(self, count: int) -> bool:
        """Whether the best values of the first ``count`` rows on the host are finite."""
        return all(map(math.isfinite, self._best[:count].tolist()))

    def download(self) -> None:
        """Copy to the host in stream order; the caller waits."""
        self.host.copy_(self.device, non_blocking=True)

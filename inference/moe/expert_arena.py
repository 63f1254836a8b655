"""Every routed expert in host memory that the GPU can read.

Owns the bytes: one piece per layer, one blob per expert, pinned where a GPU will read it. A blob
is gate_up words, gate_up scales, down words, down scales, each as in ``checkpoint/format.py``.
Knows nothing of slots, routing or tokens.
"""

from __future__ import annotations

import logging
import mmap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inference.checkpoint import format as layout
from inference.checkpoint.int4 import PackedInt4
from inference.errors import ConfigMismatchError
from inference.moe import pinning
from inference.moe.arena_reader import read_experts
from inference.moe.expert_store import ExpertStore, PackedExpert

logger = logging.getLogger(__name__)

ALIGNMENT = 16
_RANDOM_BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class BlobLayout:
    """Where the four parts of an expert lie in its blob, in bytes."""

    shape: layout.ExpertShape

    def __post_init__(self) -> None:
        """Raises ``ValueError`` when a part is no multiple of 16 bytes: kernels read 16 at once."""
        for (projection, kind), size in self.sizes.items():
            if size % ALIGNMENT:
                raise ValueError(f"{projection}.{kind} has {size} bytes, no multiple of 16")

    @property
    def sizes(self) -> dict[tuple[str, str], int]:
        """Bytes of each part, in their order in the blob."""
        sizes = {}
        for projection in layout.PROJECTIONS:
            rows, words = self.shape.qweight(projection)
            sizes[projection, "qweight"] = 4 * rows * words
            rows, groups = self.shape.scales(projection)
            sizes[projection, "scales"] = 2 * rows * groups
        return sizes

    @property
    def offsets(self) -> dict[tuple[str, str], int]:
        """First byte of each part."""
        offsets, position = {}, 0
        for part, size in self.sizes.items():
            offsets[part] = position
            position += size
        return offsets

    @property
    def blob_bytes(self) -> int:
        """Bytes of one expert."""
        return self.shape.size_bytes

    def view(self, blob: Tensor) -> PackedExpert:
        """The tensors inside ``blob`` uint8 [blob_bytes]; no copy."""
        packed = []
        for projection in layout.PROJECTIONS:
            parts = []
            for kind, dtype in (("qweight", torch.int32), ("scales", torch.float16)):
                start = self.offsets[projection, kind]
                part = blob[start : start + self.sizes[projection, kind]].view(dtype)
                parts.append(part.view(getattr(self.shape, kind)(projection)))
            packed.append(PackedInt4(*parts))
        return PackedExpert(*packed)


class ExpertArena:
    """Blobs by (index of the routed layer, expert).

    ``blobs[i]`` uint8 [num_experts, blob_bytes] holds layer ``layers[i]``. With a CUDA ``device``
    the memory is pinned and the device reads it at the same addresses.
    """

    def __init__(
        self,
        shape: layout.ExpertShape,
        *,
        layers: Sequence[int],
        num_experts: int,
        device: torch.device | str = "cpu",
        allow_unpinned: bool = False,
    ) -> None:
        """Takes memory without filling it; ``pin`` follows when it is filled.

        Raises ``ValueError`` for a shape whose parts are no multiples of 16 bytes.
        """
        self.layout = BlobLayout(shape)
        self.shape = shape
        self.layers = tuple(layers)
        self.num_experts = num_experts
        self.device = torch.device(device)
        self.pinned = False
        self._allow_unpinned = allow_unpinned
        self._release: weakref.finalize | None = None
        # One mapping a layer: 415 MB at most for the models we know, and a huge-page hint makes
        # the first touch several times faster.
        self.blobs = [
            _anonymous(num_experts * self.blob_bytes).view(num_experts, self.blob_bytes)
            for _ in self.layers
        ]

    @property
    def blob_bytes(self) -> int:
        """Bytes of one expert."""
        return self.layout.blob_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all experts."""
        return len(self.layers) * self.num_experts * self.blob_bytes

    def packed(self, index: int, expert: int) -> PackedExpert:
        """The tensors of one expert of the ``index``-th routed layer; views, do not modify."""
        return self.layout.view(self.blobs[index][expert])

    def pin(self) -> None:
        """Let the GPU read the memory. Does nothing for a CPU.

        Raises:
            PinningError: The system refuses, and ``allow_unpinned`` is not set or would not work.
        """
        if self.device.type == "cuda" and self._release is None:
            self.pinned = pinning.pin(self.blobs, self.device, allow_unpinned=self._allow_unpinned)
            if self.pinned:
                # The mapping must not go away while it is pinned: its addresses come again.
                addresses = [blobs.data_ptr() for blobs in self.blobs]
                self._release = weakref.finalize(self, pinning.unpin, addresses, self.device)
                self._release.atexit = False

    def close(self) -> None:
        """Undo the pinning, once the device has stopped reading. The arena's end does the same."""
        if self._release is not None:
            self._release()
            self._release = None
            self.pinned = False

    @classmethod
    def load(
        cls,
        model_dir: Path,
        routing: layout.RoutingConfig,
        *,
        layers: Sequence[int],
        shape: layout.ExpertShape,
        device: torch.device | str = "cpu",
        allow_unpinned: bool = False,
        num_threads: int = 8,
    ) -> ExpertArena:
        """Read the expert files of ``model_dir`` straight into place, with several threads.

        Raises:
            CheckpointError: A file is missing, damaged, or disagrees with the config.
            PinningError: See ``pin``.
        """
        try:
            arena = cls(
                shape,
                layers=layers,
                num_experts=routing.num_experts,
                device=device,
                allow_unpinned=allow_unpinned,
            )
        except ValueError as error:
            raise ConfigMismatchError(
                model_dir / layout.CONFIG_FILE, str(error), "use a larger group or expert size"
            ) from error
        paths = layout.expert_paths(model_dir, routing)
        read_experts(paths, arena.layers, shape, arena.layout.offsets, arena.blobs, num_threads)
        arena.pin()
        return arena

    @classmethod
    def from_store(
        cls,
        store: ExpertStore,
        *,
        device: torch.device | str = "cpu",
        allow_unpinned: bool = False,
    ) -> ExpertArena:
        """A copy of all experts of ``store``."""
        arena = cls(
            store.shape,
            layers=store.layers,
            num_experts=store.num_experts,
            device=device,
            allow_unpinned=allow_unpinned,
        )
        for index, layer in enumerate(arena.layers):
            for expert in range(arena.num_experts):
                source, target = store.get(layer, expert), arena.packed(index, expert)
                for projection in layout.PROJECTIONS:
                    theirs, ours = getattr(source, projection), getattr(target, projection)
                    ours.qweight.copy_(theirs.qweight)
                    ours.scales.copy_(theirs.scales)
        arena.pin()
        return arena

    @classmethod
    def random(
        cls,
        shape: layout.ExpertShape,
        *,
        layers: Sequence[int],
        num_experts: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        allow_unpinned: bool = False,
    ) -> ExpertArena:
        """Random experts whose outputs are about as large as their inputs; made on ``device``."""
        arena = cls(
            shape,
            layers=layers,
            num_experts=num_experts,
            device=device,
            allow_unpinned=allow_unpinned,
        )
        arena.pin()
        generator = torch.Generator(device=arena.device).manual_seed(seed)
        # A whole layer is more than a capped GPU has to spare.
        step = max(1, _RANDOM_BLOCK_BYTES // arena.blob_bytes)
        for block in (part for blobs in arena.blobs for part in blobs.split(step)):
            made = torch.randint(
                0,
                256,
                block.shape,
                dtype=torch.uint8,
                device=arena.device,
                generator=generator,
            )
            for projection in layout.PROJECTIONS:
                start = arena.layout.offsets[projection, "scales"]
                size = arena.layout.sizes[projection, "scales"]
                # The levels -8..7 have a standard deviation of 4.6.
                spread = 1.0 / (4.6 * shape.dense(projection)[1] ** 0.5)
                scales = torch.rand(
                    (len(block), size // 2), device=arena.device, generator=generator
                )
                scales = ((0.5 + scales) * spread).half()
                made[:, start : start + size] = scales.view(torch.uint8)
            block.copy_(made)
        return arena


def _anonymous(size_bytes: int) -> Tensor:
    """Zeroed memory of its own mapping, aligned to a page; freed with the tensor."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without transparent huge pages
            logger.debug("no huge pages for the experts")
    return torch.frombuffer(memory, dtype=torch.uint8)

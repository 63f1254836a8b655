"""Writes a safetensors file tensor by tensor, in any order, without holding it in memory.

Owns the byte layout (8-byte header length, JSON header, tensors without gaps) and the renaming of
the finished file into place. Knows nothing of what the tensors are.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_DTYPE_NAMES = {torch.float16: "F16", torch.float32: "F32", torch.int32: "I32"}
_ALIGNMENT = 64


class StreamedFile:
    """One file under ``path`` once ``finish`` was called; before that ``path``.partial.

    ``layout`` gives dtype and shape of every tensor; they lie in the file in its order.
    """

    def __init__(
        self, path: Path, layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    ) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._layout = dict(layout)
        self._starts: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, (dtype, shape) in self._layout.items():
            start, end = end, end + math.prod(shape) * dtype.itemsize
            self._starts[name] = start
            header[name] = {
                "dtype": _DTYPE_NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [start, end],
            }
        self.size_bytes = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        self._data_start = 8 + len(text)
        self._left = set(self._layout)
        with self._partial.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(self._data_start + end)

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Put ``tensors`` where they belong; each exactly as the layout says, each once."""
        with self._partial.open("r+b") as file:
            for name, tensor in tensors.items():
                dtype, shape = self._layout[name]
                assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape), name
                file.seek(self._data_start + self._starts[name])
                file.write(tensor.detach().to("cpu").contiguous().numpy().tobytes())
                self._left.remove(name)

    def finish(self) -> None:
        """Rename the file into place; every tensor must have been written."""
        assert not self._left, f"{self._path}: {min(self._left)} was not written"
        os.replace(self._partial, self._path)

    def abandon(self) -> None:
        """Remove what was written, if it is not in place yet."""
        self._partial.unlink(missing_ok=True)

"""Expert files into blobs: several threads, no copy in between.

Owns the reading of safetensors headers and of byte ranges, and the checks of names, shapes,
dtypes and scales. Knows nothing of pinning or of what the blobs are for.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from inference.checkpoint import format as layout
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError

_MAX_HEADER_BYTES = 100_000_000
_HALF_EXPONENT = 0x7C00


def read_experts(
    paths: Sequence[Path],
    layers: Sequence[int],
    shape: layout.ExpertShape,
    offsets: Mapping[tuple[str, str], int],
    blobs: Sequence[Tensor],
    num_threads: int,
) -> None:
    """Read file ``paths[e]`` into ``blobs[i][e]`` for every layer ``layers[i]``.

    ``offsets`` are bytes of (projection, "qweight" | "scales") inside a blob. Raises
    ``CheckpointError``; blobs are then partly filled.
    """

    def read(expert: int) -> None:
        targets = [blob[expert].numpy() for blob in blobs]
        _read_file(paths[expert], layers, shape, offsets, targets)

    with ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="experts") as pool:
        for _ in pool.map(read, range(len(paths))):
            pass


def _read_file(
    path: Path,
    layers: Sequence[int],
    shape: layout.ExpertShape,
    offsets: Mapping[tuple[str, str], int],
    targets: Sequence[np.ndarray],
) -> None:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise MissingFileError(
            path, "the expert file is missing", "copy it again or convert the model again"
        ) from None
    except OSError as error:
        raise DamagedFileError(path, f"cannot be read ({error})", "copy the file again") from error
    try:
        header, start = _header(path, file)
        expected = len(layers) * len(layout.PROJECTIONS) * 2
        if len(header) > expected:
            raise ConfigMismatchError(
                path,
                f"{len(header)} tensors where config.json implies {expected}",
                "correct num_hidden_layers or convert the model again",
            )
        for layer, target in zip(layers, targets, strict=True):
            for (projection, kind), offset in offsets.items():
                name = f"layers.{layer}.{projection}.{kind}"
                begin, size = _range(path, header, name, projection, kind, shape)
                part = target[offset : offset + size]
                _read_into(path, file, start + begin, part)
                if kind == "scales":
                    _check_finite(path, name, part)
    finally:
        os.close(file)


def _header(path: Path, file: int) -> tuple[dict[str, Any], int]:
    """Entries by tensor name, and where the data begins."""
    damaged = DamagedFileError(path, "is no safetensors file", "copy the file again")
    first = os.pread(file, 8, 0)
    if len(first) != 8:
        raise damaged
    (size,) = struct.unpack("<Q", first)
    if size > _MAX_HEADER_BYTES:
        raise damaged
    try:
        header = json.loads(os.pread(file, size, 8))
    except ValueError as error:
        raise damaged from error
    if not isinstance(header, dict):
        raise damaged
    header.pop("__metadata__", None)
    return header, 8 + size


def _range(
    path: Path,
    header: Mapping[str, Any],
    name: str,
    projection: str,
    kind: str,
    shape: layout.ExpertShape,
) -> tuple[int, int]:
    """Begin and size of a tensor's bytes, its shape and dtype checked."""
    entry = header.get(name)
    if not isinstance(entry, dict):
        raise ConfigMismatchError(
            path, f"{name} is missing", "correct num_hidden_layers or convert again"
        )
    wanted = list(getattr(shape, kind)(projection))
    dtype, itemsize = ("I32", 4) if kind == "qweight" else ("F16", 2)
    if entry.get("shape") != wanted or entry.get("dtype") != dtype:
        raise ConfigMismatchError(
            path,
            f"{name} is {entry.get('dtype')} {entry.get('shape')}, "
            f"config.json implies {dtype} {wanted}",
            "correct config.json or convert the model again",
        )
    size = wanted[0] * wanted[1] * itemsize
    begin, end = entry.get("data_offsets", (0, 0))
    if end - begin != size:
        raise DamagedFileError(path, f"{name} has {end - begin} bytes", "copy the file again")
    return int(begin), size


def _read_into(path: Path, file: int, begin: int, part: np.ndarray) -> None:
    done = 0
    view = memoryview(part.data)
    while done < len(view):
        count = os.preadv(file, [view[done:]], begin + done)
        if count == 0:
            raise DamagedFileError(path, "ends before its last tensor", "copy the file again")
        done += count


def _check_finite(path: Path, name: str, part: np.ndarray) -> None:
    exponents = part.view(np.uint16) & _HALF_EXPONENT
    if bool((exponents == _HALF_EXPONENT).any()):
        raise DamagedFileError(
            path, f"{name} holds NaN or infinite values", "convert the model again"
        )

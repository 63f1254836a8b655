"""SHA-256 of every file of a model folder, in the form that ``sha256sum --check`` reads.

Owns the file ``SHA256SUMS``: conversion and export write it last, the self-check compares. A copy
whose length is right and whose bits are not is found by nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from inference.checkpoint import format as layout
from inference.errors import DamagedFileError, MissingFileError

_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def write(model_dir: Path) -> None:
    """Write the sums of all files that the engine reads, over earlier ones.

    Raises ``CheckpointError`` when config.json cannot be used.
    """
    names = _read_by_engine(model_dir)
    sums = _sums([model_dir / name for name in names])
    lines = [f"{is_}  {name}\n" for name, is_ in zip(names, sums, strict=True)]
    partial = model_dir / (layout.CHECKSUM_FILE + ".partial")
    partial.write_text("".join(lines), encoding="utf-8")
    os.replace(partial, model_dir / layout.CHECKSUM_FILE)


def verify(model_dir: Path) -> int | None:
    """The number of files that are as they were written; ``None`` for a folder without sums.

    Reads every byte, at the speed of the disk. Raises ``MissingFileError`` for a file that is
    listed and not there, ``DamagedFileError`` for one that differs, cannot be read or is not
    listed, and what ``read_config`` raises.
    """
    path = model_dir / layout.CHECKSUM_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise layout.unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise DamagedFileError(path, f"not a text ({error})", "copy the file again") from error
    parsed = [_LINE.fullmatch(line) for line in lines]
    listed = {match[2]: match[1] for match in parsed if match is not None}
    if None in parsed or not listed:
        raise DamagedFileError(path, "not a list of SHA-256 sums", "copy the file again")
    if unlisted := sorted(set(_read_by_engine(model_dir)) - listed.keys()):
        raise DamagedFileError(
            path, f"does not list {unlisted[0]}", "copy the whole model folder again"
        )
    paths = [model_dir / name for name in listed]
    for file in paths:
        if not file.is_file():
            raise MissingFileError(file, "the file is missing", "copy the whole model folder again")
    for file, expected, found in zip(paths, listed.values(), _sums(paths), strict=True):
        if found != expected:
            raise DamagedFileError(
                file,
                f"its SHA-256 is not that of {layout.CHECKSUM_FILE}",
                "copy the file again, or write new sums if it was changed on purpose",
            )
    return len(paths)


def _read_by_engine(model_dir: Path) -> list[str]:
    routing = layout.read_routing_config(model_dir, layout.read_config(model_dir))
    experts = [str(path.relative_to(model_dir)) for path in layout.expert_paths(model_dir, routing)]
    side = [name for name in layout.SIDE_FILES if (model_dir / name).is_file()]
    return [layout.BACKBONE_FILE, *experts, layout.CONFIG_FILE, *side]


def _sums(paths: list[Path]) -> list[str]:
    with ThreadPoolExecutor() as pool:  # hashing holds no lock of the interpreter
        return list(pool.map(_sum, paths))


def _sum(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise layout.unreadable(path, error) from error

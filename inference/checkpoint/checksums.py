"""SHA-256 of the files of a folder, in the form that ``sha256sum --check`` reads.

Owns the file ``SHA256SUMS``: conversion and export write it last, the self-check compares. A copy
whose length is right and whose bits are not is found by nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from inference.checkpoint import format as layout
from inference.errors import DamagedFileError, MissingFileError

_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def write(model_dir: Path) -> None:
    """Write the sums of all files that the engine reads, over earlier ones.

    Raises ``CheckpointError`` when config.json cannot be used.
    """
    write_list(model_dir, _read_by_engine(model_dir))


def verify(model_dir: Path) -> int | None:
    """The number of files that are as they were written; ``None`` for a folder without sums.

    Reads every byte, at the speed of the disk. Raises ``MissingFileError`` for a file that is
    listed and not there, ``DamagedFileError`` for one that differs, cannot be read or is not
    listed, and what ``read_config`` raises.
    """
    try:
        listed = read_list(model_dir)
    except MissingFileError:
        return None
    if unlisted := sorted(set(_read_by_engine(model_dir)) - listed.keys()):
        raise DamagedFileError(
            model_dir / layout.CHECKSUM_FILE,
            f"does not list {unlisted[0]}",
            "copy the whole model folder again",
        )
    for name in listed:
        if not (model_dir / name).is_file():
            raise MissingFileError(
                model_dir / name, "the file is missing", "copy the whole model folder again"
            )
    if wrong := differing(model_dir, listed):
        raise DamagedFileError(
            model_dir / wrong[0],
            f"its SHA-256 is not that of {layout.CHECKSUM_FILE}",
            "copy the file again, or write new sums if it was changed on purpose",
        )
    return len(listed)


def write_list(folder: Path, names: Sequence[str]) -> None:
    """Write the sums of the files ``names``, which lie in or below ``folder``."""
    sums = _sums([folder / name for name in names])
    lines = [f"{is_}  {name}\n" for name, is_ in zip(names, sums, strict=True)]
    partial = folder / (layout.CHECKSUM_FILE + ".partial")
    partial.write_text("".join(lines), encoding="utf-8")
    os.replace(partial, folder / layout.CHECKSUM_FILE)


def read_list(folder: Path) -> dict[str, str]:
    """Names and sums as they are listed. Raises ``MissingFileError`` or ``DamagedFileError``."""
    path = folder / layout.CHECKSUM_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise MissingFileError(path, "the file is missing", "copy it too") from None
    except OSError as error:
        raise layout.unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise DamagedFileError(path, f"not a text ({error})", "copy the file again") from error
    parsed = [_LINE.fullmatch(line) for line in lines]
    listed = {match[2]: match[1] for match in parsed if match is not None}
    if None in parsed or not listed:
        raise DamagedFileError(path, "not a list of SHA-256 sums", "copy the file again")
    return listed


def differing(folder: Path, listed: Mapping[str, str]) -> list[str]:
    """Names of the files whose sum is another than listed, in the order of the list."""
    sums = _sums([folder / name for name in listed])
    return [name for name, found in zip(listed, sums, strict=True) if found != listed[name]]


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

"""Tensors of a model that is to be converted, by their stock names, one at a time.

Owns the names under which published checkpoints hold the two architectures: sharded folders,
fused or separate experts, a text model inside a composite one. Knows nothing of our layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference.checkpoint import format as layout
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError

_INDEX_FILE = "model.safetensors.index.json"
_IGNORED = re.compile(r"^(mtp\.|model\.visual\.|visual\.)")
_TEXT_PREFIX = "model.language_model."
_EXPERT = re.compile(r"^model\.layers\.\d+\.mlp\.experts\.")


class TensorSource(Protocol):
    """Where a conversion takes its tensors from."""

    def backbone_names(self) -> set[str]:
        """Stock names of all tensors that are no routed experts."""

    def backbone(self, name: str) -> Tensor:
        """One of them, in any float dtype."""

    def expert(self, layer: int, expert: int, projection: str) -> Tensor:
        """[2*intermediate, hidden] or [hidden, intermediate], any float dtype."""


class MemorySource:
    """A state dict with fused experts; ``path`` is what errors name."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self._tensors = tensors
        self._path = path

    def backbone_names(self) -> set[str]:
        """See ``TensorSource``."""
        return {name for name in self._tensors if not _EXPERT.match(name)}

    def backbone(self, name: str) -> Tensor:
        """See ``TensorSource``."""
        return self._tensors[name]

    def expert(self, layer: int, expert: int, projection: str) -> Tensor:
        """See ``TensorSource``. Raises ``ConfigMismatchError`` when there is none."""
        name = fused_name(layer, projection)
        fused = self._tensors.get(name)
        if fused is None or expert >= fused.shape[0]:
            raise _no_expert(self._path, name, expert)
        return fused[expert]


class FolderSource:
    """The ``.safetensors`` files of a folder, opened once and read slice by slice.

    Use as a context manager. Raises ``MissingFileError`` naming a shard that the index lists but
    the folder lacks, ``DamagedFileError`` for one that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._where: dict[str, tuple[Path, Any, str]] = {}
        try:
            for shard in _shards(folder):
                self._open(shard)
            self._check_index()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> FolderSource:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _open(self, shard: Path) -> None:
        try:
            opened = self._stack.enter_context(safe_open(shard, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise DamagedFileError(
                shard, f"cannot be read ({error})", "download the file again"
            ) from error
        for name in opened.keys():  # noqa: SIM118 - not a dict
            stock = stock_name(name)
            if stock is not None:
                self._where[stock] = (shard, opened, name)

    def _check_index(self) -> None:
        index = self._folder / _INDEX_FILE
        if not index.is_file():
            return
        for name, shard in layout.read_json(index).get("weight_map", {}).items():
            stock = stock_name(name)
            if stock is not None and stock not in self._where:
                raise MissingFileError(
                    self._folder / shard, f"tensor {name} is missing", "download the file again"
                )

    def backbone_names(self) -> set[str]:
        """See ``TensorSource``."""
        return {name for name in self._where if not _EXPERT.match(name)}

    def backbone(self, name: str) -> Tensor:
        """See ``TensorSource``."""
        shard, opened, stored = self._where[name]
        try:
            tensor: Tensor = opened.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise DamagedFileError(
                shard, f"{stored} cannot be read ({error})", "download the file again"
            ) from error
        return tensor

    def expert(self, layer: int, expert: int, projection: str) -> Tensor:
        """See ``TensorSource``. Reads the slice of one expert out of a fused tensor."""
        name = fused_name(layer, projection)
        if name not in self._where:
            parts = ("gate_proj", "up_proj") if projection == "gate_up_proj" else ("down_proj",)
            stem = f"model.layers.{layer}.mlp.experts.{expert}"
            return torch.cat([self._separate(f"{stem}.{part}.weight") for part in parts])
        shard, opened, stored = self._where[name]
        try:
            fused = opened.get_slice(stored)
            if expert >= fused.get_shape()[0]:
                raise _no_expert(shard, name, expert)
            tensor: Tensor = fused[expert]
        except (SafetensorError, OSError) as error:
            raise DamagedFileError(
                shard, f"{stored} cannot be read ({error})", "download the file again"
            ) from error
        return tensor

    def _separate(self, name: str) -> Tensor:
        if name not in self._where:
            raise ConfigMismatchError(
                self._folder / layout.CONFIG_FILE,
                f"it implies tensor {name}, which no file holds",
                "download the missing file, or the config.json of these weights",
            )
        return self.backbone(name)


def fused_name(layer: int, projection: str) -> str:
    """Stock name of the tensor that holds ``projection`` of all experts of ``layer``."""
    return f"model.layers.{layer}.mlp.experts.{projection}"


def stock_name(name: str) -> str | None:
    """The name in the text-only class; ``None`` for vision tower and multi-token prediction."""
    if _IGNORED.match(name):
        return None
    if name.startswith(_TEXT_PREFIX):
        return "model." + name.removeprefix(_TEXT_PREFIX)
    return name


def _no_expert(path: Path, name: str, expert: int) -> ConfigMismatchError:
    return ConfigMismatchError(
        path,
        f"{name} holds no expert {expert}, config.json counts more",
        "download weights and config.json of one model again",
    )


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX_FILE
    if index.is_file():
        names = sorted(set(layout.read_json(index).get("weight_map", {}).values()))
        for name in names:
            if not (folder / name).is_file():
                raise MissingFileError(
                    folder / name, f"the shard {_INDEX_FILE} lists is missing", "download it"
                )
        if names:
            return [folder / name for name in names]
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise MissingFileError(folder, "no .safetensors file", "download the weights again")
    return shards

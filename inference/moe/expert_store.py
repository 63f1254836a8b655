"""All routed experts of a model, packed INT4 in host memory.

Owns reading and checking the expert files and handing out one packed expert at a time.
Knows nothing of routing, slots or dequantisation: the cache above it decides what is
fetched, and the GPU engine pins the same tensors and copies from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference.checkpoint import format as layout
from inference.checkpoint.int4 import PackedInt4
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError


@dataclass(frozen=True)
class PackedExpert:
    """One expert of one layer. Tensors are shared with the store: do not modify."""

    gate_up_proj: PackedInt4
    down_proj: PackedInt4


class ExpertStore:
    """Packed experts by (layer, expert)."""

    def __init__(
        self,
        experts: dict[tuple[int, int], PackedExpert],
        *,
        layers: Sequence[int],
        num_experts: int,
        shape: layout.ExpertShape,
    ) -> None:
        self.layers = tuple(layers)
        self.num_experts = num_experts
        self.shape = shape
        self._experts = experts

    @classmethod
    def open(
        cls,
        model_dir: Path,
        routing: layout.RoutingConfig,
        *,
        layers: Sequence[int],
        shape: layout.ExpertShape,
    ) -> ExpertStore:
        """Read every expert file of ``model_dir`` and check names, shapes, dtypes and scales.

        ``layers`` are the indices of the layers that route. Raises ``CheckpointError``.
        """
        experts: dict[tuple[int, int], PackedExpert] = {}
        for expert, path in enumerate(layout.expert_paths(model_dir, routing)):
            for layer, packed in _read_file(path, layers, shape).items():
                experts[layer, expert] = packed
        return cls(experts, layers=layers, num_experts=routing.num_experts, shape=shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of all packed experts."""
        return self.shape.size_bytes * len(self._experts)

    def get(self, layer: int, expert: int) -> PackedExpert:
        """The packed tensors of one expert; no copy."""
        return self._experts[layer, expert]


def _read_file(
    path: Path, layers: Sequence[int], shape: layout.ExpertShape
) -> dict[int, PackedExpert]:
    if not path.is_file():
        raise MissingFileError(
            path, "the expert file is missing", "copy it again or convert the model again"
        )
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(path, f"cannot be read ({error})", "copy the file again") from error
    expected = len(layers) * len(layout.PROJECTIONS) * 2
    if len(names) > expected:
        raise ConfigMismatchError(
            path,
            f"{len(names)} tensors where config.json implies {expected}",
            "correct num_hidden_layers or convert the model again",
        )
    return {
        layer: PackedExpert(
            _packed(path, tensors, layer, "gate_up_proj", shape),
            _packed(path, tensors, layer, "down_proj", shape),
        )
        for layer in layers
    }


def _packed(
    path: Path, tensors: dict[str, Tensor], layer: int, projection: str, shape: layout.ExpertShape
) -> PackedInt4:
    wanted = {
        layout.qweight_name(layer, projection): (shape.qweight(projection), torch.int32),
        layout.scales_name(layer, projection): (shape.scales(projection), torch.float16),
    }
    for name, (size, dtype) in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise ConfigMismatchError(
                path, f"{name} is missing", "correct num_hidden_layers or convert again"
            )
        if tuple(tensor.shape) != size or tensor.dtype != dtype:
            raise ConfigMismatchError(
                path,
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"config.json implies {dtype} {size}",
                "correct config.json or convert the model again",
            )
    qweight, scales = (tensors[name] for name in wanted)
    if not bool(torch.isfinite(scales).all()):
        raise DamagedFileError(
            path,
            f"{layout.scales_name(layer, projection)} holds NaN or infinite values",
            "convert the model again",
        )
    return PackedInt4(qweight, scales)

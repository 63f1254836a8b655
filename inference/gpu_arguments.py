"""Command-line options of the GPU engine, the same for ``plan`` and ``bench``.

Owns their names and their reading into an ``EngineConfig`` and a ``ModelGeometry``. Knows
nothing of torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from inference.config import EngineConfig, parse_memory
from inference.geometry import SHAPES, ModelGeometry

DEFAULT_GROUP_SIZE = 128


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """``MODEL`` or ``--shape``, and the group size of a shape."""
    parser.add_argument("model", type=Path, nargs="?", help="a converted model folder")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="a published model, without files")
    parser.add_argument("--group-size", type=int, default=DEFAULT_GROUP_SIZE, help="of --shape")


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """``--device``; the limits beside it count on a GPU."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def add_limit_arguments(
    parser: argparse.ArgumentParser, *, max_model_len: int = 8192, sequences: bool = True
) -> None:
    """Memory limit, number formats and, with ``sequences``, context and number of sequences."""
    parser.add_argument("--gpu-memory-limit", type=memory, default="6GB", help="6GB is 6,000 MiB")
    if sequences:
        parser.add_argument("--max-model-len", type=int, default=max_model_len)
        parser.add_argument("--max-num-seqs", type=int, default=1)
    parser.add_argument("--backbone-dtype", choices=("fp16", "int8"), default="fp16")
    parser.add_argument("--lm-head-dtype", choices=("fp16", "int8", "int4"), default="fp16")
    parser.add_argument("--kv-cache-dtype", choices=("fp16", "fp8"), default="fp16")
    parser.add_argument("--prefill-chunk-tokens", type=int, default=1024)


def geometry_of(arguments: argparse.Namespace) -> ModelGeometry:
    """The geometry of the model or shape named. Raises ``CheckpointError`` or ``ValueError``."""
    if (arguments.model is None) == (arguments.shape is None):
        raise ValueError("name a model folder or a --shape, one of the two")
    if arguments.shape is not None:
        return ModelGeometry.of_shape(arguments.shape, group_size=arguments.group_size)
    return ModelGeometry.of_folder(arguments.model)


def config_of(arguments: argparse.Namespace, **fields: Any) -> EngineConfig:
    """The limits and the device named; ``fields`` rule over them. Raises ``ValueError``."""
    read = {name: getattr(arguments, name) for name in _FIELDS if hasattr(arguments, name)}
    return EngineConfig(**{**read, **fields})


def to_arguments(config: EngineConfig) -> list[str]:
    """The command line that ``config_of`` reads as ``config``."""
    arguments = []
    for name in _FIELDS:
        arguments += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
    return arguments


_FIELDS = (
    "device",
    "gpu_memory_limit",
    "max_model_len",
    "max_num_seqs",
    "backbone_dtype",
    "lm_head_dtype",
    "kv_cache_dtype",
    "prefill_chunk_tokens",
)


def memory(text: str) -> int:
    """An amount of memory as an argument; see ``parse_memory``."""
    try:
        return parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error

"""The layout of a model folder on disk: file names, tensor names, shapes and config keys.

Owns what is written where. Knows nothing of how tensors are quantised, cached or run.

::

    model.safetensors            backbone (everything but routed experts), fp16
    experts/expert_NN.safetensors  one routed expert, all layers, INT4:
        layers.{L}.gate_up_proj.qweight  int32 [2*intermediate, hidden/8]
        layers.{L}.gate_up_proj.scales   fp16  [2*intermediate, hidden/group_size]
        layers.{L}.down_proj.qweight     int32 [hidden, intermediate/8]
        layers.{L}.down_proj.scales      fp16  [hidden, intermediate/group_size]
    config.json                  transformers' config plus ``routing_config``
    generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja
    SHA256SUMS                     of all these; ``checksums`` owns it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import (
    ArchitectureError,
    ConfigMismatchError,
    DamagedFileError,
    MissingFileError,
)

BACKBONE_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
CHECKSUM_FILE = "SHA256SUMS"
SIDE_FILES = (GENERATION_CONFIG_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, CHAT_TEMPLATE_FILE)
"""Small files beside weights and config, copied as they are."""
EXPERT_FILES = "experts/expert_{:02d}.safetensors"

PROJECTIONS = ("gate_up_proj", "down_proj")
QWEN3_MOE = "qwen3_moe"
QWEN3_5_MOE = "qwen3_5_moe_text"
SUPPORTED_MODEL_TYPES = (QWEN3_MOE, QWEN3_5_MOE)
COMPOSITE_MODEL_TYPES = {"qwen3_5_moe": QWEN3_5_MOE}
"""Configs that hold the text model as ``text_config`` beside a vision tower."""
NIBBLES_PER_WORD = 8


@dataclass(frozen=True)
class Quantization:
    """How expert weights are stored. Only 4-bit symmetric is written and read."""

    bits: int = 4
    group_size: int = 32
    symmetric: bool = True


@dataclass(frozen=True)
class RoutingConfig:
    """The ``routing_config`` block of config.json."""

    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    expert_files: str = EXPERT_FILES
    quantization: Quantization = Quantization()

    def to_json(self) -> dict[str, Any]:
        """The block as it stands in config.json."""
        return {
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "norm_topk_prob": self.norm_topk_prob,
            "expert_files": self.expert_files,
            "quantization": {
                "bits": self.quantization.bits,
                "group_size": self.quantization.group_size,
                "symmetric": self.quantization.symmetric,
            },
        }


@dataclass(frozen=True)
class ExpertShape:
    """Shapes of one packed expert of one layer."""

    hidden_size: int
    intermediate_size: int
    group_size: int

    def dense(self, projection: str) -> tuple[int, int]:
        """``[rows, columns]`` of the dequantised matrix."""
        if projection == "gate_up_proj":
            return 2 * self.intermediate_size, self.hidden_size
        return self.hidden_size, self.intermediate_size

    def qweight(self, projection: str) -> tuple[int, int]:
        """``[rows, columns/8]`` of the int32 words."""
        rows, columns = self.dense(projection)
        return rows, columns // NIBBLES_PER_WORD

    def scales(self, projection: str) -> tuple[int, int]:
        """``[rows, columns/group_size]`` of the fp16 scales."""
        rows, columns = self.dense(projection)
        return rows, columns // self.group_size

    @property
    def size_bytes(self) -> int:
        """Bytes of one packed expert of one layer."""
        total = 0
        for projection in PROJECTIONS:
            words, scales = self.qweight(projection), self.scales(projection)
            total += 4 * words[0] * words[1] + 2 * scales[0] * scales[1]
        return total


def qweight_name(layer: int, projection: str) -> str:
    """Name of the packed words of ``projection`` in an expert file."""
    return f"layers.{layer}.{projection}.qweight"


def scales_name(layer: int, projection: str) -> str:
    """Name of the scales of ``projection`` in an expert file."""
    return f"layers.{layer}.{projection}.scales"


def expert_paths(model_dir: Path, routing: RoutingConfig) -> list[Path]:
    """The file of each expert. Raises ``ConfigMismatchError`` when there is one too many."""
    *paths, surplus = (
        model_dir / routing.expert_files.format(expert) for expert in range(routing.num_experts + 1)
    )
    if surplus.exists():
        raise ConfigMismatchError(
            surplus,
            f"config.json counts {routing.num_experts} experts but this file exists",
            "correct num_experts or remove the files of another model",
        )
    return paths


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ``MissingFileError`` or ``DamagedFileError``."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFileError(
            path, "the file is missing", "check the model folder or convert the model again"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(path, f"not valid JSON ({error})", "copy the file again") from error
    if not isinstance(data, dict):
        raise DamagedFileError(path, "not a JSON object", "copy the file again")
    return data


def unreadable(path: Path, error: OSError) -> DamagedFileError:
    """What to raise for a file that is there and that the system does not give."""
    return DamagedFileError(
        path, f"cannot be read ({error.strerror})", "check who may read it, or copy the file again"
    )


def read_config(model_dir: Path) -> dict[str, Any]:
    """Read config.json as the flat fields of the text model.

    Of a composite config the ``text_config`` is taken, with ``model_type`` one of
    ``SUPPORTED_MODEL_TYPES``. Whichever of the two expert-count keys is missing is filled in:
    transformers writes ``num_local_experts`` only, older tools read ``num_experts`` only.
    Raises ``MissingFileError``, ``DamagedFileError``, ``ArchitectureError`` or
    ``ConfigMismatchError``.
    """
    path = model_dir / CONFIG_FILE
    config = _text_fields(path, read_json(path))
    model_type = config.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ArchitectureError(
            path,
            f"model_type is {model_type!r}",
            f"this engine runs {', '.join(SUPPORTED_MODEL_TYPES)}",
        )
    counts = {config[key] for key in ("num_experts", "num_local_experts") if key in config}
    if len(counts) != 1:
        found = "missing" if not counts else f"both {sorted(counts)}"
        raise ConfigMismatchError(
            path, f"the number of experts is {found}", "set num_experts to the true count"
        )
    config["num_experts"] = config["num_local_experts"] = counts.pop()
    if model_type == QWEN3_5_MOE:
        # This architecture has no such field: it always divides by the sum of the k weights.
        config["norm_topk_prob"] = True
    return config


def _text_fields(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    model_type = config.get("model_type")
    if model_type not in COMPOSITE_MODEL_TYPES:
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise ConfigMismatchError(
            path, f"model_type is {model_type!r} without text_config", "copy the file again"
        )
    outer = ("tie_word_embeddings", "eos_token_id", "quantization_config", "routing_config")
    fields = {key: config[key] for key in outer if config.get(key) is not None}
    inner = {key: value for key, value in text.items() if value is not None or key not in fields}
    return {**fields, **inner, "model_type": COMPOSITE_MODEL_TYPES[model_type]}


def read_routing_config(model_dir: Path, config: dict[str, Any]) -> RoutingConfig:
    """The ``routing_config`` block, checked against the fields beside it.

    Raises ``ConfigMismatchError`` when the block is missing, says something else than the
    stock fields, or names a quantisation this engine does not read.
    """
    path = model_dir / CONFIG_FILE
    block = config.get("routing_config")
    if not isinstance(block, dict):
        raise ConfigMismatchError(
            path,
            "routing_config is missing",
            "this is not a converted folder: run python -m inference convert SRC OUT",
        )
    try:
        quantization = Quantization(**block.get("quantization", {}))
        fields = {key: value for key, value in block.items() if key != "quantization"}
        routing = RoutingConfig(**fields, quantization=quantization)
    except TypeError as error:
        raise ConfigMismatchError(
            path, f"routing_config has wrong keys ({error})", "convert the model again"
        ) from error
    for key in ("num_experts", "num_experts_per_tok", "norm_topk_prob"):
        if key in config and config[key] != getattr(routing, key):
            raise ConfigMismatchError(
                path,
                f"{key} is {config[key]} but routing_config says {getattr(routing, key)}",
                "make the two agree or convert the model again",
            )
    if quantization.bits != 4 or not quantization.symmetric or quantization.group_size % 8:
        raise ConfigMismatchError(
            path,
            f"quantization {block.get('quantization')} is not read",
            "use 4 bits, symmetric, group_size a multiple of 8",
        )
    return routing

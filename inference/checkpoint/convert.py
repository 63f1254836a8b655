"""Stock transformers MoE checkpoint or module -> our folder layout.

Owns the writing side of ``format``. Each file is written beside its place and renamed, and
config.json comes last: an interrupted conversion leaves no folder that looks whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from inference.checkpoint import awq, int4
from inference.checkpoint import format as layout
from inference.errors import (
    ArchitectureError,
    ConfigMismatchError,
    DamagedFileError,
    MissingFileError,
)

_EXPERT_TENSOR = re.compile(r"^model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)$")
_SIDE_FILES = (
    layout.GENERATION_CONFIG_FILE,
    layout.TOKENIZER_FILE,
    layout.TOKENIZER_CONFIG_FILE,
    layout.CHAT_TEMPLATE_FILE,
)
_FP16_MAX = 65504.0


@dataclass(frozen=True)
class ExportReport:
    """What was written. ``expert_error`` is the relative RMS error of INT4 rounding."""

    num_expert_files: int
    num_layers: int
    backbone_bytes: int
    expert_bytes: int
    expert_error: float


def convert(source: Path, out_dir: Path, *, group_size: int = 32) -> ExportReport:
    """Convert the checkpoint folder ``source``, stock or AWQ, into ``out_dir``.

    Tokenizer, chat template and generation config are copied. Raises ``CheckpointError``.
    """
    if source.resolve() == out_dir.resolve():
        raise ConfigMismatchError(out_dir, "source and target are the same", "name another OUT")
    config = layout.read_config(source)
    if "routing_config" in config:
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE, "the folder is converted already", "use it as it is"
        )
    if not any(source.glob("*.safetensors")):
        raise MissingFileError(source, "no .safetensors file", "download the weights again")
    model = _from_awq(source, config) if awq.is_awq(config) else _from_stock(source)
    report = export_model(model, out_dir, group_size=group_size)
    for name in _SIDE_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out_dir / name)
    return report


def _from_stock(source: Path) -> nn.Module:
    from transformers import Qwen3MoeForCausalLM

    try:
        model: nn.Module = Qwen3MoeForCausalLM.from_pretrained(source, dtype=torch.float32)
    except (OSError, RuntimeError, ValueError) as error:
        raise DamagedFileError(
            source, f"transformers cannot load it ({error})", "download the weights again"
        ) from error
    return model


def _from_awq(source: Path, config: dict[str, Any]) -> nn.Module:
    """The dense model of an AWQ folder: transformers 5 would leave its experts random."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    stock = {key: value for key, value in config.items() if key != "quantization_config"}
    model: Any = Qwen3MoeForCausalLM._from_config(
        Qwen3MoeConfig.from_dict(stock), dtype=torch.float32
    )
    try:
        loaded = model.load_state_dict(awq.read_dense(source, config), strict=False, assign=True)
    except RuntimeError as error:
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE, f"shapes disagree ({error})", "download the folder again"
        ) from error
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    wrong = sorted({*loaded.missing_keys, *loaded.unexpected_keys} - tied)
    if wrong:
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE,
            f"{len(wrong)} tensors are missing or unknown, {wrong[0]} among them",
            "download the folder again",
        )
    model.tie_weights()
    module: nn.Module = model
    return module


def export_model(model: nn.Module, out_dir: Path, *, group_size: int = 32) -> ExportReport:
    """Write ``model`` (a stock Qwen3MoeForCausalLM in any float dtype) into ``out_dir``.

    Writes weights, config.json and generation_config.json; other files there stay. The model is
    not modified. Raises ``CheckpointError`` when the model is of another kind, its values do not
    fit fp16, or its widths are no multiple of ``group_size``.
    """
    config: Any = model.config
    if config.model_type not in layout.SUPPORTED_MODEL_TYPES:
        raise ArchitectureError(
            out_dir,
            f"model_type is {config.model_type!r}",
            f"this engine runs {', '.join(layout.SUPPORTED_MODEL_TYPES)}",
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / layout.CONFIG_FILE).unlink(missing_ok=True)
    experts, backbone = _split(model, tied=bool(config.tie_word_embeddings))
    backbone_bytes = _write_backbone(backbone, out_dir)
    expert_bytes, error = _write_experts(experts, config.num_experts, group_size, out_dir)
    generation_config: Any = model.generation_config
    generation_config.save_pretrained(out_dir)
    routing = layout.RoutingConfig(
        num_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_tok,
        norm_topk_prob=bool(config.norm_topk_prob),
        quantization=layout.Quantization(group_size=group_size),
    )
    _write_config(config.to_dict(), routing, out_dir)
    return ExportReport(config.num_experts, len(experts), backbone_bytes, expert_bytes, error)


def _split(
    model: nn.Module, *, tied: bool
) -> tuple[dict[int, dict[str, Tensor]], dict[str, Tensor]]:
    """Expert tensors by layer and projection, and all other tensors by name."""
    experts: dict[int, dict[str, Tensor]] = {}
    backbone: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        match = _EXPERT_TENSOR.match(name)
        if match:
            experts.setdefault(int(match[1]), {})[match[2]] = tensor
        elif not (tied and name == "lm_head.weight"):
            backbone[name] = tensor
    return experts, backbone


def _write_backbone(backbone: Mapping[str, Tensor], out_dir: Path) -> int:
    half: dict[str, Tensor] = {}
    for name, tensor in backbone.items():
        if not bool((tensor.abs() <= _FP16_MAX).all()):
            raise DamagedFileError(
                out_dir / layout.BACKBONE_FILE,
                f"{name} holds NaN or values beyond fp16",
                "check the training run",
            )
        half[name] = tensor.detach().to("cpu", torch.float16).contiguous()
    _save(half, out_dir / layout.BACKBONE_FILE)
    return sum(tensor.numel() * 2 for tensor in half.values())


def _write_experts(
    experts: Mapping[int, Mapping[str, Tensor]], num_experts: int, group_size: int, out_dir: Path
) -> tuple[int, float]:
    """Write one file an expert; return bytes written and relative RMS rounding error."""
    total_bytes, square_error, square_sum = 0, 0.0, 0.0
    for expert in range(num_experts):
        tensors: dict[str, Tensor] = {}
        path = out_dir / layout.EXPERT_FILES.format(expert)
        for layer, projections in sorted(experts.items()):
            for projection in layout.PROJECTIONS:
                weight = projections[projection][expert].detach().to("cpu", torch.float32)
                try:
                    packed = int4.quantize(weight, group_size)
                except ValueError as error:
                    raise ConfigMismatchError(
                        path, f"layer {layer} {projection}: {error}", "choose another group_size"
                    ) from error
                tensors[layout.qweight_name(layer, projection)] = packed.qweight
                tensors[layout.scales_name(layer, projection)] = packed.scales
                total_bytes += packed.size_bytes
                square_error += float((int4.dequantize(packed) - weight).square().sum())
                square_sum += float(weight.square().sum())
        path.parent.mkdir(exist_ok=True)
        _save(tensors, path)
    return total_bytes, (square_error / square_sum) ** 0.5 if square_sum else 0.0


def _write_config(config: dict[str, Any], routing: layout.RoutingConfig, out_dir: Path) -> None:
    config = dict(config)
    config["num_experts"] = config["num_local_experts"] = routing.num_experts
    config["dtype"] = "float16"
    config["output_router_logits"] = False
    config["architectures"] = ["Qwen3MoeForCausalLM"]
    config["routing_config"] = routing.to_json()
    config.pop("_name_or_path", None)
    temporary = out_dir / (layout.CONFIG_FILE + ".partial")
    temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, out_dir / layout.CONFIG_FILE)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    temporary = path.with_name(path.name + ".partial")
    save_file(tensors, temporary, metadata={"format": "pt"})
    os.replace(temporary, path)

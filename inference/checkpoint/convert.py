"""Stock transformers MoE checkpoint or module -> our folder layout.

Owns the writing side of ``format``. Experts are read and written layer by layer, so memory holds
one of them at a time, not the model. Each file is written beside its place and renamed, and
config.json comes last, but for the checksums: an interrupted conversion leaves no folder that
looks whole.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inference.checkpoint import awq, checksums, int4
from inference.checkpoint import format as layout
from inference.checkpoint.backbone import backbone_shapes, routed_layers, transformers_config
from inference.checkpoint.source import FolderSource, MemorySource, TensorSource
from inference.checkpoint.streamed_file import StreamedFile
from inference.errors import (
    ArchitectureError,
    ConfigMismatchError,
    DamagedFileError,
)

_CLASS_NAMES = {
    layout.QWEN3_MOE: "Qwen3MoeForCausalLM",
    layout.QWEN3_5_MOE: "Qwen3_5MoeForCausalLM",
}
_FP16_MAX = 65504.0


@dataclass(frozen=True)
class ExportReport:
    """What was written. ``expert_error`` is the relative RMS error of INT4 rounding."""

    num_expert_files: int
    num_layers: int
    backbone_bytes: int
    expert_bytes: int
    expert_error: float


def convert(
    source: Path, out_dir: Path, *, group_size: int = 32, device: torch.device | str = "cpu"
) -> ExportReport:
    """Convert the checkpoint folder ``source``, stock or AWQ, into ``out_dir``.

    ``group_size`` 128 is meant for large models, 32 is finer. ``device`` does the rounding: a GPU
    is much faster. Tokenizer, chat template and generation config are copied. Raises
    ``CheckpointError``.
    """
    if source.resolve() == out_dir.resolve():
        raise ConfigMismatchError(out_dir, "source and target are the same", "name another OUT")
    fields = layout.read_config(source)
    if "routing_config" in fields:
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE, "the folder is converted already", "use it as it is"
        )
    from_awq = awq.is_awq(fields)
    if fields.get("quantization_config") and not from_awq:
        method = fields["quantization_config"].get("quant_method")
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE,
            f"weights are stored as {method}",
            "convert the bf16 checkpoint of the same model",
        )
    stock = {key: value for key, value in fields.items() if key != "quantization_config"}
    config = transformers_config(stock, source / layout.CONFIG_FILE)
    with ExitStack() as stack:
        tensors: TensorSource = (
            MemorySource(awq.read_dense(source, fields), source / layout.CONFIG_FILE)
            if from_awq
            else stack.enter_context(FolderSource(source))
        )
        report = _export(config, tensors, source, out_dir, group_size, torch.device(device))
    for name in layout.SIDE_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out_dir / name)
    checksums.write(out_dir)
    return report


def export_model(
    model: nn.Module,
    out_dir: Path,
    *,
    group_size: int = 32,
    device: torch.device | str = "cpu",
) -> ExportReport:
    """Write ``model`` (a stock text-only class in any float dtype) into ``out_dir``.

    Writes weights, config.json and generation_config.json; other files there stay, but for old
    checksums: call ``checksums.write`` when the folder is whole. The model is not modified. Raises
    ``CheckpointError`` when the model is of another kind, its values do not fit fp16, or its
    widths are no multiple of ``group_size``.
    """
    config: Any = model.config
    if config.model_type not in layout.SUPPORTED_MODEL_TYPES:
        raise ArchitectureError(
            out_dir,
            f"model_type is {config.model_type!r}",
            f"this engine runs {', '.join(layout.SUPPORTED_MODEL_TYPES)}",
        )
    tensors = MemorySource(model.state_dict(), out_dir)
    report = _export(config, tensors, out_dir, out_dir, group_size, torch.device(device))
    generation_config: Any = model.generation_config
    generation_config.save_pretrained(out_dir)
    return report


def _export(
    config: Any,
    tensors: TensorSource,
    source: Path,
    out_dir: Path,
    group_size: int,
    device: torch.device,
) -> ExportReport:
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in (layout.CONFIG_FILE, layout.CHECKSUM_FILE):
        (out_dir / name).unlink(missing_ok=True)
    backbone_bytes = _write_backbone(config, tensors, source, out_dir)
    shape = layout.ExpertShape(config.hidden_size, config.moe_intermediate_size, group_size)
    if config.hidden_size % group_size or config.moe_intermediate_size % group_size:
        width = config.hidden_size if config.hidden_size % group_size else shape.intermediate_size
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE,
            f"{width} columns are not a multiple of group_size {group_size}",
            "choose another group_size",
        )
    expert_bytes, error = _write_experts(config, tensors, source, out_dir, shape, device)
    routing = layout.RoutingConfig(
        num_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_tok,
        norm_topk_prob=bool(getattr(config, "norm_topk_prob", True)),
        quantization=layout.Quantization(group_size=group_size),
    )
    _write_config(config.to_dict(), routing, out_dir)
    num_layers = len(routed_layers(config))
    return ExportReport(config.num_experts, num_layers, backbone_bytes, expert_bytes, error)


def _write_backbone(config: Any, tensors: TensorSource, source: Path, out_dir: Path) -> int:
    shapes = backbone_shapes(config)
    found = tensors.backbone_names()
    if config.tie_word_embeddings:
        found.discard("lm_head.weight")
    missing, unexpected = shapes.keys() - found, found - shapes.keys()
    if missing or unexpected:
        what = f"{min(missing)} is missing" if missing else f"{min(unexpected)} is not expected"
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE,
            f"{what} ({len(missing)} tensors missing, {len(unexpected)} unexpected in all)",
            "download weights and config.json of one model again",
        )
    file = StreamedFile(
        out_dir / layout.BACKBONE_FILE,
        {name: (torch.float16, shape) for name, shape in shapes.items()},
    )
    try:
        for name, shape in shapes.items():
            file.write({name: _half(name, tensors.backbone(name), shape, source)})
        file.finish()
    finally:
        file.abandon()
    return file.size_bytes


def _half(name: str, tensor: Tensor, shape: tuple[int, ...], source: Path) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE,
            f"{name} is {tuple(tensor.shape)}, config.json implies {shape}",
            "download weights and config.json of one model again",
        )
    if not bool((tensor.abs() <= _FP16_MAX).all()):
        raise DamagedFileError(
            source, f"{name} holds NaN or values beyond fp16", "check the weights' origin"
        )
    return tensor.detach().to("cpu", torch.float16)


def _write_experts(
    config: Any,
    tensors: TensorSource,
    source: Path,
    out_dir: Path,
    shape: layout.ExpertShape,
    device: torch.device,
) -> tuple[int, float]:
    """Write one file an expert; return bytes written and relative RMS rounding error.

    A file holds the four tensors of a layer side by side, in the order they are used in.
    """
    layers = routed_layers(config)
    contents: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for layer in layers:
        for projection in layout.PROJECTIONS:
            contents[layout.qweight_name(layer, projection)] = (
                torch.int32,
                shape.qweight(projection),
            )
            contents[layout.scales_name(layer, projection)] = (
                torch.float16,
                shape.scales(projection),
            )
    paths = [out_dir / layout.EXPERT_FILES.format(index) for index in range(config.num_experts)]
    paths[0].parent.mkdir(exist_ok=True)
    square_error = square_sum = 0.0
    files: list[StreamedFile] = []
    try:
        for path in paths:
            files.append(StreamedFile(path, contents))
        for layer in layers:
            for expert, file in enumerate(files):
                for projection in layout.PROJECTIONS:
                    weight = tensors.expert(layer, expert, projection)
                    where = f"layer {layer} expert {expert} {projection}"
                    packed, error, total = _round(weight, shape, projection, where, source, device)
                    file.write(
                        {
                            layout.qweight_name(layer, projection): packed.qweight,
                            layout.scales_name(layer, projection): packed.scales,
                        }
                    )
                    square_error, square_sum = square_error + error, square_sum + total
        for file in files:
            file.finish()
    finally:
        for file in files:
            file.abandon()
    relative = (square_error / square_sum) ** 0.5 if square_sum else 0.0
    return sum(file.size_bytes for file in files), relative


def _round(
    weight: Tensor,
    shape: layout.ExpertShape,
    projection: str,
    where: str,
    source: Path,
    device: torch.device,
) -> tuple[int4.PackedInt4, float, float]:
    """The packed matrix, its squared error and the sum of its squares."""
    if tuple(weight.shape) != shape.dense(projection):
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE,
            f"{where} is {tuple(weight.shape)}, config.json implies {shape.dense(projection)}",
            "download weights and config.json of one model again",
        )
    dense = weight.detach().to(device, torch.float32)
    if not bool(torch.isfinite(dense).all()):
        raise DamagedFileError(
            source, f"{where} holds NaN or infinite values", "check the weights' origin"
        )
    packed = int4.quantize(dense, shape.group_size)
    error = (int4.dequantize(packed) - dense).square().sum()
    if not bool(torch.isfinite(packed.scales).all()):
        raise DamagedFileError(
            source, f"{where}: its scales do not fit fp16", "check the weights' origin"
        )
    return packed, float(error), float(dense.square().sum())


def _write_config(config: dict[str, Any], routing: layout.RoutingConfig, out_dir: Path) -> None:
    config = dict(config)
    config["num_experts"] = config["num_local_experts"] = routing.num_experts
    config["dtype"] = "float16"
    config["output_router_logits"] = False
    config["architectures"] = [_CLASS_NAMES[config["model_type"]]]
    config["routing_config"] = routing.to_json()
    config.pop("_name_or_path", None)
    temporary = out_dir / (layout.CONFIG_FILE + ".partial")
    temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, out_dir / layout.CONFIG_FILE)

"""AWQ folders, packed here by autoawq itself, read back bit for bit and converted."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from inference.benchmarks.random_model import build_stock_model, write_tokenizer
from inference.checkpoint import awq, convert, int4
from inference.checkpoint import format as layout
from inference.errors import ConfigMismatchError, MissingFileError
from tests.inference.conftest import TINY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="autoawq needs triton: Linux only")
GROUP = 32


def pack_with_autoawq(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """``weight`` [out, in] as autoawq stores it, and the dense matrix those codes stand for."""
    with warnings.catch_warnings(record=True):
        from awq.modules.linear.gemm import WQLinear_GEMM
    groups = weight.detach().float().reshape(weight.shape[0], -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = ((high - low) / 15).clamp(min=1e-4).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    codes = (groups / scales + zeros).round().clamp(0, 15)
    dense = ((codes - zeros) * scales).reshape(weight.shape)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = dense
    packed = WQLinear_GEMM.from_linear(
        linear, 4, GROUP, scales=scales.squeeze(-1).t(), zeros=zeros.squeeze(-1).t()
    )
    return {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales")}, dense


@pytest.fixture
def awq_dir(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """An AWQ folder of the tiny model, experts only, and its dense expert matrices by name."""
    source = tmp_path / "awq"
    source.mkdir()
    model = build_stock_model(TINY)
    tensors: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if ".mlp.experts." not in name:
            tensors[name] = tensor.clone()
            continue
        prefix, kind = name.rsplit(".", 1)
        for expert, matrix in enumerate(tensor):
            halves = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
            for part, half in zip(
                ("gate", "up") if len(halves) == 2 else ("down",), halves, strict=True
            ):
                stem = f"{prefix}.{expert}.{part}_proj"
                packed, dense[stem] = pack_with_autoawq(half)
                tensors |= {f"{stem}.{key}": value for key, value in packed.items()}
    tensors.pop("lm_head.weight", None)
    save_file({k: v.contiguous() for k, v in tensors.items()}, source / "model.safetensors")
    config: dict[str, Any] = model.config.to_dict()
    config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "version": "gemm",
        "zero_point": True,
    }
    (source / layout.CONFIG_FILE).write_text(json.dumps(config))
    write_tokenizer(source, vocab_size=TINY.vocab_size)
    return source, dense


def test_what_autoawq_packed_is_read_exactly(awq_dir: tuple[Path, dict[str, Tensor]]) -> None:
    source, dense = awq_dir
    read = awq.read_dense(source, layout.read_config(source))
    for layer in range(TINY.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts"
        for expert in range(TINY.num_experts):
            gate_up = torch.cat([dense[f"{prefix}.{expert}.{p}_proj"] for p in ("gate", "up")])
            assert torch.equal(read[f"{prefix}.gate_up_proj"][expert], gate_up)
            down = dense[f"{prefix}.{expert}.down_proj"]
            assert torch.equal(read[f"{prefix}.down_proj"][expert], down)


def test_an_awq_folder_converts(awq_dir: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    source, dense = awq_dir
    report = convert.convert(source, tmp_path / "out")
    assert report.num_expert_files == TINY.num_experts
    stored = load_file(tmp_path / "out" / "experts" / "expert_03.safetensors")
    packed = int4.PackedInt4(
        stored["layers.1.down_proj.qweight"], stored["layers.1.down_proj.scales"]
    )
    original = dense["model.layers.1.mlp.experts.3.down_proj"]
    error = (int4.dequantize(packed) - original).norm() / original.norm()
    assert error < 0.1  # rounding again, from asymmetric to symmetric levels
    assert report.expert_error < 0.1


def test_a_missing_half_is_named(awq_dir: tuple[Path, dict[str, Tensor]]) -> None:
    source, _ = awq_dir
    path = source / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("model.layers.0.mlp.experts.2.up_proj.qzeros")
    save_file(tensors, path)
    with pytest.raises(MissingFileError, match=r"experts\.2\.up_proj\.qzeros"):
        awq.read_dense(source, layout.read_config(source))


def test_a_missing_expert_is_named(awq_dir: tuple[Path, dict[str, Tensor]]) -> None:
    source, _ = awq_dir
    path = source / "model.safetensors"
    stem = "model.layers.0.mlp.experts.2.up_proj"
    save_file({k: v for k, v in load_file(path).items() if not k.startswith(stem)}, path)
    with pytest.raises(ConfigMismatchError, match=r"layers\.0\.mlp\.experts holds 23 matrices"):
        awq.read_dense(source, layout.read_config(source))


def test_other_versions_are_refused(awq_dir: tuple[Path, dict[str, Tensor]]) -> None:
    source, _ = awq_dir
    config = layout.read_config(source)
    config["quantization_config"]["version"] = "gemv"
    with pytest.raises(ConfigMismatchError, match="gemm"):
        awq.read_dense(source, config)

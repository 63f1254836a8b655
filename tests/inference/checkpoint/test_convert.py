from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from inference.benchmarks.random_model import ModelShape, build_stock_model, write_tokenizer
from inference.checkpoint import convert, int4
from inference.errors import ArchitectureError, CheckpointError, ConfigMismatchError
from tests.inference.conftest import TINY


def test_one_file_an_expert_with_all_layers(tiny_model_dir: Path) -> None:
    files = sorted(path.name for path in (tiny_model_dir / "experts").iterdir())
    assert files == [f"expert_{index:02d}.safetensors" for index in range(8)]
    with safe_open(tiny_model_dir / "experts" / "expert_07.safetensors", framework="pt") as file:
        shapes = {name: tuple(file.get_tensor(name).shape) for name in file.keys()}  # noqa: SIM118
    assert len(shapes) == 3 * 2 * 2
    assert shapes["layers.2.gate_up_proj.qweight"] == (64, 8)
    assert shapes["layers.2.gate_up_proj.scales"] == (64, 2)
    assert shapes["layers.2.down_proj.qweight"] == (64, 4)
    assert shapes["layers.2.down_proj.scales"] == (64, 1)


def test_backbone_is_fp16_without_experts_and_without_a_tied_head(tiny_model_dir: Path) -> None:
    tensors = load_file(tiny_model_dir / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert not any(".experts." in name for name in tensors)
    assert "lm_head.weight" not in tensors
    assert "model.layers.0.mlp.gate.weight" in tensors


def test_config_carries_both_expert_counts_and_the_routing_block(tiny_model_dir: Path) -> None:
    config = json.loads((tiny_model_dir / "config.json").read_text())
    assert config["num_experts"] == config["num_local_experts"] == 8
    assert config["output_router_logits"] is False
    assert config["routing_config"] == {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "expert_files": "experts/expert_{:02d}.safetensors",
        "quantization": {"bits": 4, "group_size": 32, "symmetric": True},
    }


def test_stored_experts_are_the_rounded_originals(tiny_model_dir: Path) -> None:
    original = build_stock_model(TINY).model.layers[1].mlp.experts.down_proj[5]
    tensors = load_file(tiny_model_dir / "experts" / "expert_05.safetensors")
    packed = int4.PackedInt4(
        tensors["layers.1.down_proj.qweight"], tensors["layers.1.down_proj.scales"]
    )
    assert torch.equal(int4.dequantize(packed), int4.round_trip(original, 32))


def test_a_stock_folder_converts_like_the_module(tmp_path: Path, tiny_model_dir: Path) -> None:
    build_stock_model(TINY).save_pretrained(tmp_path / "stock")
    write_tokenizer(tmp_path / "stock", vocab_size=TINY.vocab_size)
    report = convert.convert(tmp_path / "stock", tmp_path / "out")
    assert report.num_expert_files == 8
    assert report.num_layers == 3
    assert 0.0 < report.expert_error < 0.1
    assert (tmp_path / "out" / "tokenizer.json").exists()
    for name in ("model.safetensors", "experts/expert_03.safetensors"):
        ours, theirs = load_file(tmp_path / "out" / name), load_file(tiny_model_dir / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_exporting_twice_over_the_same_folder_works_and_leaves_no_partial_file(
    tmp_path: Path,
) -> None:
    model = build_stock_model(TINY)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    convert.export_model(model, tmp_path)
    convert.export_model(model, tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_converted_folder_is_not_converted_again(tmp_path: Path, tiny_model_dir: Path) -> None:
    with pytest.raises(ConfigMismatchError, match="converted already"):
        convert.convert(tiny_model_dir, tmp_path)


def test_source_and_target_must_differ(tiny_model_dir: Path) -> None:
    with pytest.raises(ConfigMismatchError, match="name another OUT"):
        convert.convert(tiny_model_dir, tiny_model_dir)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with pytest.raises(ArchitectureError, match=r"llama.*qwen3_moe"):
        convert.export_model(LlamaForCausalLM(config), tmp_path / "out")


def test_widths_that_do_not_fit_the_group_are_refused(tmp_path: Path) -> None:
    model = build_stock_model(ModelShape(**{**vars(TINY), "moe_intermediate_size": 24}))
    with pytest.raises(ConfigMismatchError, match=r"24 columns.*group_size"):
        convert.export_model(model, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_values_beyond_fp16_are_refused(tmp_path: Path) -> None:
    model = build_stock_model(TINY)
    with torch.no_grad():
        model.model.norm.weight[0] = 1e6
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds NaN or values beyond"):
        convert.export_model(model, tmp_path)

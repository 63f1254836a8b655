"""Qwen3.5-MoE checkpoints as they are published: composite, fused, sharded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference.benchmarks.random_model import build_stock_model, write_tokenizer
from inference.checkpoint import convert, int4
from inference.checkpoint import format as layout
from inference.checkpoint.loader import load_model
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError
from tests.inference.conftest import TINY_HYBRID

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as published: composite config, 3 shards, vision and MTP tensors beside."""
    folder = tmp_path_factory.mktemp("published")
    model = build_stock_model(TINY_HYBRID)
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor.to(torch.bfloat16)
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    tensors["lm_head.weight"] = model.lm_head.weight.detach().to(torch.bfloat16).clone()
    tensors["mtp.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(8, 64, 64)
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(8, 3)
    names = sorted(tensors)
    weight_map = {}
    for number in range(3):
        shard = f"model-0000{number + 1}-of-00003.safetensors"
        part = {name: tensors[name].contiguous() for name in names[number::3]}
        save_file(part, folder / shard)
        weight_map.update(dict.fromkeys(part, shard))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    text = model.config.to_dict()
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "vision_config": {"depth": 1},
        "tie_word_embeddings": False,
    }
    (folder / layout.CONFIG_FILE).write_text(json.dumps(config))
    write_tokenizer(folder, vocab_size=TINY_HYBRID.vocab_size)
    return folder


@pytest.fixture
def copy(tmp_path: Path, published: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "copy"))


def shard_of(folder: Path, name: str) -> Path:
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    return folder / weight_map[name]


def edit(folder: Path, name: str, change: Any) -> None:
    path = shard_of(folder, name)
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def bf16_model() -> dict[str, Tensor]:
    state = build_stock_model(TINY_HYBRID).state_dict()
    return {name: tensor.to(torch.bfloat16).float() for name, tensor in state.items()}


def test_a_published_folder_becomes_ours(published: Path, tmp_path: Path) -> None:
    report = convert.convert(published, tmp_path / "out")
    assert (report.num_expert_files, report.num_layers) == (8, 4)
    assert 0 < report.expert_error < 0.1
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "qwen3_5_moe_text"
    assert config["architectures"] == ["Qwen3_5MoeForCausalLM"]
    assert config["routing_config"]["norm_topk_prob"] is True
    expected = bf16_model()
    backbone = load_file(tmp_path / "out" / "model.safetensors")
    assert backbone.keys() == {name for name in expected if ".mlp.experts." not in name}
    assert "model.layers.0.mlp.shared_expert.gate_proj.weight" in backbone
    assert "model.layers.0.mlp.shared_expert_gate.weight" in backbone
    for name, tensor in backbone.items():
        assert torch.equal(tensor, expected[name].half()), name
    stored = load_file(tmp_path / "out" / "experts" / "expert_06.safetensors")
    for layer in range(4):
        for projection in layout.PROJECTIONS:
            packed = int4.PackedInt4(
                stored[layout.qweight_name(layer, projection)],
                stored[layout.scales_name(layer, projection)],
            )
            original = expected[f"model.layers.{layer}.mlp.experts.{projection}"][6]
            assert torch.equal(int4.dequantize(packed), int4.round_trip(original, 32))
    assert load_model(tmp_path / "out").config.model_type == "qwen3_5_moe_text"


def test_the_four_tensors_of_a_layer_lie_side_by_side(published: Path, tmp_path: Path) -> None:
    """A reader may take one expert of one layer with a single read."""
    convert.convert(published, tmp_path)
    path = tmp_path / "experts" / "expert_00.safetensors"
    header = json.loads(path.read_bytes()[8:].split(b"}}")[0] + b"}}")
    end = header["layers.1.gate_up_proj.qweight"]["data_offsets"][0]
    for name in ("gate_up_proj.qweight", "gate_up_proj.scales", "down_proj.qweight"):
        start, next_start = header[f"layers.1.{name}"]["data_offsets"]
        assert start == end
        end = next_start
    assert header["layers.1.down_proj.scales"]["data_offsets"][0] == end


def test_groups_of_64_are_written_when_asked(published: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigMismatchError, match=r"32 columns .*group_size 64.*another"):
        convert.convert(published, tmp_path, group_size=64)
    convert.convert(published, tmp_path, group_size=16)
    with safe_open(tmp_path / "experts" / "expert_00.safetensors", framework="pt") as file:
        assert file.get_tensor("layers.0.down_proj.scales").shape == (64, 2)
    assert load_model(tmp_path).store.shape.group_size == 16


def test_a_missing_shard_is_named(copy: Path, tmp_path: Path) -> None:
    (copy / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(MissingFileError) as caught:
        convert.convert(copy, tmp_path / "out")
    assert caught.value.path.name == "model-00002-of-00003.safetensors"
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_tensor_the_index_lists_but_no_shard_holds_is_named(copy: Path, tmp_path: Path) -> None:
    name = "model.language_model.layers.2.linear_attn.A_log"
    edit(copy, name, lambda tensors: tensors.pop(name))
    with pytest.raises(MissingFileError, match=r"layers\.2\.linear_attn\.A_log is missing"):
        convert.convert(copy, tmp_path / "out")


def test_a_truncated_shard_is_named(copy: Path, tmp_path: Path) -> None:
    shard = copy / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(DamagedFileError) as caught:
        convert.convert(copy, tmp_path / "out")
    assert caught.value.path == shard


def test_nan_in_an_expert_is_found_and_nothing_is_left(copy: Path, tmp_path: Path) -> None:
    name = "model.language_model.layers.1.mlp.experts.down_proj"

    def damage(tensors: dict[str, Tensor]) -> None:
        tensors[name][5, 3, 3] = float("nan")

    edit(copy, name, damage)
    with pytest.raises(DamagedFileError, match=r"layer 1 expert 5 down_proj holds NaN"):
        convert.convert(copy, tmp_path / "out")
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert left == ["model.safetensors"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": 9, "num_local_experts": 9}, r"gate\.weight is \(8, 64\)"),
        ({"num_hidden_layers": 5, "layer_types": None}, "is missing"),
        ({"num_hidden_layers": 3, "layer_types": None}, "is not expected"),
        ({"linear_num_value_heads": 6}, "config.json implies"),
        ({"moe_intermediate_size": 64}, "config.json implies"),
        ({"hidden_size": "wide"}, "transformers refuses"),
    ],
)
def test_a_config_of_another_model_is_explained(
    copy: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["text_config"].update(change)
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigMismatchError, match=words):
        convert.convert(copy, tmp_path / "out")


def test_a_composite_config_without_text_config_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe"}))
    with pytest.raises(ConfigMismatchError, match="without text_config"):
        convert.convert(copy, tmp_path / "out")


def test_an_fp8_checkpoint_is_refused_by_name(copy: Path, tmp_path: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigMismatchError, match=r"stored as fp8; convert the bf16"):
        convert.convert(copy, tmp_path / "out")


def test_what_the_stock_class_saves_converts_too(published: Path, tmp_path: Path) -> None:
    model = build_stock_model(TINY_HYBRID).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "stock", max_shard_size="200KB")
    assert len(list((tmp_path / "stock").glob("*.safetensors"))) > 2
    convert.convert(tmp_path / "stock", tmp_path / "ours")
    convert.convert(published, tmp_path / "same")
    for name in ("model.safetensors", "experts/expert_03.safetensors"):
        first, second = load_file(tmp_path / "ours" / name), load_file(tmp_path / "same" / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)

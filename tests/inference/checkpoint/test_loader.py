"""Every way a folder can be wrong is one typed error that names the file and the remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.checkpoint.loader import load_model
from inference.errors import (
    ArchitectureError,
    CheckpointError,
    ConfigMismatchError,
    DamagedFileError,
    MissingFileError,
)


@pytest.fixture
def folder(tmp_path: Path, tiny_model_dir: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_a_whole_folder_loads_without_expert_parameters(tiny_model_dir: Path) -> None:
    loaded = load_model(tiny_model_dir)
    assert not any(".experts." in name for name, _ in loaded.model.named_parameters())
    assert loaded.store.size_bytes == 3 * 8 * loaded.store.shape.size_bytes
    assert loaded.cache.num_slots == 8
    assert not loaded.model.training


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "experts/expert_03.safetensors"]
)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(MissingFileError) as caught:
        load_model(folder)
    assert caught.value.path == folder / name
    assert "convert the model again" in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "experts/expert_03.safetensors"])
@pytest.mark.parametrize("length", [0, 100, -1000])
def test_a_truncated_file_is_named(folder: Path, name: str, length: int) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:length])
    with pytest.raises(DamagedFileError) as caught:
        load_model(folder)
    assert caught.value.path == folder / name
    assert "copy the file again" in str(caught.value)


def test_config_that_is_not_json_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"config\.json: not valid JSON"):
        load_model(folder)


def test_another_architecture_is_refused(folder: Path) -> None:
    edit_config(folder, lambda config: config.update(model_type="mixtral"))
    with pytest.raises(ArchitectureError, match=r"'mixtral'; this engine runs qwen3_moe"):
        load_model(folder)


def test_nan_scales_are_found(folder: Path) -> None:
    path = folder / "experts" / "expert_05.safetensors"

    def break_scale(tensors: dict[str, torch.Tensor]) -> None:
        tensors["layers.1.down_proj.scales"][3, 0] = float("nan")

    edit_tensors(path, break_scale)
    with pytest.raises(DamagedFileError, match=r"expert_05.*layers\.1\.down_proj\.scales"):
        load_model(folder)


def test_nan_in_the_backbone_is_found(folder: Path) -> None:
    def break_norm(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][0] = float("inf")

    edit_tensors(folder / "model.safetensors", break_norm)
    with pytest.raises(DamagedFileError, match=r"model\.norm\.weight holds NaN or infinite"):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 128}, "config.json implies"),
        ({"moe_intermediate_size": 64}, "config.json implies"),
        ({"num_hidden_layers": 4}, "is missing"),
        ({"num_hidden_layers": 2}, "is not expected"),
        ({"vocab_size": 641}, "config.json implies"),
        ({"num_experts": 16}, "number of experts is both"),
        ({"num_experts_per_tok": 3}, "routing_config says 2"),
        ({"norm_topk_prob": False}, "routing_config says True"),
        ({"routing_config": None}, "routing_config is missing"),
    ],
)
def test_config_that_disagrees_with_the_rest_is_explained(
    folder: Path, change: dict[str, Any], words: str
) -> None:
    edit_config(folder, lambda config: config.update(change))
    with pytest.raises(ConfigMismatchError, match=words.replace(".", r"\.")):
        load_model(folder)


def test_fewer_experts_than_files_is_a_disagreement(folder: Path) -> None:
    def shrink(config: dict[str, Any]) -> None:
        config.update(num_experts=4, num_local_experts=4)
        config["routing_config"]["num_experts"] = 4

    edit_config(folder, shrink)
    with pytest.raises(CheckpointError, match=r"config\.json implies|counts 4 experts"):
        load_model(folder)


@pytest.mark.parametrize("change", [{"bits": 8}, {"symmetric": False}, {"group_size": 12}])
def test_a_quantisation_we_do_not_read_is_refused(folder: Path, change: dict[str, Any]) -> None:
    edit_config(folder, lambda config: config["routing_config"]["quantization"].update(change))
    with pytest.raises(ConfigMismatchError, match="is not read"):
        load_model(folder)


def test_either_expert_count_alone_is_enough(folder: Path) -> None:
    edit_config(folder, lambda config: config.pop("num_experts"))
    assert load_model(folder).config.num_experts == 8
    edit_config(
        folder, lambda config: (config.pop("num_local_experts"), config.update(num_experts=8))
    )
    assert load_model(folder).config.num_experts == 8


def test_fewer_slots_than_experts_per_token_are_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="raise expert_cache_slots"):
        load_model(tiny_model_dir, expert_cache_slots=1)

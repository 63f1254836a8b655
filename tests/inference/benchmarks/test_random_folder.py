from __future__ import annotations

from pathlib import Path

import torch

from inference.benchmarks.random_folder import write_random_folder
from inference.benchmarks.random_model import tiny_qwen3_5_moe_config, tiny_qwen3_moe_config
from inference.config import EngineConfig
from inference.geometry import ModelGeometry
from inference.llm import LLM
from inference.protocol import Message
from inference.sampling_params import SamplingParams


def test_a_written_folder_answers(tmp_path: Path) -> None:
    size = write_random_folder(tmp_path / "m", tiny_qwen3_moe_config(), group_size=32)
    files = list(tmp_path.rglob("*.safetensors"))
    assert len(files) == 9
    assert size < sum(path.stat().st_size for path in files) < 1.2 * size
    assert not list(tmp_path.rglob("*.partial"))
    with LLM(tmp_path / "m", config=EngineConfig(max_num_seqs=1, num_threads=1)) as llm:
        output = llm.chat([Message("user", "你好")], params=SamplingParams(max_tokens=4))
    assert output.completion_tokens == 4


def test_both_architectures_and_equal_seeds(tmp_path: Path) -> None:
    config = tiny_qwen3_5_moe_config()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_random_folder(tmp_path / name, config, group_size=32, seed=seed, num_threads=2)
    geometry = ModelGeometry.of_folder(tmp_path / "a")
    assert geometry.num_linear_layers == 3
    assert geometry.group_size == 32

    def expert(name: str) -> bytes:
        return (tmp_path / name / "experts" / "expert_03.safetensors").read_bytes()

    assert expert("a") == expert("b") != expert("c")


def test_scales_are_finite_and_sized_for_their_width(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_random_folder(tmp_path, tiny_qwen3_moe_config(), group_size=32)
    tensors = load_file(tmp_path / "experts" / "expert_00.safetensors")
    scales = tensors["layers.0.gate_up_proj.scales"]
    assert scales.dtype is torch.float16
    # Uniform around 1 / (4.6 * sqrt(64)).
    assert 0.012 < float(scales.float().mean()) < 0.042

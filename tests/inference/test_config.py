from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.config import MIB, EngineConfig, GenerationConfig, parse_memory
from inference.errors import ConfigMismatchError


def write(folder: Path, generation: dict[str, Any] | None, config: dict[str, Any]) -> None:
    base = {"model_type": "qwen3_moe", "num_experts": 4}
    (folder / "config.json").write_text(json.dumps({**base, **config}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))


def test_sampling_defaults_are_read(tmp_path: Path) -> None:
    generation = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "eos_token_id": [5, 6],
    }
    write(tmp_path, generation, {"eos_token_id": 1})
    read = GenerationConfig.read(tmp_path)
    assert read == GenerationConfig(0.6, 0.95, 20, 0.0, 1.0, (5, 6))


def test_without_do_sample_decoding_is_greedy(tmp_path: Path) -> None:
    write(tmp_path, {"temperature": 0.6}, {"eos_token_id": 7})
    read = GenerationConfig.read(tmp_path)
    assert (read.temperature, read.eos_token_ids) == (0.0, (7,))


def test_no_generation_config_at_all(tmp_path: Path) -> None:
    write(tmp_path, None, {"eos_token_id": None})
    assert GenerationConfig.read(tmp_path) == GenerationConfig()


def test_a_wrong_type_names_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"do_sample": True, "top_p": "high"}, {})
    with pytest.raises(ConfigMismatchError, match=r"generation_config\.json: a value has"):
        GenerationConfig.read(tmp_path)


@pytest.mark.parametrize("name", ["max_model_len", "max_num_seqs", "prefill_chunk_tokens"])
def test_limits_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{name: 0})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GB", 6000 * MIB),
        ("6.5gb", 6500 * MIB),
        ("5900MiB", 5900 * MIB),
        ("5900 MB", 5900 * MIB),
        ("6GiB", 6144 * MIB),
        ("1048576", MIB),
    ],
)
def test_memory_is_read_as_nvidia_smi_shows_it(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "six", "6TB", "-1GB", "6 G B"])
def test_what_is_no_amount_of_memory_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="write 6GB, 5900MiB or bytes"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "tpu"),
        ("backbone_dtype", "int4"),
        ("lm_head_dtype", "bf16"),
        ("kv_cache_dtype", "int8"),
        ("gpu_memory_limit", 0),
        ("router_gumbel_temperature", -1.0),
        ("router_fatigue_penalty", float("nan")),
    ],
)
def test_values_of_the_gpu_engine_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{name: value})

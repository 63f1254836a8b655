from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig, GenerationConfig
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

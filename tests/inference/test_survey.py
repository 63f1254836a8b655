from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from inference.config import MIB, EngineConfig
from inference.errors import DamagedFileError, MemoryPlanError, MissingFileError
from inference.llm import LLM
from inference.survey import survey


def test_it_counts_what_the_loader_finds(tiny_model_dir: Path) -> None:
    found = survey(tiny_model_dir, EngineConfig())
    with LLM(tiny_model_dir) as llm:
        store = llm.runner.expert_cache.store  # type: ignore[union-attr]
    assert found["num_files"] == 9
    assert found["expert_bytes"] == store.size_bytes
    assert (found["num_experts"], found["routed_layers"]) == (8, 3)
    # Two of eight experts in every layer.
    assert found["token_bytes"] == store.size_bytes / 4
    assert found["resident_share"] == 1.0
    assert "memory_plan" not in found


def test_on_a_gpu_it_plans_the_memory(tiny_model_dir: Path) -> None:
    found = survey(tiny_model_dir, EngineConfig(device="cuda", max_num_seqs=1))
    assert found["memory_plan"]["num_slots"] == 24
    with pytest.raises(MemoryPlanError):
        survey(tiny_model_dir, EngineConfig(device="cuda", gpu_memory_limit=100 * MIB))


def test_a_copy_that_broke_off_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "m"))
    short = folder / "experts" / "expert_05.safetensors"
    short.write_bytes(short.read_bytes()[:-10])
    with pytest.raises(DamagedFileError) as caught:
        survey(folder, EngineConfig())
    assert caught.value.path == short
    short.unlink()
    with pytest.raises(MissingFileError):
        survey(folder, EngineConfig())

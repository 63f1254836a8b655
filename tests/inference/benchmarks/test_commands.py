from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference.__main__ import main
from inference.benchmarks.commands import shape_config
from inference.geometry import SHAPES, ModelGeometry


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    record: dict[str, object] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return record


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_random_weights_have_the_sizes_that_are_planned(name: str) -> None:
    config = shape_config(name).to_dict()
    assert ModelGeometry.from_config(config) == ModelGeometry.of_shape(name)


def test_cache_of_a_shape_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "cache", "--shape", "qwen3-30b-a3b", "--slots", "16,64"]
    assert main([*arguments, "--routing", "generated:skew=0.6,reuse=0.3"]) == 0
    record = last_json(capsys)
    assert record["slots"] == [16, 64]
    (rates,) = record["hit_rates"].values()  # type: ignore[attr-defined]
    assert 0.3 < rates[0] < rates[1] < 1


def test_cache_of_a_folder_on_the_cpu(
    tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "cache", str(tiny_model_dir), "--slots", "2", "--new-tokens", "4"]
    assert main(arguments) == 0
    assert last_json(capsys)["slots"] == [2]


def test_a_shape_on_the_cpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--shape", "qwen3-30b-a3b"]) == 1
    assert "--device cuda" in capsys.readouterr().err


def test_start_times_a_process(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "start", str(tiny_model_dir), "--max-model-len", "512"]) == 0
    record = last_json(capsys)
    stages = [record[name] for name in ("imported_s", "loaded_s", "warm_s", "first_token_s")]
    assert stages == sorted(stages)  # type: ignore[type-var]
    assert stages[0] > 0  # type: ignore[operator]
    assert record["cached_bytes"] == sum(
        path.stat().st_size for path in tiny_model_dir.rglob("*") if path.is_file()
    )


def test_a_start_that_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "start", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "error: the engine did not start; its message stands above\n"
    )


def test_write_makes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inference.benchmarks import commands
    from inference.benchmarks.random_model import tiny_qwen3_moe_config

    monkeypatch.setattr(commands, "shape_config", lambda name: tiny_qwen3_moe_config())
    arguments = ["--shape", "qwen3-30b-a3b", "--group-size", "32"]
    assert main(["bench", "write", str(tmp_path / "m"), *arguments]) == 0
    assert ModelGeometry.of_folder(tmp_path / "m").num_experts == 8


DEMO = Path(__file__).parents[3] / "models" / "demo-moe"


def measured(*arguments: str) -> dict[str, Any]:
    """The last line of a measurement in a process of its own, as a user starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "inference", "bench", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    record: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return record


@pytest.mark.gpu
def test_latency_on_a_gpu_keeps_the_limit_it_is_given() -> None:
    limits = ["--gpu-memory-limit", "2GB", "--context", "1024", "--new-tokens", "64"]
    record = measured("latency", str(DEMO), "--device", "cuda", "--prefetch", "both", *limits)
    assert 100 < record["peak_mb"] <= 2000
    assert record["samples_per_s"] >= 20
    assert record["decode_tok_s"] > 0
    assert record["slower"]["prefetch"] is not record["prefetch"]
    assert record["floor_ms"] <= record["decode_ms"]


@pytest.mark.gpu
def test_start_on_a_gpu() -> None:
    limits = ["--gpu-memory-limit", "2GB", "--max-model-len", "1024"]
    record = measured("start", str(DEMO), "--device", "cuda", *limits)
    assert 0 < record["loaded_s"] < record["warm_s"] < record["first_token_s"]

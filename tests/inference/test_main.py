from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inference.__main__ import main
from inference.benchmarks.random_model import build_stock_model
from tests.inference.conftest import TINY


def last_json(text: str) -> dict[str, object]:
    data: dict[str, object] = json.loads(text.strip().splitlines()[-1])
    return data


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_stock_model(TINY).save_pretrained(tmp_path / "stock")
    assert main(["convert", str(tmp_path / "stock"), str(tmp_path / "out")]) == 0
    assert "8 expert files of 3 layers" in capsys.readouterr().out
    assert (tmp_path / "out" / "config.json").exists()


def test_chat(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(tiny_model_dir), "你好", "--max-tokens", "8"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "8 generated" in captured.err


def test_doctor_on_a_good_folder(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tiny_model_dir), "--json"]) == 0
    report = last_json(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["model"]["num_experts"] == 8  # type: ignore[index]
    assert main(["doctor", str(tiny_model_dir)]) == 0
    assert "8 experts in 3 layers" in capsys.readouterr().out


def test_doctor_wants_a_gpu_only_when_asked(
    tiny_model_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["doctor", str(tiny_model_dir), "--json"]) == 0
    gpu = last_json(capsys.readouterr().out)["gpu"]
    assert gpu["remedy"]  # type: ignore[index]
    assert main(["doctor", str(tiny_model_dir), "--device", "cuda", "--json"]) == 1
    report = last_json(capsys.readouterr().out)
    assert (report["ok"], report["model"]) == (False, None)
    assert main(["doctor"]) == 0
    assert f"{gpu['error']}; {gpu['remedy']}" in capsys.readouterr().out  # type: ignore[index]


def test_doctor_on_a_broken_folder_names_file_and_remedy(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "m"))
    (folder / "experts" / "expert_02.safetensors").unlink()
    assert main(["doctor", str(folder), "--json"]) == 1
    report = last_json(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["model"]["file"].endswith("expert_02.safetensors")  # type: ignore[index]
    assert report["model"]["remedy"]  # type: ignore[index]


def test_an_engine_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(tmp_path), "x"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) == 1


def test_bench_latency_ends_with_json(
    tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--prompt-tokens", "150", "--new-tokens", "6", "--batch", "2", "--repeats", "1"]
    assert main(["bench", "latency", str(tiny_model_dir), *sizes]) == 0
    report = last_json(capsys.readouterr().out)
    assert report["prompt_tokens"] >= 150  # type: ignore[operator]
    assert report["decode_ms"] > 0  # type: ignore[operator]
    assert report["second_prompt_new_tokens"] < 60  # type: ignore[operator]


def test_plan_prints_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--gpu-memory-limit", "6GB", "--max-model-len", "8192", "--max-num-seqs", "1"]
    assert main(["plan", "--shape", "qwen3.6-35b-a3b", *limits]) == 0
    table = capsys.readouterr().out
    for part in (
        "CUDA context",
        "backbone",
        "head",
        "KV page pool",
        "recurrent state",
        "workspace",
        "expert slots",
        "a layer",
        "pinned host RAM",
        "free",
    ):
        assert part in table
    assert main(["plan", "--shape", "qwen3.6-35b-a3b", *limits, "--json"]) == 0
    report = last_json(capsys.readouterr().out)
    assert report["gpu_memory_limit"] == 6000 * 2**20
    assert len(report["slots_per_layer"]) == 40  # type: ignore[arg-type]


def test_plan_of_a_folder(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tiny_model_dir), "--gpu-memory-limit", "1GB", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["slots_per_layer"] == [8, 8, 8]


def test_a_plan_that_does_not_fit_names_the_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--shape", "qwen3.6-35b-a3b", "--max-num-seqs", "8"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: 8 sequences of 8192 tokens with backbone_dtype fp16 need ")
    assert "use max_num_seqs <= 2 or " in error
    assert "or backbone_dtype int8 together with lm_head_dtype int8" in error


@pytest.mark.parametrize("names", [[], ["models/demo-moe", "--shape", "qwen3-30b-a3b"]])
def test_plan_wants_one_model(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *names]) == 1
    assert "one of the two" in capsys.readouterr().err


def test_protocol_and_parser_need_no_torch() -> None:
    """Other processes import the vocabulary without paying for torch."""
    code = (
        "import sys, inference.protocol, inference.tool_parser, inference.sampling_params, "
        "inference.errors, inference.config, inference.tokenizer, inference.memory_plan, "
        "inference.plan_table, inference.gpu_arguments\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

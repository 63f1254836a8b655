"""What the engine's own self-check prints is what ours reads, also on broken machines."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
import torch

from app.doctor import engine_checks
from app.doctor.findings import Finding
from app.settings import Settings
from app.store.presence import Presence
from inference import doctor
from inference.benchmarks import nvidia_smi
from inference.benchmarks.link import LinkSpeed
from inference.benchmarks.nvidia_smi import PcieState
from inference.config import MIB, EngineConfig
from inference.errors import MeasurementError

DEMO = Path("models/demo-moe")
CARD_BYTES = 6144 * MIB
FULL = LinkSpeed("card", 25.0, 400.0, PcieState(4, 16, 4, 16))

Told = Callable[[Settings], dict[str, Finding]]


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.fixture
def gpu(configured: Settings) -> Settings:
    return dataclasses.replace(
        configured, device="cuda", model_dir=DEMO, gpu_memory_limit=5000 * MIB, max_num_seqs=1
    )


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with a GPU, as torch, nvidia-smi and the driver show it to the engine."""
    shown = SimpleNamespace(
        name="RTX", major=8, minor=6, total_memory=CARD_BYTES, multi_processor_count=20
    )
    shown.free, shown.link = 5900 * MIB, FULL

    def link(device: str, **_: object) -> LinkSpeed:
        if isinstance(shown.link, Exception):
            raise shown.link
        assert isinstance(shown.link, LinkSpeed)
        return shown.link

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: shown)
    monkeypatch.setattr(nvidia_smi, "free_bytes", lambda: shown.free)
    monkeypatch.setattr(nvidia_smi, "driver_version", lambda: "580.95.05")
    monkeypatch.setattr(doctor, "measure_link", link)
    monkeypatch.setattr(doctor, "_GPU_PACKAGES", ())
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    return shown


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Our findings from what the engine's real self-check says in this process."""

    def run(settings: Settings) -> dict[str, Finding]:
        config = EngineConfig(
            device=settings.device,
            gpu_memory_limit=settings.gpu_memory_limit,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
        )
        report = doctor.examine(settings.model_dir, config, load=False)
        (tmp_path / "record").write_text(json.dumps(report))
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\ncat {tmp_path}/record\n")
        script.chmod(0o755)
        monkeypatch.setattr("app.doctor.programs.sys.executable", str(script))
        return by_name(engine_checks.check(settings))

    return run


def test_the_real_engine_in_a_process_of_its_own(configured: Settings) -> None:
    found = by_name(engine_checks.check(dataclasses.replace(configured, model_dir=DEMO)))
    assert {name: finding.level for name, finding in found.items()} == {
        "engine": "ok",
        "gpu": "skip",
        "model": "ok",
        "model_memory": "ok",
    }
    assert "38 个文件的 SHA-256 都对" in found["model"].fact


def test_a_whole_gpu_machine(gpu: Settings, card: SimpleNamespace, told: Told) -> None:
    found = told(gpu)
    assert {finding.level for finding in found.values()} == {"ok"}
    parts = {"gpu", "gpu_memory", "pcie", "model", "memory_plan", "model_memory"}
    assert found.keys() == {"engine", *parts}
    for part in ("RTX", "8.6", "580.95.05"):
        assert part in found["gpu"].fact
    assert "PCIe 4.0 x16，有负载时实测 25.0 GB/s" in found["pcie"].fact
    assert "全部专家都在显存里" in found["pcie"].fact


def test_every_option_is_one_of_the_engines(gpu: Settings) -> None:
    from inference.__main__ import _parser

    arguments = _parser().parse_args(engine_checks._arguments(gpu)[1:])
    assert (arguments.no_load, arguments.json, arguments.device) == (True, True, "cuda")
    assert arguments.gpu_memory_limit == gpu.gpu_memory_limit
    assert arguments.max_model_len == gpu.max_model_len


def test_no_gpu(
    gpu: Settings, card: SimpleNamespace, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = told(gpu)
    assert (found["gpu"].level, "nvidia-container-toolkit" in found["gpu"].remedy) == ("fail", True)
    assert found["model"].level == "ok"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "PROFILES=gpu" in told(gpu)["gpu"].remedy


def test_a_card_that_is_too_old(gpu: Settings, card: SimpleNamespace, told: Told) -> None:
    card.major, card.minor = 6, 1
    found = told(gpu)["gpu"]
    assert (found.level, "sm_75" in found.remedy) == ("fail", True)


def test_a_limit_above_the_card(gpu: Settings, card: SimpleNamespace, told: Told) -> None:
    found = told(dataclasses.replace(gpu, gpu_memory_limit=8000 * MIB))["gpu_memory"]
    assert (found.level, "6144MiB" in found.remedy) == ("fail", True)


def test_others_hold_the_memory(
    gpu: Settings, card: SimpleNamespace, told: Told, redis_client: redis.Redis
) -> None:
    card.free = 1000 * MIB
    found = told(gpu)["gpu_memory"]
    assert (found.level, "nvidia-smi" in found.remedy) == ("fail", True)
    ours = {"gpu_memory_bytes": 4900 * MIB}
    with Presence(redis_client, "turns", lambda: ours):
        found = told(gpu)["gpu_memory"]
    assert (found.level, "4,900 MiB" in found.fact) == ("ok", True)


def test_a_model_that_does_not_fit(gpu: Settings, card: SimpleNamespace, told: Told) -> None:
    found = told(dataclasses.replace(gpu, gpu_memory_limit=700 * MIB))["memory_plan"]
    assert (found.level, "HUTONG_GPU_MEMORY_LIMIT=" in found.remedy) == ("fail", True)


def test_a_link_slower_than_the_slot(gpu: Settings, card: SimpleNamespace, told: Told) -> None:
    card.link = LinkSpeed("card", 3.0, 400.0, PcieState(3, 4, 4, 16))
    found = told(gpu)["pcie"]
    assert found.level == "warn"
    assert "PCIe 3.0 x4" in found.fact
    assert "PCIe 4.0 x16" in found.remedy
    card.link = MeasurementError("the GPU has no 128 MiB free")
    assert told(gpu)["pcie"].level == "skip"


def test_too_little_may_be_locked(
    gpu: Settings, card: SimpleNamespace, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * MIB, 8 * MIB))
    found = told(gpu)["model_memory"]
    assert (found.level, "LimitMEMLOCK" in found.remedy) == ("fail", True)
    assert "最多只能锁定 8 MiB" in found.fact


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_too_little_host_memory(
    device: str,
    gpu: Settings,
    card: SimpleNamespace,
    told: Told,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_checks, "available_bytes", lambda: 10 * MIB)
    settings = dataclasses.replace(gpu, device=device)
    found = told(settings)["model_memory"]
    assert (found.level, "可用 10 MiB" in found.fact) == ("fail", True)
    assert "HUTONG_MODEL_DIR" in found.remedy
    with Presence(redis_client, "turns"):
        assert told(settings)["model_memory"].level == "ok"


def test_what_a_link_means_for_the_speed() -> None:
    model = {"token_bytes": 100_000_000, "resident_share": 0.75}
    effect = engine_checks._effect({"link_gb_s": 10.0}, model)
    assert "每个 token 取 25.0 MB，最快 400 token/秒" in effect


def test_a_damaged_model(configured: Settings, tmp_path: Path, told: Told) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    backbone = folder / "model.safetensors"
    backbone.write_bytes(backbone.read_bytes()[:-1])
    found = told(dataclasses.replace(configured, model_dir=folder))["model"]
    assert (found.level, "model.safetensors" in found.fact) == ("fail", True)
    assert "HUTONG_MODEL_DIR" in found.remedy


def test_a_flipped_bit(configured: Settings, tmp_path: Path, told: Told) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    expert = folder / "experts" / "expert_07.safetensors"
    data = bytearray(expert.read_bytes())
    data[-1] ^= 1
    expert.write_bytes(data)
    found = told(dataclasses.replace(configured, model_dir=folder))["model"]
    assert (found.level, "expert_07.safetensors" in found.fact) == ("fail", True)
    assert "重新复制" in found.remedy


def test_a_model_without_checksums(configured: Settings, tmp_path: Path, told: Told) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    (folder / "SHA256SUMS").unlink()
    found = told(dataclasses.replace(configured, model_dir=folder))["model"]
    assert (found.level, "sha256sum" in found.remedy) == ("warn", True)
    command = found.remedy[found.remedy.index("sha256sum") : found.remedy.index("，一起复制")]
    subprocess.run(command, shell=True, cwd=folder, check=True)
    assert told(dataclasses.replace(configured, model_dir=folder))["model"].level == "ok"


def test_an_engine_that_does_not_answer(
    configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.doctor.programs.sys.executable", "/bin/false")
    (found,) = engine_checks.check(configured)
    assert (found.name, found.level, "make setup" in found.remedy) == ("engine", "fail", True)

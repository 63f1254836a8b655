from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.benchmarks import memory_sampler
from inference.benchmarks.memory_sampler import MemoryReader, MemorySampler, sample
from inference.config import MIB
from inference.errors import MeasurementError

FAKE_NVML = '''
"""A stand-in for nvidia-ml-py: the memory in use stands in a file."""
import os
from types import SimpleNamespace


class NVMLError(Exception):
    pass


def nvmlInit():
    pass


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetMemoryInfo(handle):
    with open(os.environ["FAKE_NVML_USED"]) as file:
        return SimpleNamespace(used=int(file.read() or 0))


def nvmlDeviceGetComputeRunningProcesses(handle):
    return []
'''


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake NVML for this process and the sampling one; returns the file with the bytes used."""
    (tmp_path / "pynvml.py").write_text(FAKE_NVML)
    used = tmp_path / "used"
    used.write_text("0")
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), root]))
    monkeypatch.setenv("FAKE_NVML_USED", str(used))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    return used


def write(path: Path, size_bytes: int) -> None:
    """Replace the file at once, so that a reader never sees half of it."""
    path.with_suffix(".new").write_text(str(size_bytes))
    path.with_suffix(".new").replace(path)


def test_a_short_peak_is_seen_by_the_other_process(nvml: Path) -> None:
    write(nvml, 700 * MIB)
    with MemorySampler(os.getpid(), baseline_bytes=500 * MIB) as sampler:
        time.sleep(0.1)
        write(nvml, 5500 * MIB)
        time.sleep(0.15)
        write(nvml, 900 * MIB)
        time.sleep(0.1)
    peak = sampler.peak
    assert peak is not None
    assert peak.peak_bytes == 5000 * MIB
    assert peak.samples_per_s >= 20
    assert peak.source == "NVML, device above what others hold"


def test_memory_of_the_process_itself_is_preferred(
    nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(nvml, 900 * MIB)
    reader = MemoryReader(7, 100 * MIB)
    assert reader() == 800 * MIB
    import pynvml  # the fake

    own: list[Any] = [
        SimpleNamespace(pid=6, usedGpuMemory=MIB),
        SimpleNamespace(pid=7, usedGpuMemory=3 * MIB),
    ]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: own)
    assert reader() == 3 * MIB
    assert reader.source == "NVML, process"


def test_without_nvml_the_command_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(
        '#!/bin/sh\ncase "$2" in *compute-apps*) echo "41, 17";; *) echo 1234;; esac\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert memory_sampler.used_bytes() == 1234 * MIB
    assert MemoryReader(41, 0)() == 17 * MIB
    assert MemoryReader(42, 1000 * MIB)() == 234 * MIB


@pytest.mark.parametrize("visible", ["1", "1,0", "GPU-5ca1ab1e"])
def test_the_card_is_the_one_that_cuda_shows(
    visible: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(
        '#!/bin/sh\ncase "$1" in --id=1|--id=GPU-5ca1ab1e) echo 77;; *) echo 1234;; esac\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert memory_sampler.used_bytes() == 77 * MIB


def test_without_a_driver_the_sampler_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeasurementError, match="neither NVML nor nvidia-smi answers"):
        memory_sampler.used_bytes()


def test_sampling_counts_its_rate() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    values = iter([1, 9, 3])
    peak = sample(lambda: next(values, 2), stop, interval_s=0.01, source="test")
    assert peak.peak_bytes == 9
    assert peak.samples >= 5
    assert peak.longest_gap_s < 0.2


def test_the_sampling_process_needs_no_torch() -> None:
    code = (
        "import sys, inference.benchmarks.memory_sampler, inference.benchmarks.ballast\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

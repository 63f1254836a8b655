from __future__ import annotations

from typing import Any

import pytest

from inference.benchmarks import link
from inference.benchmarks.cuda_driver import CudaDriver
from inference.benchmarks.link import measure_driver, measure_link
from inference.benchmarks.nvidia_smi import PcieState
from inference.config import MIB
from inference.errors import MeasurementError
from tests.inference.benchmarks.fake_cuda import LINK_BYTES_S, MEMORY_BYTES_S, FakeCuda


def test_copies_are_timed_on_the_cpu() -> None:
    speed = measure_link("cpu", size_bytes=8 * MIB)
    assert speed.device == "cpu"
    # Between a very slow and an impossibly fast memory.
    assert 0.1 < speed.link_gb_s < 1000
    assert speed.memory_gb_s == 2 * speed.link_gb_s


def test_speeds_are_bytes_over_the_time_of_events() -> None:
    speed = measure_driver(CudaDriver(FakeCuda()), 64 * MIB)
    assert speed.device == "Fake H200"
    assert speed.link_gb_s == pytest.approx(LINK_BYTES_S / 1e9, rel=0.01)
    assert speed.memory_gb_s == pytest.approx(2 * MEMORY_BYTES_S / 1e9, rel=0.01)


def test_the_link_is_looked_at_while_copies_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    copied: list[int] = []
    copy = cuda.cuMemcpyHtoDAsync_v2

    def counted(*arguments: Any) -> int:
        copied.append(1)
        return copy(*arguments)

    def looked() -> PcieState:
        return PcieState(4, len(copied), 4, 16)

    monkeypatch.setattr(cuda, "cuMemcpyHtoDAsync_v2", counted)
    monkeypatch.setattr(link, "pcie_state", looked)
    seen = measure_driver(CudaDriver(cuda), 256 * MIB).pcie
    # A second's worth of copies was given before the look, and none after it.
    assert seen.width == len(copied) > LINK_BYTES_S / (256 * MIB)


def test_a_full_card_is_named() -> None:
    cuda = FakeCuda()
    cuda.free = 600 * MIB
    with pytest.raises(MeasurementError, match="no 512 MiB free"):
        measure_driver(CudaDriver(cuda), 256 * MIB)


@pytest.mark.gpu
def test_a_gpu_reads_its_own_memory_faster_than_the_link() -> None:
    speed = measure_link("cuda", size_bytes=128 * MIB)
    assert speed.memory_gb_s > speed.link_gb_s > 1

from __future__ import annotations

import subprocess
import sys

import pytest

from inference.benchmarks.ballast import Ballast, fill
from inference.benchmarks.cuda_driver import CudaDriver
from inference.config import MIB
from inference.errors import MeasurementError
from tests.inference.benchmarks.fake_cuda import CARD_BYTES, CONTEXT_BYTES, FakeCuda


@pytest.mark.parametrize("leave", [0, 6000 * MIB, 6000 * MIB + 12345, CARD_BYTES])
def test_only_the_wanted_rest_stays_free(leave: int) -> None:
    cuda = FakeCuda()
    held = fill(CudaDriver(cuda), leave)
    assert cuda.free == CARD_BYTES - CONTEXT_BYTES - held
    if leave < CARD_BYTES - CONTEXT_BYTES:
        assert leave <= cuda.free < leave + 2 * MIB
    else:
        assert held == 0


def test_a_failing_call_is_named() -> None:
    cuda = FakeCuda()
    cuda.device_error = 100
    with pytest.raises(MeasurementError, match="cuDeviceGet failed with CUDA error 100"):
        CudaDriver(cuda)


def test_without_a_driver_the_process_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inference.benchmarks.ballast", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        assert done.stdout.startswith("holding ")
    else:
        assert "CUDA" in done.stderr
        with pytest.raises(MeasurementError, match="the ballast did not start"), Ballast(MIB):
            pass

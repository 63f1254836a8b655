from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest

from inference.benchmarks.ballast import Ballast, CudaDriver, fill
from inference.config import MIB

CARD_BYTES = 143_000 * MIB
CONTEXT_BYTES = 517 * MIB


class FakeCuda:
    """libcuda of a card of which the context takes a part; allocations round up to 2 MiB."""

    def __init__(self) -> None:
        self.free = CARD_BYTES
        self.device_error = 0

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return self.device_error

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.free -= CONTEXT_BYTES
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        ctypes.cast(free, ctypes.POINTER(ctypes.c_size_t))[0] = self.free
        return 0

    def cuMemAlloc_v2(self, address: Any, size: ctypes.c_size_t) -> int:
        rounded = -(-size.value // (2 * MIB)) * 2 * MIB
        if rounded > self.free:
            return 2
        self.free -= rounded
        return 0


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
    with pytest.raises(RuntimeError, match="cuDeviceGet failed with CUDA error 100"):
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
        with pytest.raises(RuntimeError, match="the ballast did not start"), Ballast(MIB):
            pass

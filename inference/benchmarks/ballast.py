"""Holds the rest of a larger card, so that a memory limit is real.

Owns a process that allocates GPU memory until only a given amount is free, and keeps it. Talks to
the CUDA driver directly: no torch, half a second to start. ``python -m
inference.benchmarks.ballast LEAVE_BYTES`` is that process: one line ``holding HELD FREE`` on
standard output, and the memory goes back when its standard input closes.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import TracebackType
from typing import Any

from inference.config import MIB

_PIECES = (1024 * MIB, 128 * MIB, 16 * MIB, 2 * MIB)
_STOP_TIMEOUT_S = 30.0


class CudaDriver:
    """The few calls of libcuda that a ballast needs, on the first device."""

    def __init__(self, library: Any = None) -> None:
        """Make a context. Raises ``RuntimeError`` without a driver or device."""
        try:
            self._cuda = library or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RuntimeError(f"no CUDA driver ({error})") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def free_bytes(self) -> int:
        """Free memory of the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size_bytes: int) -> bool:
        """Take memory for as long as the process lives; False when there is not enough."""
        address = ctypes.c_uint64()
        result = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return int(result) == 0

    def _call(self, name: str, *arguments: Any) -> None:
        result = int(getattr(self._cuda, name)(*arguments))
        if result:
            raise RuntimeError(f"{name} failed with CUDA error {result}")


def fill(driver: CudaDriver, leave_bytes: int) -> int:
    """Allocate until at most ``leave_bytes`` are free, to within 2 MiB; returns the bytes taken."""
    held = 0
    for piece in _PIECES:
        while driver.free_bytes() >= leave_bytes + piece and driver.allocate(piece):
            held += piece
    return held


class Ballast:
    """A process that leaves ``leave_bytes`` of the card free; use as a context manager.

    Start it before the process at hand makes its CUDA context: the context counts.
    """

    def __init__(self, leave_bytes: int) -> None:
        self.leave_bytes = leave_bytes
        self.held_bytes = 0
        self.free_bytes = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Ballast:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inference.benchmarks.ballast", str(self.leave_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if len(words) != 3 or words[0] != "holding":
            self._process.kill()
            self._process.communicate()
            raise RuntimeError("the ballast did not start; its message stands above")
        self.held_bytes, self.free_bytes = int(words[1]), int(words[2])
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        try:
            self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def main(arguments: list[str]) -> int:
    """The process that holds the memory."""
    try:
        driver = CudaDriver()
        held = fill(driver, int(arguments[0]))
        free = driver.free_bytes()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"holding {held} {free}", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

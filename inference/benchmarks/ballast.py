"""Holds the rest of a larger card, so that a memory limit is real.

Owns a process that allocates GPU memory until only a given amount is free, and keeps it; it needs
no torch and half a second to start. ``python -m
inference.benchmarks.ballast LEAVE_BYTES`` is that process: one line ``holding HELD FREE`` on
standard output, and the memory goes back when its standard input closes.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType

from inference.benchmarks.cuda_driver import CudaDriver
from inference.config import MIB
from inference.errors import MeasurementError

_PIECES = (1024 * MIB, 128 * MIB, 16 * MIB, 2 * MIB)
_STOP_TIMEOUT_S = 30.0


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
            raise MeasurementError("the ballast did not start; its message stands above")
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
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"holding {held} {free}", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

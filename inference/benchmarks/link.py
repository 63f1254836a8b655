"""Speed of the link to the GPU and of its memory, measured on the spot.

Owns the copies and their timing. A GPU is measured by a process of its own, so that the one at
hand has no CUDA context before its engine counts what that takes. Knows nothing of models. On a
CPU the link is a copy within host memory, which keeps the tables complete but says nothing of a
GPU. ``python -m inference.benchmarks.link`` prints the record as one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal

from inference.benchmarks.cuda_driver import CudaDriver
from inference.benchmarks.nvidia_smi import PcieState, pcie_state
from inference.config import MIB
from inference.errors import MeasurementError

SIZE_BYTES = 256 * MIB
_REPEATS = 8
_LOAD_S = 1.0


@dataclass(frozen=True)
class LinkSpeed:
    """Measured speeds in GB/s (1e9 bytes): pinned host to device, and device memory.

    The memory speed counts bytes read and bytes written of a copy within the device. ``pcie`` was
    read while copies ran.
    """

    device: str
    link_gb_s: float
    memory_gb_s: float
    pcie: PcieState = field(default_factory=PcieState)


def measure_link(device: Literal["cpu", "cuda"], *, size_bytes: int = SIZE_BYTES) -> LinkSpeed:
    """Best of several copies of ``size_bytes``. Raises ``MeasurementError`` without a GPU."""
    if device == "cpu":
        return _measure_host(size_bytes)
    done = subprocess.run(
        [sys.executable, "-m", "inference.benchmarks.link", str(size_bytes)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MeasurementError("the link could not be measured; its message stands above")
    record = json.loads(done.stdout)
    return LinkSpeed(**{**record, "pcie": PcieState(**record["pcie"])})


def measure_driver(driver: CudaDriver, size_bytes: int) -> LinkSpeed:
    """The copies on a GPU; takes twice ``size_bytes`` of its memory for good."""
    there, other = driver.allocate(size_bytes), driver.allocate(size_bytes)
    if not (there and other):
        raise MeasurementError(f"the GPU has no {2 * size_bytes // MIB} MiB free")
    host = driver.allocate_pinned(size_bytes)

    def best(copy: Callable[[], None]) -> float:
        return min(driver.seconds(copy) for _ in range(_REPEATS))

    def fetch() -> None:
        driver.copy_from_host(there, host, size_bytes)

    link_s = best(fetch)
    memory_s = best(lambda: driver.copy_within(other, there, size_bytes))
    return LinkSpeed(
        driver.device_name,
        size_bytes / link_s / 1e9,
        2 * size_bytes / memory_s / 1e9,
        _pcie_under_load(driver, fetch, link_s),
    )


def _pcie_under_load(driver: CudaDriver, fetch: Callable[[], None], fetch_s: float) -> PcieState:
    """The state of the link while the device works off the copies it was given."""
    seen = []

    def work() -> None:
        for _ in range(math.ceil(_LOAD_S / fetch_s)):
            fetch()
        seen.append(pcie_state())

    driver.seconds(work)
    return seen[0]


def _measure_host(size_bytes: int) -> LinkSpeed:
    source, target = (ctypes.create_string_buffer(size_bytes) for _ in range(2))
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        ctypes.memmove(target, source, size_bytes)
        seconds.append(time.perf_counter() - start)
    speed = size_bytes / min(seconds) / 1e9
    return LinkSpeed("cpu", speed, 2 * speed)


def main(arguments: list[str]) -> int:
    """The process that measures."""
    try:
        speed = measure_driver(CudaDriver(), int(arguments[0]) if arguments else SIZE_BYTES)
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(speed)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

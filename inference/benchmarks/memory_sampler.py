"""Peak GPU memory of a process, read many times a second by another process.

Owns the reading through NVML (nvidia-smi where the module is missing) and the sampling process,
which holds no CUDA context and does not share the interpreter of what is measured. Knows nothing
of plans or models. ``python -m inference.benchmarks.memory_sampler PID BASELINE INTERVAL`` is
the sampling process: one JSON line on standard output once its standard input closes.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from inference.benchmarks.nvidia_smi import first_card, rows
from inference.config import MIB
from inference.errors import MeasurementError

INTERVAL_S = 0.01
_STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MemoryPeak:
    """What a sampler saw. ``source`` says whose memory was read and how."""

    peak_bytes: int
    samples: int
    samples_per_s: float
    longest_gap_s: float
    source: str


class MemoryReader:
    """Bytes of GPU memory of one process, or of the whole device above a baseline.

    Some systems do not tell which process holds what; then everything above ``baseline_bytes``
    (what others held before the process began) counts as its own.
    """

    def __init__(self, pid: int, baseline_bytes: int) -> None:
        """Raises ``MeasurementError`` when neither NVML nor nvidia-smi answers."""
        self._pid = pid
        self._baseline = baseline_bytes
        self.used_bytes, self._process_bytes, how = _open()
        known = self._process_bytes(pid) is not None
        self.source = f"{how}, {'process' if known else 'device above what others hold'}"
        self._by_process = known

    def __call__(self) -> int:
        """Bytes now. A process NVML did not know at first may appear later."""
        own = self._process_bytes(self._pid)
        if own is not None:
            if not self._by_process:
                self._by_process = True
                self.source = f"{self.source.split(',')[0]}, process"
            return own
        return max(0, self.used_bytes() - self._baseline)


def used_bytes() -> int:
    """Bytes of the whole device in use now. Raises ``MeasurementError`` without a driver."""
    return _open()[0]()


def _open() -> tuple[Callable[[], int], Callable[[int], int | None], str]:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return _by_command()
    try:
        pynvml.nvmlInit()
        card = first_card()
        if card.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(card))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(card)
    except pynvml.NVMLError as error:
        raise MeasurementError(f"NVML does not answer ({error})") from error

    def process(pid: int) -> int | None:
        for entry in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if entry.pid == pid and entry.usedGpuMemory:
                return int(entry.usedGpuMemory)
        return None

    def used() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    return used, process, "NVML"


def _by_command() -> tuple[Callable[[], int], Callable[[int], int | None], str]:
    def query(fields: str) -> list[list[str]]:
        try:
            return rows(fields)
        except (OSError, subprocess.SubprocessError) as error:
            raise MeasurementError(f"neither NVML nor nvidia-smi answers ({error})") from error

    def process(pid: int) -> int | None:
        for found, size in query("--query-compute-apps=pid,used_memory"):
            if found == str(pid) and size.isdigit():
                return int(size) * MIB
        return None

    def used() -> int:
        return int(query("--query-gpu=memory.used")[0][0]) * MIB

    used()
    return used, process, "nvidia-smi"


def sample(
    read: Callable[[], int], stop: threading.Event, *, interval_s: float, source: str
) -> MemoryPeak:
    """Read every ``interval_s`` until ``stop``; at least once."""
    start = last = time.perf_counter()
    peak, samples, gap = 0, 0, 0.0
    while True:
        peak = max(peak, read())
        samples += 1
        now = time.perf_counter()
        gap, last = max(gap, now - last), now
        if stop.wait(interval_s):
            break
    return MemoryPeak(peak, samples, samples / max(1e-9, last - start), gap, source)


class MemorySampler:
    """Samples this or another process from a process of its own; use as a context manager."""

    def __init__(
        self, pid: int, *, baseline_bytes: int = 0, interval_s: float = INTERVAL_S
    ) -> None:
        self._arguments = [str(pid), str(baseline_bytes), str(interval_s)]
        self._process: subprocess.Popen[str] | None = None
        self.peak: MemoryPeak | None = None
        """Known after the end of the ``with`` block."""

    def __enter__(self) -> MemorySampler:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inference.benchmarks.memory_sampler", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        # The first line says that sampling has begun; without it there is nothing to measure.
        if self._process.stdout.readline().strip() != "sampling":
            self._process.kill()
            self._process.communicate()
            raise MeasurementError("the memory sampler did not start; its message stands above")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        try:
            output, _ = self._process.communicate(timeout=_STOP_TIMEOUT_S)
            self.peak = MemoryPeak(**json.loads(output.strip().splitlines()[-1]))
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            self._process.kill()
            self._process.communicate()
            raise MeasurementError("the memory sampler gave no result") from error


def main(arguments: list[str]) -> int:
    """The sampling process."""
    try:
        reader = MemoryReader(int(arguments[0]), int(arguments[1]))
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 1
    stop = threading.Event()

    def wait_for_the_end() -> None:
        with suppress(KeyboardInterrupt):
            sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print("sampling", flush=True)
    peak = sample(reader, stop, interval_s=float(arguments[2]), source=reader.source)
    print(json.dumps({**asdict(peak), "source": reader.source}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

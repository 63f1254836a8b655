"""Speed of the link to the GPU and of its memory, measured on the spot.

Owns the copies and their timing. Knows nothing of models. On a CPU the link is a copy within
host memory, which keeps the tables complete but says nothing of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference.config import MIB

_REPEATS = 8


@dataclass(frozen=True)
class LinkSpeed:
    """Measured speeds in GB/s (1e9 bytes): pinned host to device, and device memory read."""

    device: str
    link_gb_s: float
    memory_gb_s: float


def measure_link(device: torch.device, *, size_bytes: int = 256 * MIB) -> LinkSpeed:
    """Best of several copies of ``size_bytes`` of random bytes; needs twice that on the device.

    The memory speed counts bytes read and bytes written of a copy within the device.
    """
    host = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8)
    if device.type == "cuda":
        host = host.pin_memory()
    link_s, memory_s = _copy_seconds(host, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return LinkSpeed(
        device_name(device), size_bytes / link_s / 1e9, 2 * size_bytes / memory_s / 1e9
    )


def _copy_seconds(host: Tensor, device: torch.device) -> tuple[float, float]:
    """Seconds of a copy of ``host`` to ``device`` and of one within it."""
    there = torch.empty_like(host, device=device)
    other = torch.empty_like(there)
    return (
        _best_s(lambda: there.copy_(host, non_blocking=True), device),
        _best_s(lambda: other.copy_(there), device),
    )


def device_name(device: torch.device) -> str:
    """Name of a GPU, or ``cpu``."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "cpu"


def _best_s(copy: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several runs of ``copy``, by events on a GPU."""
    event: Any = torch.cuda.Event
    best = float("inf")
    for _ in range(_REPEATS):
        if device.type == "cuda":
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            copy()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            copy()
            best = min(best, time.perf_counter() - start)
    return best

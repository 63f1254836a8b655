"""Page-locked host memory that a GPU reads directly.

Owns the calls of the CUDA runtime for it and what to tell people when the system refuses. Knows
nothing of experts.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from inference.errors import PinningError

logger = logging.getLogger(__name__)

# CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS of cuda.h
_PAGEABLE_MEMORY_ACCESS = 88
_REMEDY = (
    "raise the limit of locked memory (ulimit -l unlimited, LimitMEMLOCK=infinity, docker "
    "--ulimit memlock=-1), free host memory, or set allow_unpinned where the GPU can read "
    "ordinary memory, at a fraction of the speed"
)


def pin(
    pieces: Sequence[Tensor],
    device: torch.device,
    *,
    allow_unpinned: bool,
    num_threads: int = 4,
) -> bool:
    """Page-lock CPU tensors where they lie; True when done, False when the device can do without.

    Raises:
        PinningError: The system refuses, and ``allow_unpinned`` is not set, or the device cannot
            read memory that is not pinned.
    """
    torch.cuda.init()
    runtime = torch.cuda.cudart()

    index = _index(device)

    def register(piece: Tensor) -> int:
        torch.cuda.set_device(index)  # each thread has its own
        return int(runtime.cudaHostRegister(piece.data_ptr(), piece.nbytes, 0))

    with ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="pinning") as pool:
        results = list(pool.map(register, pieces))
    if not any(results):
        return True
    for piece, result in zip(pieces, results, strict=True):
        if result == 0:
            runtime.cudaHostUnregister(piece.data_ptr())
    _take_last_error(device)
    size_gb = sum(piece.nbytes for piece in pieces) / 1e9
    code = next(result for result in results if result != 0)
    problem = f"cannot pin {size_gb:.1f} GB of host memory for the experts (CUDA error {code})"
    if not allow_unpinned:
        raise PinningError(problem, _REMEDY)
    if not _reads_pageable_memory(device):
        raise PinningError(
            f"{problem}, and this GPU and driver cannot read memory that is not pinned", _REMEDY
        )
    cost = _measured_cost(device)
    message = f"{problem}; going on unpinned as allowed, {cost}"
    logger.warning(message)
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    return False


def unpin(addresses: Sequence[int], device: torch.device) -> None:
    """Undo ``pin`` for the pieces at ``addresses``, when ``device`` has done its work."""
    torch.cuda.synchronize(device)
    runtime = torch.cuda.cudart()
    for address in addresses:
        runtime.cudaHostUnregister(address)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _take_last_error(device: torch.device) -> None:
    """The runtime keeps the error of the failed call until the next check, which torch makes."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


def _reads_pageable_memory(device: torch.device) -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    value = ctypes.c_int(0)
    failed = driver.cuDeviceGetAttribute(
        ctypes.byref(value), _PAGEABLE_MEMORY_ACCESS, _index(device)
    )
    return failed == 0 and value.value == 1


def _measured_cost(device: torch.device) -> str:
    """Copy speeds from ordinary and from pinned memory, in words."""
    size = 64 * 2**20
    target = torch.empty(size, dtype=torch.uint8, device=device)
    speeds = []
    for pinned in (False, True):
        source = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        target.copy_(source)
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(device)
        speeds.append(size / (time.perf_counter() - start) / 1e9)
    return f"copies run at {speeds[0]:.1f} GB/s where pinned memory gives {speeds[1]:.1f} GB/s"

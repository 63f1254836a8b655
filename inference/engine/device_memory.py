"""How much GPU memory this process holds, as nvidia-smi counts it, and the limit on it.

Owns the asking of NVML and the hard cap. A CUDA context, loaded kernels and graphs lie outside
torch's allocator: what they take is measured, and the allocator gets the rest. Knows nothing of
models.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable

import torch
from torch.nn import functional as F

from inference.errors import GPUOutOfMemoryError

logger = logging.getLogger(__name__)

MIB = 2**20


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """Used memory of the cards; needs no CUDA context. ``available`` is False without NVML."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if library.nvmlInit_v2() == 0:
            self._library = library

    @property
    def available(self) -> bool:
        """Whether NVML answers."""
        return self._library is not None

    def used_bytes(self) -> dict[int, int]:
        """Bytes in use on each card by all processes, by NVML's index."""
        count = ctypes.c_uint()
        if self._library is None or self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return {}
        used = {}
        for index in range(count.value):
            handle, memory = ctypes.c_void_p(), _Memory()
            if not self._library.nvmlDeviceGetHandleByIndex_v2(
                ctypes.c_uint(index), ctypes.byref(handle)
            ) and not self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                used[index] = int(memory.used)
        return used

    def index_of(self, device: torch.device) -> int | None:
        """NVML's index of a CUDA device; CUDA may hide cards or sort them otherwise."""
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle, index = ctypes.c_void_p(), ctypes.c_uint()
        if (
            self._library is None
            or self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
            or self._library.nvmlDeviceGetIndex(handle, ctypes.byref(index))
        ):
            return None
        return index.value


class ContextMeter:
    """Measures what this process takes outside torch's allocator.

    Made before CUDA starts; other processes must keep still until ``context_bytes``.
    """

    def __init__(self) -> None:
        self._nvml = Nvml()
        self._before = {} if torch.cuda.is_initialized() else self._nvml.used_bytes()

    def context_bytes(self, device: torch.device, *, recurrent: bool) -> int | None:
        """Bytes of context, libraries and kernels so far; loads those that prefill needs.

        ``recurrent``: the model has layers of the delta rule. ``None`` when it cannot be known:
        no NVML, or CUDA ran already when this was made.
        """
        load_libraries(device, recurrent=recurrent)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        index = self._nvml.index_of(device)
        if index is None or index not in self._before:
            return None
        grown = self._nvml.used_bytes()[index] - self._before[index]
        context = grown - torch.cuda.memory_reserved(device)
        logger.info("CUDA context and kernels: %d MiB", context // MIB)
        return context if context > 0 else None


@torch.inference_mode()
def load_libraries(device: torch.device, *, recurrent: bool) -> None:
    """Run the operations of prefill once, small: each loads its kernels into the context."""
    for dtype in (torch.float16, torch.float32):
        rows = torch.ones((512, 256), device=device, dtype=dtype)
        F.linear(rows, rows)
        heads = torch.ones((4, 64, 64), device=device, dtype=dtype)
        torch.bmm(heads, heads)
        rows.sum(-1).softmax(-1).sort()
    query = torch.ones((1, 4, 64, 64), device=device, dtype=torch.float16)
    mask = torch.ones((1, 1, 64, 64), device=device, dtype=torch.bool)
    F.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    F.scaled_dot_product_attention(query, query, query, is_causal=True)
    rows.softmax(-1).topk(8)
    if recurrent:
        channels = torch.ones((1, 64, 128), device=device, dtype=torch.float16)
        F.conv1d(channels, channels[0, :, :4].unsqueeze(1).contiguous(), groups=64)
        system = torch.eye(64, device=device).expand(1, 4, 2, 64, 64).contiguous()
        torch.linalg.solve_triangular(system, system, upper=False, unitriangular=True)
        system.cumsum(-1).exp()


def use_expandable_segments() -> None:
    """Let torch's allocator grow its segments in place: freed blocks of any size fit again.

    To be called before memory is taken. Settings in the environment (``PYTORCH_ALLOC_CONF``) go
    first; without support by driver or build of torch all stays as it is.
    """
    if os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"):
        return
    change = _allocator_settings()
    if change is None or not torch.cuda.is_available():
        return
    try:
        change("expandable_segments:True")
        torch.zeros(1, device="cuda")
    except (RuntimeError, ValueError) as error:
        logger.warning("no expandable segments: %s", str(error).splitlines()[0])
        change("expandable_segments:False")


def _allocator_settings() -> Callable[[str], None] | None:
    """torch's function, which has moved since 2.9."""
    for module, name in (
        (torch._C, "_accelerator_setAllocatorSettings"),
        (torch.cuda.memory, "_set_allocator_settings"),
    ):
        function: Callable[[str], None] | None = getattr(module, name, None)
        if function is not None:
            return function
    return None


def limit_memory(device: torch.device, allocator_bytes: int) -> None:
    """Let torch's allocator take at most ``allocator_bytes`` on ``device``.

    Beyond it an allocation raises ``torch.OutOfMemoryError``. Raises ``GPUOutOfMemoryError``
    when the card has less than that left.
    """
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device)
    if free < allocator_bytes:
        raise GPUOutOfMemoryError(
            f"{allocator_bytes // MIB:,} MiB of GPU memory are wanted, {free // MIB:,} MiB of "
            f"{total // MIB:,} are free",
            "end other programs on this GPU or lower gpu_memory_limit",
        )
    torch.cuda.set_per_process_memory_fraction(min(1.0, allocator_bytes / total), device)

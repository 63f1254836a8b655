"""libcuda of a card of 143,000 MiB, of which a context takes a part; copies take their time."""

from __future__ import annotations

import ctypes
from typing import Any

from inference.config import MIB

CARD_BYTES = 143_000 * MIB
CONTEXT_BYTES = 517 * MIB
LINK_BYTES_S = 50e9
MEMORY_BYTES_S = 2000e9


class FakeCuda:
    """The calls of ``CudaDriver``; allocations round up to 2 MiB."""

    def __init__(self) -> None:
        self.free = CARD_BYTES
        self.device_error = 0
        self._clock_s = 0.0
        self._marks: dict[int, float] = {}
        self._pinned: list[Any] = []

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return self.device_error

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.free -= CONTEXT_BYTES
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = b"Fake H200"
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        ctypes.cast(free, ctypes.POINTER(ctypes.c_size_t))[0] = self.free
        return 0

    def cuMemAlloc_v2(self, address: Any, size: ctypes.c_size_t) -> int:
        rounded = -(-size.value // (2 * MIB)) * 2 * MIB
        if rounded > self.free:
            return 2
        self.free -= rounded
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] = 0x7F0000000000
        return 0

    def cuMemHostAlloc(self, address: Any, size: ctypes.c_size_t, flags: int) -> int:
        self._pinned.append(ctypes.create_string_buffer(size.value))
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
        pointer[0] = ctypes.addressof(self._pinned[-1])
        return 0

    def cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        self._clock_s += size.value / LINK_BYTES_S
        return 0

    def cuMemcpyDtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        self._clock_s += size.value / MEMORY_BYTES_S
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        number = len(self._marks) + 1
        self._marks[number] = 0.0
        ctypes.cast(event, ctypes.POINTER(ctypes.c_void_p))[0] = number
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self._marks[event.value] = self._clock_s
        return 0

    def cuEventSynchronize(self, event: Any) -> int:
        return 0

    def cuEventElapsedTime(self, milliseconds: Any, begin: Any, end: Any) -> int:
        span_s = self._marks[end.value] - self._marks[begin.value]
        ctypes.cast(milliseconds, ctypes.POINTER(ctypes.c_float))[0] = 1e3 * span_s
        return 0

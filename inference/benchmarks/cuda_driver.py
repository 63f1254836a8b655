"""A few calls of the CUDA driver, without torch: memory, copies and their times.

Owns the calling of libcuda on the first device, for processes that must start fast and stay small
beside the one that is measured. Knows nothing of what is measured.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from inference.errors import MeasurementError


class CudaDriver:
    """The first device with its primary context. Memory lives as long as the process."""

    def __init__(self, library: Any = None) -> None:
        """Make a context. Raises ``MeasurementError`` without a driver or device."""
        try:
            self._cuda = library or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MeasurementError(f"no CUDA driver ({error})") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, 256, device)
        self.device_name = name.value.decode()

    def free_bytes(self) -> int:
        """Free memory of the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size_bytes: int) -> int:
        """Address of new memory on the device; 0 when there is not enough."""
        address = ctypes.c_uint64()
        result = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return 0 if int(result) else address.value

    def allocate_pinned(self, size_bytes: int) -> int:
        """Address of new page-locked host memory, written once so that its pages exist."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size_bytes), 0)
        assert address.value is not None
        ctypes.memset(address.value, 0x5A, size_bytes)
        return address.value

    def copy_from_host(self, target: int, source: int, size_bytes: int) -> None:
        """Copy in stream order, without waiting."""
        self._call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size_bytes),
            None,
        )

    def copy_within(self, target: int, source: int, size_bytes: int) -> None:
        """Copy in stream order, without waiting."""
        self._call(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size_bytes),
            None,
        )

    def seconds(self, work: Callable[[], None]) -> float:
        """Time of ``work`` on the device."""
        begin, end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (begin, end):
            self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuEventRecord", begin, None)
        work()
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value / 1e3

    def _call(self, name: str, *arguments: Any) -> None:
        result = int(getattr(self._cuda, name)(*arguments))
        if result:
            raise MeasurementError(f"{name} failed with CUDA error {result}")

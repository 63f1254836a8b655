"""The kernels on an NVIDIA GPU: loading what the compiler made, and launching it.

Owns the check of GPU, driver and packages, the loaded modules and the launches, all on torch's
current stream, so that they can be captured into torch's CUDA graphs. Knows no kernel.
"""

from __future__ import annotations

import ctypes
import math
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.errors import (
    DeviceError,
    GPUNotFoundError,
    GPUOutOfMemoryError,
    GPUTooOldError,
    KernelCompileError,
)
from inference.kernels.compiler import (
    INSTALL_REMEDY,
    SOURCE_DIR,
    KernelCache,
    cuda_core,
    cuda_module,
    nvrtc_version,
    pick_architecture,
)
from inference.kernels.library import Grid, KernelArg, PackedArguments

# Above this, a kernel must ask for its dynamic shared memory by attribute.
DEFAULT_SHARED_BYTES = 48 * 1024
MAX_CONFIGS = 4096


@dataclass(frozen=True)
class _Kernel:
    """One loaded kernel."""

    name: str
    function: Any
    parameter_sizes: tuple[int, ...]


class CudaKernels:
    """A KernelLibrary on one GPU. May be used by several threads."""

    def __init__(
        self,
        device: torch.device | str = "cuda",
        *,
        cache_dir: Path | None = None,
        source_dir: Path = SOURCE_DIR,
    ) -> None:
        """Check the machine; sources compile at their first launch.

        Args:
            device: ``cuda`` means torch's current GPU.
            cache_dir: Folder of compiled kernels, by default in the user's cache folder.

        Raises:
            GPUNotFoundError: No such GPU, no driver, no CUDA build of torch, or CUDA packages
                missing.
            GPUTooOldError: The GPU or its driver is older than the kernels need.
        """
        self.device = _check_gpu(torch.device(device))
        properties = torch.cuda.get_device_properties(self.device)
        self.multiprocessors: int = properties.multi_processor_count
        self.compute_capability: int = 10 * properties.major + properties.minor
        self.architecture = pick_architecture(self.compute_capability)
        self._driver = cuda_module("cuda.bindings.driver")
        _check_driver(self._driver, nvrtc_version())
        self.cache = KernelCache(cache_dir, source_dir=source_dir)
        torch.zeros(1, device=self.device)  # makes torch's context, which all launches use
        with torch.cuda.device(self.device):
            self._context = self._call("cuCtxGetCurrent")
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._modules: dict[str, Any] = {}
        self._kernels: dict[tuple[str, str], _Kernel] = {}
        self._shared: dict[tuple[str, str], int] = {}
        self._configs: dict[tuple[Any, ...], Any] = {}

    def launch(
        self,
        source: str,
        kernel: str,
        *,
        grid: Grid,
        block: Grid,
        args: Sequence[KernelArg],
        shared_bytes: int = 0,
        pdl: bool = True,
    ) -> None:
        """Launch on torch's current stream of the device; see KernelLibrary.

        Raises:
            TypeError: The arguments do not fit the kernel's parameters.
            KernelCompileError: The source does not compile, or the launch is refused.
            GPUOutOfMemoryError: The GPU has no memory left for the kernel.
        """
        self._enter_context()
        loaded = self._kernels.get((source, kernel)) or self._load(source, kernel)
        packed = self._pack(loaded, args)
        if shared_bytes > self._shared.get((source, kernel), DEFAULT_SHARED_BYTES):
            self._allow_shared(source, kernel, loaded, shared_bytes)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        key = (grid, block, shared_bytes, stream, pdl)
        config = self._configs.get(key) or self._make_config(key)
        (result,) = self._driver.cuLaunchKernelEx(
            config, loaded.function, ctypes.addressof(packed.pointers), 0
        )
        if result:
            what = f"{loaded.name}: grid {grid}, block {block}{self._excess(loaded, block, result)}"
            raise self._error(what, result)

    def preload(self) -> None:
        """Compile all sources, several at once, and load them.

        Raises:
            KernelCompileError: One does not compile or load.
        """
        self._enter_context()
        sources = sorted(path.name for path in self.cache.source_dir.glob("*.cu"))
        cuda_core()  # not by several threads at once: they would see half a module
        with ThreadPoolExecutor(max_workers=len(sources)) as pool:
            codes = list(pool.map(lambda name: self.cache.load(name, self.architecture), sources))
        with self._lock:
            for source, code in zip(sources, codes, strict=True):
                if source not in self._modules:
                    self._modules[source] = self._call("cuModuleLoadData", code)

    def _enter_context(self) -> None:
        # A thread that has not used torch's GPU yet has no context.
        if not hasattr(self._thread, "entered"):
            self._call("cuCtxSetCurrent", self._context)
            self._thread.entered = True

    def _pack(self, kernel: _Kernel, args: Sequence[KernelArg]) -> PackedArguments:
        packed = PackedArguments(args)
        sizes = tuple(map(ctypes.sizeof, packed.values))
        if sizes != kernel.parameter_sizes:
            raise TypeError(
                f"{kernel.name} takes parameters of {kernel.parameter_sizes} bytes, got {sizes}"
            )
        for value in args:
            if isinstance(value, Tensor) and not (
                value.device == self.device or (value.device.type == "cpu" and value.is_pinned())
            ):
                raise TypeError(f"{kernel.name}: a tensor on {value.device} that is not pinned")
        return packed

    def _load(self, source: str, kernel: str) -> _Kernel:
        with self._lock:
            if source not in self._modules:
                code = self.cache.load(source, self.architecture)
                self._modules[source] = self._call("cuModuleLoadData", code)
            name = f"{source}: {kernel}"
            result, function = self._driver.cuModuleGetFunction(
                self._modules[source], kernel.encode()
            )
            if result:
                raise KernelCompileError(
                    f"{source} holds no kernel {kernel} ({result.name})", "check its name"
                )
            loaded = _Kernel(name, function, self._parameter_sizes(function))
            self._kernels[source, kernel] = loaded
            return loaded

    def _parameter_sizes(self, function: Any) -> tuple[int, ...]:
        sizes: list[int] = []
        while True:
            result, _, size = self._driver.cuFuncGetParamInfo(function, len(sizes))
            if result:  # behind the last parameter
                return tuple(sizes)
            sizes.append(size)

    def _allow_shared(self, source: str, kernel: str, loaded: _Kernel, shared_bytes: int) -> None:
        attribute = (
            self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        )
        (result,) = self._driver.cuFuncSetAttribute(loaded.function, attribute, shared_bytes)
        if result:
            raise self._error(f"{loaded.name}: {shared_bytes} bytes of shared memory", result)
        self._shared[source, kernel] = shared_bytes

    def _excess(self, loaded: _Kernel, block: Grid, result: Any) -> str:
        """Why a block of this size is refused, when its threads or registers are the reason."""
        codes = self._driver.CUresult
        if result not in (
            codes.CUDA_ERROR_INVALID_VALUE,
            codes.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        ):
            return ""
        attributes = self._driver.CUfunction_attribute
        threads = math.prod(block)
        _, most = self._driver.cuFuncGetAttribute(
            attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, loaded.function
        )
        _, registers = self._driver.cuFuncGetAttribute(
            attributes.CU_FUNC_ATTRIBUTE_NUM_REGS, loaded.function
        )
        if threads <= most:
            return ""
        return (
            f" ({registers} registers a thread and the kernel's __launch_bounds__ allow {most} "
            f"threads a block, {threads} are too many)"
        )

    def _make_config(self, key: tuple[Any, ...]) -> Any:
        grid, block, shared_bytes, stream, pdl = key
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.hStream = stream
        config.numAttrs = 0
        if pdl and self.compute_capability >= 90:
            attribute = self._driver.CUlaunchAttribute()
            names = self._driver.CUlaunchAttributeID
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        if len(self._configs) >= MAX_CONFIGS:  # grids may follow the length of prompts
            self._configs.clear()
        self._configs[key] = config
        return config

    def _call(self, function: str, *args: Any) -> Any:
        result, *values = getattr(self._driver, function)(*args)
        if result:
            raise self._error(function, result)
        return values[0] if values else None

    def _error(self, what: str, result: Any) -> DeviceError:
        if result == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return GPUOutOfMemoryError(
                f"{what}: no GPU memory left", "lower gpu_memory_limit, or end what else uses it"
            )
        return KernelCompileError(
            f"{what}: {result.name}", "see the driver's log (dmesg) and report it with the version"
        )


def _check_gpu(device: torch.device) -> torch.device:
    """The device with its index, if torch can use it."""
    if device.type != "cuda":
        raise ValueError(f"kernels run on a cuda device, not on {device}")
    if torch.version.cuda is None:
        raise GPUNotFoundError("this build of torch has no CUDA", INSTALL_REMEDY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        message = " ".join(str(warning.message) for warning in caught)
        if "too old" in message:
            raise GPUTooOldError(message.strip(), "install a newer NVIDIA driver")
        raise GPUNotFoundError(
            f"torch finds no GPU{': ' if message else ''}{message}",
            "install the NVIDIA driver (nvidia-smi must list the GPU), or use device=cpu",
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise GPUNotFoundError(
            f"there is no GPU {index}", f"use cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
    return torch.device("cuda", index)


def _check_driver(driver: Any, nvrtc: tuple[int, int]) -> None:
    """Machine code of one major version of CUDA runs on every driver of that version."""
    _, version = driver.cuDriverGetVersion()
    if version // 1000 < nvrtc[0]:
        raise GPUTooOldError(
            f"the driver is made for CUDA {version // 1000}.{version % 1000 // 10}, the kernels' "
            f"compiler for {nvrtc[0]}.{nvrtc[1]}",
            "install a newer NVIDIA driver",
        )

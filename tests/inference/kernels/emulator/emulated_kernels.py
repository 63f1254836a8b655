"""The kernels on the CPU, compiled by g++ with a header that stands in for CUDA.

Owns building and calling; what a CUDA thread is lies in ``emulation.h`` and ``fibers.h``. Knows
nothing of single kernels. Tensors stay on the CPU: a kernel gets their real addresses.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

import inference.kernels
from inference.errors import DeviceError, KernelCompileError
from inference.kernels.library import Grid, KernelArg, PackedArguments

EMULATOR_DIR = Path(__file__).parent
SOURCE_DIR = Path(inference.kernels.__file__).parent
# The least that any GPU from compute capability 7.5 on gives one block.
MAX_SHARED_BYTES = 64 * 1024
MAX_THREADS = 1024
FLAGS = [
    *("-std=c++17", "-O1", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-fcf-protection=none"),
    *("-fvisibility=hidden", "-fno-exceptions", "-w", "-DHUTONG_EMULATED"),
]
CTYPES = {
    "p": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64),
    "l": (ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p),
    "i": (ctypes.c_int32, ctypes.c_uint32),
    "f": (ctypes.c_float,),
}


class EmulationError(DeviceError):
    """A kernel broke a rule of CUDA or of this project; says which thread, file and line."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "correct the kernel or its launch")


class EmulatedKernels:
    """A KernelLibrary on CPU tensors.

    With ``shuffle`` the blocks of a grid and the warps of a block run in a random order that
    differs from launch to launch, so that a result which depends on it shows.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        cache_dir: Path,
        *,
        source_dir: Path = SOURCE_DIR,
        shuffle: bool = True,
        multiprocessors: int = 4,
        seed: int = 1,
    ) -> None:
        """Nothing is built before its first launch; builds stay in ``cache_dir``."""
        self.multiprocessors = multiprocessors
        self.launches = 0
        self._cache_dir = cache_dir
        self._source_dir = source_dir
        self._seeds = itertools.count(seed) if shuffle else itertools.repeat(0)
        self._lock = threading.Lock()
        self._libraries: dict[str, tuple[ctypes.CDLL, frozenset[str]]] = {}
        self._kernels: dict[tuple[str, str], tuple[ctypes.CDLL, int, str]] = {}

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
        """Run the kernel to its end; see KernelLibrary.

        Raises:
            EmulationError: The kernel broke a rule.
        """
        name = f"{source}: {kernel}"
        if min(grid) < 1 or min(block) < 1 or max(grid[1:]) > 65535 or block[2] > 64:
            raise EmulationError(f"{name}: no GPU runs grid {grid} of blocks {block}")
        if math.prod(block) > MAX_THREADS or not 0 <= shared_bytes <= MAX_SHARED_BYTES:
            raise EmulationError(
                f"{name}: a block has at most {MAX_THREADS} threads and {MAX_SHARED_BYTES} bytes "
                f"of shared memory, not {math.prod(block)} and {shared_bytes}"
            )
        for value in args:
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                raise EmulationError(f"{name}: a tensor on {value.device}")
        packed = PackedArguments(args)
        with self._lock:
            library, thunk, signature = self._kernel(source, kernel)
            _check(name, signature, packed)
            error = ctypes.create_string_buffer(1024)
            self.launches += 1
            failed = library.hutong_run(
                ctypes.c_void_p(thunk),
                packed.pointers,
                (ctypes.c_uint32 * 3)(*grid),
                (ctypes.c_uint32 * 3)(*block),
                shared_bytes,
                ctypes.c_uint64(next(self._seeds)),
                error,
            )
        if failed:
            raise EmulationError(f"{name}: {error.value.decode(errors='replace')}")

    def _kernel(self, source: str, kernel: str) -> tuple[ctypes.CDLL, int, str]:
        found = self._kernels.get((source, kernel))
        if found is None:
            if source not in self._libraries:
                self._libraries[source] = self._load(source)
            library, names = self._libraries[source]
            if kernel not in names:
                raise KernelCompileError(
                    f"{source} holds no kernel {kernel}", f"it holds {', '.join(sorted(names))}"
                )
            thunk = ctypes.cast(library[f"hutong_thunk_{kernel}"], ctypes.c_void_p).value or 0
            signature = library[f"hutong_signature_{kernel}"]
            signature.restype = ctypes.c_char_p
            found = (library, thunk, signature().decode())
            self._kernels[source, kernel] = found
        return found

    def _load(self, source: str) -> tuple[ctypes.CDLL, frozenset[str]]:
        path = self._source_dir / source
        digest = hashlib.sha256(" ".join(FLAGS).encode())
        for part in [path, *sorted(SOURCE_DIR.glob("*.cuh")), *sorted(EMULATOR_DIR.glob("*.h"))]:
            digest.update(part.read_bytes())
        stem = self._cache_dir / f"{path.stem}-{digest.hexdigest()[:24]}"
        built, listed = stem.with_suffix(".so"), stem.with_suffix(".txt")
        if not built.exists():
            names = _build(path, built)
            listed.write_text("\n".join(names))
        return ctypes.CDLL(str(built)), frozenset(listed.read_text().split())


def _check(name: str, signature: str, packed: PackedArguments) -> None:
    given = [type(value).__name__ for value in packed.values]
    if len(given) != len(signature):
        raise TypeError(f"{name} takes {len(signature)} arguments ({signature}), got {len(given)}")
    for index, (kind, value) in enumerate(zip(signature, packed.values, strict=True)):
        if not isinstance(value, CTYPES[kind]):
            raise TypeError(f"{name}: argument {index} is {given[index]}, the kernel wants {kind}")


def _run(command: list[str], source: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelCompileError(f"{source.name}: {done.stderr}", "correct the kernel's source")
    return done.stdout


def kernel_names(source: Path) -> list[str]:
    """Names of the ``extern "C" __global__`` kernels of a file, macros expanded."""
    command = [*_compiler(), "-E", "-P", "-DHUTONG_LIST_KERNELS", "-x", "c++", str(source)]
    listing = _run([*command, "-include", "emulation.h"], source)
    return re.findall(r'extern\s+"C"\s+hutong_global\s+void\s+(\w+)\s*\(', listing)


def _compiler() -> list[str]:
    compiler = shutil.which("g++")
    if compiler is None:
        raise KernelCompileError("there is no g++", "install Debian's package g++")
    return [compiler, *FLAGS, "-I", str(EMULATOR_DIR), "-I", str(SOURCE_DIR)]


def _build(source: Path, built: Path) -> list[str]:
    """Compile one source; returns the names of its kernels."""
    names = kernel_names(source)
    # Everything of the source has internal linkage: else the static shared memory of a template
    # would not go into our section.
    text = f'#include "emulation.h"\nnamespace {{\n#include "{source}"\n}}\n'
    exported = 'extern "C" __attribute__((visibility("default")))'
    for name in names:
        text += (
            f"{exported} void hutong_thunk_{name}(void** args) "
            f"{{ emulation::call(&{name}, args); }}\n"
            f"{exported} const char* hutong_signature_{name}() "
            f"{{ return emulation::signature(&{name}); }}\n"
        )
    built.parent.mkdir(parents=True, exist_ok=True)
    work = built.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    unit, shared = Path(f"{work}.cpp"), Path(f"{work}.so")
    unit.write_text(text)
    _run([*_compiler(), "-shared", "-o", str(shared), str(unit)], source)
    unit.unlink()
    shared.replace(built)
    return names

"""Kernel libraries for the tests: the emulated one, the real one, and either."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from inference.kernels.cuda_kernels import CudaKernels
from inference.kernels.library import KernelLibrary
from tests.inference.kernels.emulator.emulated_kernels import EmulatedKernels

EITHER = ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="session")
def emulator_cache(request: pytest.FixtureRequest) -> Path:
    """Folder of the compiled emulated kernels, kept between sessions."""
    if shutil.which("g++") is None:
        pytest.skip("needs Debian's package g++ (apt-get install g++)")
    if hasattr(request.config, "cache"):
        return Path(request.config.cache.mkdir("emulated_kernels"))
    return Path(request.getfixturevalue("tmp_path_factory").mktemp("emulated_kernels"))


@pytest.fixture(scope="session")
def emulated_kernels(emulator_cache: Path) -> EmulatedKernels:
    """All kernels on CPU tensors; HUTONG_EMULATOR_SEED picks another order of blocks."""
    return EmulatedKernels(emulator_cache, seed=int(os.environ.get("HUTONG_EMULATOR_SEED", "1")))


@pytest.fixture(scope="session")
def cuda_kernels() -> CudaKernels:
    """All kernels on the GPU; only for tests marked ``gpu``."""
    return CudaKernels()


@pytest.fixture(params=EITHER)
def kernels(request: pytest.FixtureRequest) -> KernelLibrary:
    """Each test on the CPU, and once more on the GPU under the marker ``gpu``."""
    library: KernelLibrary = request.getfixturevalue(f"{request.param}_kernels")
    return library

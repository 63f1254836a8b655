"""Kernel libraries for the tests: the emulated one, the real one, and either."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.inference.kernels.emulator.emulated_kernels import EmulatedKernels


@pytest.fixture(scope="session")
def emulator_cache(request: pytest.FixtureRequest) -> Path:
    """Folder of the compiled emulated kernels, kept between sessions."""
    if shutil.which("g++") is None:
        pytest.skip("needs Debian's package g++ (apt-get install g++)")
    config = request.config
    if hasattr(config, "cache"):
        return Path(config.cache.mkdir("emulated_kernels"))
    return Path(request.getfixturevalue("tmp_path_factory").mktemp("emulated_kernels"))


@pytest.fixture(scope="session")
def emulated_kernels(emulator_cache: Path) -> EmulatedKernels:
    """All kernels on CPU tensors; HUTONG_EMULATOR_SEED picks another order of blocks."""
    return EmulatedKernels(emulator_cache, seed=int(os.environ.get("HUTONG_EMULATOR_SEED", "1")))

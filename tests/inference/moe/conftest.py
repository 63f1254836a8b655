"""The kernel libraries for the tests of the slots."""

from __future__ import annotations

from tests.inference.kernels.conftest import (  # noqa: F401
    cuda_kernels,
    emulated_kernels,
    emulator_cache,
    kernels,
)

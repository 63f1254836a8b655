"""The kernel libraries, for measurements of whole models over them."""

from __future__ import annotations

from tests.inference.kernels.conftest import (  # noqa: F401
    cuda_kernels,
    emulated_kernels,
    emulator_cache,
)

"""The emulator reports what breaks a rule of CUDA or of this project."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from inference.errors import KernelCompileError
from inference.kernels.library import KernelArg
from tests.inference.kernels.emulator.emulated_kernels import (
    EMULATOR_DIR,
    EmulatedKernels,
    EmulationError,
)
from tests.inference.kernels.examples import run


@pytest.fixture(scope="module")
def library(emulator_cache: Path) -> EmulatedKernels:
    return EmulatedKernels(emulator_cache, source_dir=EMULATOR_DIR)


def test_shared_memory_is_poisoned_before_each_block(library: EmulatedKernels) -> None:
    for _ in range(2):
        out = torch.zeros(64)
        run(library, "unwritten_shared", out, blocks=3, shared_bytes=128)
        assert out.isnan().all()


def test_shuffled_order_shows_a_missing_barrier(library: EmulatedKernels) -> None:
    seen = set()
    for _ in range(20):
        out = torch.zeros(1, dtype=torch.int32)
        run(library, "missing_barrier", out, threads=64)
        seen.add(int(out))
    assert seen == {7, -1}


@pytest.mark.parametrize(
    ("kernel", "args", "threads", "message"),
    [
        ("divergent_barrier", [], 64, r"divergent barriers: thread 0 .*thread 32 at"),
        ("half_a_warp", [], 32, r"lanes ffff0000 of warp 0 never reach the warp operation"),
        ("outside_mask", [torch.zeros(16)], 32, r"reads from lane 20, which is not in the mask"),
        ("no_wait", [None], 32, r"thread \(3, 0, 0\): ended without a call of grid_dependency"),
        ("overrun", [], 32, r"wrote byte 0 behind its 128 bytes of dynamic shared memory"),
        ("spin", [torch.zeros(1, dtype=torch.int32)], 1, r"spins"),
        (
            "copy_16",
            [torch.zeros(64, dtype=torch.uint8), torch.zeros(64), ctypes.c_uint64(4)],
            1,
            r"16-byte access to the misaligned address",
        ),
    ],
)
def test_broken_rules_are_reported(
    library: EmulatedKernels, kernel: str, args: list[KernelArg], threads: int, message: str
) -> None:
    with pytest.raises(EmulationError, match=message):
        run(library, kernel, *args, threads=threads, shared_bytes=128)
    out = torch.zeros(64)
    run(library, "unwritten_shared", out, shared_bytes=128)  # the library still works
    assert out.isnan().all()


def test_launches_no_gpu_takes_are_refused(library: EmulatedKernels) -> None:
    out = torch.zeros(64)
    with pytest.raises(EmulationError, match="no GPU runs grid"):
        run(library, "unwritten_shared", out, blocks=0)
    with pytest.raises(EmulationError, match="at most 1024 threads"):
        run(library, "unwritten_shared", out, threads=1056)
    with pytest.raises(EmulationError, match="65536 bytes of shared"):
        run(library, "unwritten_shared", out, shared_bytes=65540)


def test_a_source_that_does_not_compile(emulator_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text('extern "C" __global__ void wrong() { no_such_call(); }')
    broken = EmulatedKernels(emulator_cache, source_dir=tmp_path)
    with pytest.raises(KernelCompileError, match="no_such_call"):
        broken.launch("wrong.cu", "wrong", grid=(1, 1, 1), block=(1, 1, 1), args=[])


def test_kinds_of_arguments_are_checked(library: EmulatedKernels) -> None:
    with pytest.raises(TypeError, match="argument 2 is c_float, the kernel wants i"):
        run(library, "sum_rows", None, None, 1.0)
    with pytest.raises(TypeError, match="argument 0 is c_int, the kernel wants p"):
        run(library, "sum_rows", 0, None, 1)

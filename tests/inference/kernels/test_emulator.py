"""The emulator itself: CUDA's meaning of every call, and a report of every broken rule."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.errors import KernelCompileError
from inference.kernels.library import KernelArg
from tests.inference.kernels.emulator.emulated_kernels import (
    EMULATOR_DIR,
    EmulatedKernels,
    EmulationError,
)

SOURCE = "example_kernels.cu"


@pytest.fixture(scope="module")
def library(emulator_cache: Path) -> EmulatedKernels:
    return EmulatedKernels(emulator_cache, source_dir=EMULATOR_DIR)


def run(
    library: EmulatedKernels,
    kernel: str,
    *args: KernelArg,
    blocks: int = 1,
    threads: int = 32,
    shared_bytes: int = 0,
) -> None:
    library.launch(
        SOURCE,
        kernel,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        args=args,
        shared_bytes=shared_bytes,
    )


@pytest.mark.parametrize("threads", [32, 256, 1024])
def test_block_reductions(library: EmulatedKernels, threads: int) -> None:
    values = torch.randint(-50, 50, (200, 777)).float()
    out = torch.zeros(200, 2)
    run(library, "sum_rows", values, out, 777, blocks=200, threads=threads, shared_bytes=33 * 4)
    assert torch.equal(out[:, 0], values.sum(1))
    assert torch.equal(out[:, 1], values.sum(1) + threads - 1)


def test_shuffles_and_votes(library: EmulatedKernels) -> None:
    values = torch.randint(0, 100, (32,), dtype=torch.int32)
    out = torch.zeros(8, 32, dtype=torch.int32)
    run(library, "shuffles", values, out)
    lanes = torch.arange(32)
    assert torch.equal(out[0], values[5].expand(32))
    assert torch.equal(out[1], values[lanes ^ 3])
    assert torch.equal(out[2], values[torch.where(lanes < 2, lanes, lanes - 2)])
    assert torch.equal(out[3], values[torch.where(lanes % 16 >= 12, lanes, lanes + 4)])
    ballot = sum(1 << i for i in range(32) if values[i] % 3 == 0)
    assert {int(word) & 0xFFFFFFFF for word in out[4]} == {ballot}
    assert set(out[5].tolist()) == {2 + int((values == 7).any())}
    assert torch.equal(out[6], values[torch.where(lanes < 16, lanes ^ 1, lanes)])
    assert torch.equal(out[7], values.flip(0))


def test_tensor_core_fragments(library: EmulatedKernels) -> None:
    a = torch.randn(16, 16).half()
    b = torch.randn(16, 8).half()
    d = torch.zeros(16, 8)
    run(library, "multiply", a, b.T.contiguous(), d)
    assert torch.allclose(d, a.float() @ b.float(), atol=1e-5, rtol=1e-5)


def test_atomics(library: EmulatedKernels) -> None:
    values = torch.randint(0, 10, (1000,), dtype=torch.int32)
    histogram = torch.zeros(10, dtype=torch.int32)
    extrema = torch.tensor([99, -99], dtype=torch.int32)
    total = torch.zeros(1, dtype=torch.int64)
    winner = torch.tensor([-1], dtype=torch.int32)
    run(library, "count", values, histogram, extrema, total, winner, 1000, blocks=8, threads=128)
    assert torch.equal(histogram.long(), torch.bincount(values, minlength=10))
    assert extrema.tolist() == [int(values.min()), int(values.max())]
    assert int(total) == int(values.sum())
    assert 0 <= int(winner) < 1000


def test_ticket_of_the_last_block(library: EmulatedKernels) -> None:
    values = torch.randint(-50, 50, (40, 64)).float()
    ticket = torch.zeros(1, dtype=torch.int32)
    for _ in range(3):
        out = torch.zeros(1)
        run(library, "last_block", values, torch.zeros(40), ticket, out, blocks=40, threads=64)
        assert float(out) == float(values.sum())
        assert int(ticket) == 0


def test_half_conversions_are_exact(library: EmulatedKernels) -> None:
    halves = torch.zeros(65536)
    bfloats = torch.zeros(65536)
    run(library, "widen", halves, bfloats, blocks=256, threads=256)
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    assert torch.equal(bits_of(halves), bits_of(bits.view(torch.float16).float()))
    assert torch.equal(bits_of(bfloats), bits_of(bits.view(torch.bfloat16).float()))
    # Every half, and a little above, below and half-way between neighbours.
    finite = halves[halves.isfinite()].sort().values
    middle = (finite[1:] + finite[:-1]) / 2
    values = torch.cat([finite, middle, middle * (1 + 2**-20), middle * (1 - 2**-20)])
    values = torch.cat([values, torch.tensor([65519.9, 65520.0, 1e9, math.inf, -math.inf, 1e-30])])
    result = torch.zeros(len(values), dtype=torch.int16)
    back = torch.zeros(len(values))
    blocks = -(-len(values) // 256)
    run(library, "halves", values, result, back, len(values), blocks=blocks, threads=256)
    assert torch.equal(result, values.half().view(torch.int16))
    assert torch.equal(back, values.half().float())


def bits_of(values: Tensor) -> Tensor:
    """The bits, with all NaN alike: quieting changes their payload."""
    return torch.where(
        values.isnan(), torch.tensor(-1, dtype=torch.int32), values.view(torch.int32)
    )


def test_indices_in_three_dimensions(library: EmulatedKernels) -> None:
    out = torch.zeros(24, 64, dtype=torch.int32)
    for addend, add in ((None, 0), (torch.tensor([5], dtype=torch.int32), 5)):
        library.launch(
            SOURCE, "three_dimensions", grid=(2, 3, 4), block=(4, 2, 8), args=[out, addend, 10.0]
        )
        wanted = (torch.arange(64) + 33) % 64 + add + 10 * torch.arange(24)[:, None]
        assert torch.equal(out.long(), wanted)


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
    # The library still works.
    test_tensor_core_fragments(library)


def test_launches_no_gpu_takes_are_refused(library: EmulatedKernels) -> None:
    out = torch.zeros(64)
    with pytest.raises(EmulationError, match="no GPU runs grid"):
        run(library, "unwritten_shared", out, blocks=0)
    with pytest.raises(EmulationError, match="at most 1024 threads"):
        run(library, "unwritten_shared", out, threads=1056)
    with pytest.raises(EmulationError, match="65536 bytes of shared"):
        run(library, "unwritten_shared", out, shared_bytes=65540)


def test_arguments_are_checked(library: EmulatedKernels) -> None:
    with pytest.raises(TypeError, match=r"takes 3 arguments \(ppi\), got 2"):
        run(library, "sum_rows", None, None)
    with pytest.raises(TypeError, match="argument 2 is c_float, the kernel wants i"):
        run(library, "sum_rows", None, None, 1.0)
    with pytest.raises(OverflowError):
        run(library, "sum_rows", None, None, 2**31)
    with pytest.raises(KernelCompileError, match="holds no kernel nothing"):
        run(library, "nothing")


def test_a_source_that_does_not_compile(emulator_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text('extern "C" __global__ void wrong() { no_such_call(); }')
    broken = EmulatedKernels(emulator_cache, source_dir=tmp_path)
    with pytest.raises(KernelCompileError, match="no_such_call"):
        broken.launch("wrong.cu", "wrong", grid=(1, 1, 1), block=(1, 1, 1), args=[])

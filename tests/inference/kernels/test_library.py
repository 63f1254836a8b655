"""What a kernel may rely on, the same on the CPU and on a GPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.errors import DeviceError, KernelCompileError
from inference.kernels.cuda_kernels import CudaKernels
from inference.kernels.library import KernelLibrary
from tests.inference.kernels.conftest import EITHER
from tests.inference.kernels.emulator.emulated_kernels import EMULATOR_DIR, EmulatedKernels
from tests.inference.kernels.examples import run, run_grid


@pytest.fixture(params=EITHER)
def library(request: pytest.FixtureRequest, tmp_path: Path) -> KernelLibrary:
    if request.param == "cuda":
        return CudaKernels(cache_dir=tmp_path, source_dir=EMULATOR_DIR)
    return EmulatedKernels(request.getfixturevalue("emulator_cache"), source_dir=EMULATOR_DIR)


@pytest.mark.parametrize("threads", [32, 256, 1024])
def test_block_reductions(library: KernelLibrary, threads: int) -> None:
    values = torch.randint(-50, 50, (200, 777)).float()
    out = torch.zeros(200, 2)
    run(library, "sum_rows", values, out, 777, blocks=200, threads=threads, shared_bytes=33 * 4)
    assert torch.equal(out[:, 0], values.sum(1))
    assert torch.equal(out[:, 1], values.sum(1) + threads - 1)


def test_shuffles_and_votes(library: KernelLibrary) -> None:
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


def test_tensor_core_fragments(library: KernelLibrary) -> None:
    a = torch.randn(16, 16).half()
    b = torch.randn(16, 8).half()
    d = torch.zeros(16, 8)
    run(library, "multiply", a, b.T.contiguous(), d)
    assert torch.allclose(d, a.float() @ b.float(), atol=1e-5, rtol=1e-5)


def test_atomics(library: KernelLibrary) -> None:
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


def test_ticket_of_the_last_block(library: KernelLibrary) -> None:
    values = torch.randint(-50, 50, (40, 64)).float()
    ticket = torch.zeros(1, dtype=torch.int32)
    for _ in range(3):
        out = torch.zeros(1)
        run(library, "last_block", values, torch.zeros(40), ticket, out, blocks=40, threads=64)
        assert float(out) == float(values.sum())
        assert int(ticket) == 0


def test_half_conversions_are_exact(library: KernelLibrary) -> None:
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


def test_indices_in_three_dimensions(library: KernelLibrary) -> None:
    out = torch.zeros(24, 64, dtype=torch.int32)
    for addend, add in ((None, 0), (torch.tensor([5], dtype=torch.int32), 5)):
        run_grid(library, "three_dimensions", (out, addend, 10.0), (2, 3, 4), (4, 2, 8))
        wanted = (torch.arange(64) + 33) % 64 + add + 10 * torch.arange(24)[:, None]
        assert torch.equal(out.long(), wanted)


def test_launches_that_cannot_be_right_are_refused(library: KernelLibrary) -> None:
    with pytest.raises(TypeError, match="takes"):
        run(library, "sum_rows", None, None)
    with pytest.raises(TypeError):
        run(library, "sum_rows", None, None, None)
    with pytest.raises(TypeError, match="no argument of type str"):
        run(library, "sum_rows", None, None, "7")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        run(library, "sum_rows", None, None, 2**31)
    with pytest.raises(KernelCompileError, match="holds no kernel nothing"):
        run(library, "nothing")
    with pytest.raises(DeviceError):
        run(library, "spin", torch.ones(1, dtype=torch.int32), threads=2048)
    test_tensor_core_fragments(library)

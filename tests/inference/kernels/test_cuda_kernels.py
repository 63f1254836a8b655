"""Launches on a real GPU: graphs, streams, shared memory, threads. And what is said without one."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from inference.errors import GPUNotFoundError, GPUTooOldError
from inference.kernels import cuda_kernels as module
from inference.kernels.cuda_kernels import CudaKernels
from tests.inference.kernels.emulator.emulated_kernels import EMULATOR_DIR
from tests.inference.kernels.examples import SOURCE, run

ROUNDS = 60


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> CudaKernels:
    return CudaKernels(cache_dir=tmp_path_factory.mktemp("cubins"), source_dir=EMULATOR_DIR)


def chain(library: CudaKernels, cells: list[torch.Tensor]) -> None:
    """Launches that are wrong unless each sees all of the one before it."""
    size = len(cells[0])
    for index in range(ROUNDS):
        library.launch(
            SOURCE,
            "pass_on",
            grid=(-(-size // 256), 1, 1),
            block=(256, 1, 1),
            args=[cells[index % 2], cells[(index + 1) % 2], size],
        )


@pytest.mark.gpu
def test_dependent_launches_captured_into_a_graph(library: CudaKernels) -> None:
    size = 300_000
    cells = [torch.randint(0, 9, (size,), dtype=torch.int32, device="cuda") for _ in range(2)]
    start = cells[0].clone()
    chain(library, cells)  # compiled before the capture
    assert torch.equal(cells[0], start.roll(-ROUNDS) + ROUNDS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(library, cells)
    cells[0].copy_(start)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(cells[0], start.roll(-3 * ROUNDS) + 3 * ROUNDS)


@pytest.mark.gpu
def test_launches_follow_torchs_current_stream(library: CudaKernels) -> None:
    stream = torch.cuda.Stream()
    start = torch.arange(100_000, dtype=torch.int32, device="cuda")
    cells = [start.clone(), torch.empty_like(start)]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # the default stream would be far ahead
        cells[0].add_(5)
        chain(library, cells)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(cells[0], start.roll(-ROUNDS) + ROUNDS + 5)


@pytest.mark.gpu
def test_more_than_48_kb_of_dynamic_shared_memory(library: CudaKernels) -> None:
    values = torch.randint(-50, 50, (10, 777)).float()
    for shared_bytes in (132, 64 * 1024, 49 * 1024):
        out = torch.zeros(10, 2)
        run(library, "sum_rows", values, out, 777, blocks=10, shared_bytes=shared_bytes)
        assert torch.equal(out[:, 0], values.sum(1))


@pytest.mark.gpu
def test_pinned_host_memory_is_read_in_place_and_other_is_refused(library: CudaKernels) -> None:
    pinned = torch.arange(16, dtype=torch.uint8).pin_memory()
    out = torch.zeros(16, dtype=torch.uint8, device="cuda")
    where = {"grid": (1, 1, 1), "block": (1, 1, 1)}
    offset = module.ctypes.c_uint64(0)
    library.launch(SOURCE, "copy_16", args=[pinned, out, offset], **where)
    assert torch.equal(out.cpu(), pinned)
    with pytest.raises(TypeError, match="not pinned"):
        library.launch(SOURCE, "copy_16", args=[pinned.clone(), out, offset], **where)


@pytest.mark.gpu
def test_another_thread_may_launch(library: CudaKernels) -> None:
    cells = [torch.zeros(1000, dtype=torch.int32, device="cuda") for _ in range(2)]
    thread = threading.Thread(target=chain, args=(library, cells))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(cells[0], torch.full_like(cells[0], ROUNDS))


@pytest.mark.gpu
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(GPUNotFoundError, match="there is no GPU 99; use cuda:0"):
        CudaKernels("cuda:99")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build of torch has CUDA")
def test_without_a_cuda_build_of_torch() -> None:
    with pytest.raises(GPUNotFoundError, match="no CUDA; install the CUDA packages"):
        CudaKernels()


def test_torch_cannot_use_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GPUNotFoundError, match=r"torch finds no GPU; .*nvidia-smi"):
        CudaKernels()

    def too_old() -> bool:
        module.warnings.warn("The NVIDIA driver on your system is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", too_old)
    with pytest.raises(GPUTooOldError, match="too old; install a newer NVIDIA driver"):
        CudaKernels()


@pytest.mark.parametrize(("driver", "fits"), [(12080, False), (13000, True), (14010, True)])
def test_driver_must_know_the_compilers_major_version(driver: int, fits: bool) -> None:
    fake = SimpleNamespace(cuDriverGetVersion=lambda: (0, driver))
    if fits:
        module._check_driver(fake, (13, 5))
    else:
        with pytest.raises(GPUTooOldError, match=r"made for CUDA 12.8, the kernels' compiler for"):
            module._check_driver(fake, (13, 5))


def test_only_cuda_devices(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not on cpu"):
        CudaKernels("cpu", cache_dir=tmp_path)

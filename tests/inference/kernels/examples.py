"""Launching the example kernels, wherever the library runs them."""

from __future__ import annotations

from torch import Tensor

from inference.kernels.library import Grid, KernelArg, KernelLibrary

SOURCE = "example_kernels.cu"


def run(
    library: KernelLibrary,
    kernel: str,
    *args: KernelArg,
    blocks: int = 1,
    threads: int = 32,
    shared_bytes: int = 0,
) -> None:
    """One launch with one-dimensional grid and block; tensors on the CPU hold its results."""
    run_grid(library, kernel, args, (blocks, 1, 1), (threads, 1, 1), shared_bytes)


def run_grid(
    library: KernelLibrary,
    kernel: str,
    args: tuple[KernelArg, ...],
    grid: Grid,
    block: Grid,
    shared_bytes: int = 0,
) -> None:
    """One launch; tensors on the CPU go to the library's device and come back."""
    there = [arg.to(library.device) if isinstance(arg, Tensor) else arg for arg in args]
    library.launch(SOURCE, kernel, grid=grid, block=block, args=there, shared_bytes=shared_bytes)
    for here, result in zip(args, there, strict=True):
        if isinstance(here, Tensor) and isinstance(result, Tensor):
            here.copy_(result)

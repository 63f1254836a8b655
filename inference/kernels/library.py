"""What a launch of a kernel needs, whatever runs it.

Owns the protocol between the wrappers of the kernels and a library of compiled kernels, and the
packing of arguments. Knows no CUDA: a library may as well run the kernels on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

KernelScalar = (
    ctypes.c_int32
    | ctypes.c_uint32
    | ctypes.c_int64
    | ctypes.c_uint64
    | ctypes.c_float
    | ctypes.c_void_p
)
KernelArg = Tensor | int | float | KernelScalar | None

Grid = tuple[int, int, int]


class KernelLibrary(Protocol):
    """Compiles the sources beside this module and launches their kernels on one device."""

    device: torch.device
    multiprocessors: int

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
        """Launch ``extern "C" __global__ kernel`` of the file ``source``, in stream order.

        Args:
            source: File name beside this module, such as ``"linear.cu"``.
            kernel: Name of the kernel in it.
            grid: Blocks in x, y and z.
            block: Threads of one block in x, y and z.
            args: Arguments in order, packed by :func:`pack_arguments`.
            shared_bytes: Size of the dynamic shared memory of one block.
            pdl: Lets the kernel start while the one before it in the stream ends, where the
                device can. False where the launch depends on another stream.

        Raises:
            TypeError: The arguments do not fit the kernel's parameters.
            KernelCompileError: The source does not compile, or holds no such kernel.
        """


def pack_argument(value: KernelArg) -> ctypes._SimpleCData:  # type: ignore[type-arg]
    """The value as the kernel receives it.

    A tensor becomes its address, an int an int32, a float a float32, None the null pointer; a
    ctypes scalar stays as it is.

    Raises:
        TypeError: The value is none of these.
        OverflowError: An int does not fit into 32 bits.
    """
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise OverflowError(f"{value} does not fit into an int32 argument of a kernel")
        return ctypes.c_int32(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    if value is None:
        return ctypes.c_void_p()
    if isinstance(value, ctypes._SimpleCData):
        return value
    raise TypeError(f"a kernel takes no argument of type {type(value).__name__}")


class PackedArguments:
    """Arguments in the form both libraries pass on: an array of pointers to the values."""

    def __init__(self, args: Sequence[KernelArg]) -> None:
        """Pack ``args``; the values live as long as this object."""
        self.values = [pack_argument(value) for value in args]
        self.pointers = (ctypes.c_void_p * max(1, len(self.values)))(
            *[ctypes.addressof(value) for value in self.values]
        )

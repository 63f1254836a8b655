"""Products of decode-step activations with weight matrices, the embedding and the candidates.

Owns the layout of a linear weight and the launches of ``linear.cu``, ``linear_rows.cu`` and
``head.cu``. Knows nothing of models, of layers or of how a weight was quantised. Activations are
fp32, at most eight rows; the result of a row never depends on the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from inference.kernels.library import KernelLibrary

Format = Literal["fp32", "fp16", "int8", "int4"]

MAX_BATCH = 8
NUM_CANDIDATES = 64
LINEAR_SOURCE = "linear.cu"
ROWS_SOURCE = "linear_rows.cu"
HEAD_SOURCE = "head.cu"
# linear.cu: columns of a warp, rows of a tile, warps that a multiprocessor holds (of 128 registers
# a thread) and that a block may have, also where columns do not fill the warps or groups are small.
SLICE, TILE_ROWS, MAX_WARPS, MAX_ODD_WARPS = 256, 8, 16, 8
ROW_WARPS = 4
# head.cu: threads of a block, logits of a block, lists that one block merges.
THREADS, CHUNK, MAX_LISTS = 256, 2048, 256
_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "int8": torch.int8,
    "int4": torch.int32,
}


@dataclass(frozen=True)
class LinearWeight:
    """A weight ``[rows, columns]`` of a product ``x @ W.T``.

    ========  ==========================  ===================================
    format    weight                      scales
    ========  ==========================  ===================================
    fp32      fp32 [rows, columns]        None
    fp16      fp16 [rows, columns]        None
    int8      int8 [rows, columns]        fp32 [rows]
    int4      int32 [rows, columns / 8]   fp16 [rows, columns / group_size]
    ========  ==========================  ===================================

    The bit order of int4 is that of ``inference/checkpoint/int4.py``. ``group_size`` is 0 but for
    int4. Raises ``ValueError`` when the tensors do not fit this table.
    """

    format: Format
    weight: Tensor
    scales: Tensor | None
    rows: int
    columns: int
    group_size: int = 0

    def __post_init__(self) -> None:
        """Refuse tensors that the kernels would read wrongly."""
        stored = self.columns // 8 if self.format == "int4" else self.columns
        _check("weight", self.weight, _DTYPES[self.format], (self.rows, stored))
        if self.columns % 8:
            raise ValueError(f"{self.columns} columns are not a multiple of 8")
        if self.format in ("fp32", "fp16"):
            if self.scales is not None or self.group_size:
                raise ValueError(f"a weight of format {self.format} has no scales")
            return
        if self.scales is None:
            raise ValueError(f"a weight of format {self.format} needs scales")
        if self.format == "int8":
            _check("scales", self.scales, torch.float32, (self.rows,))
            return
        if self.group_size < 8 or self.group_size % 8 or self.columns % self.group_size:
            raise ValueError(f"{self.columns} columns do not divide into groups of 8 and more")
        groups = self.columns // self.group_size
        _check("scales", self.scales, torch.float16, (self.rows, groups))

    @classmethod
    def dense(cls, weight: Tensor) -> LinearWeight:
        """The weight of an fp16 or fp32 tensor ``[rows, columns]``, sharing its memory."""
        rows, columns = weight.shape
        return cls("fp32" if weight.dtype == torch.float32 else "fp16", weight, None, rows, columns)

    @property
    def size_bytes(self) -> int:
        """Bytes of weight and scales."""
        scales = self.scales
        size = self.weight.numel() * self.weight.element_size()
        return size + (0 if scales is None else scales.numel() * scales.element_size())

    def slice_rows(self, start: int, stop: int) -> LinearWeight:
        """Rows ``start`` to ``stop`` (not included) as a view of the same memory."""
        scales = None if self.scales is None else self.scales[start:stop]
        return replace(self, weight=self.weight[start:stop], scales=scales, rows=stop - start)


def rms_linear(
    library: KernelLibrary,
    x: Tensor,
    norm: Tensor | None,
    *,
    eps: float,
    zero_centred: bool,
    weight: LinearWeight,
    out: Tensor,
    pdl: bool = True,
) -> None:
    """Write ``(x / rms(x) * norm) @ W.T`` into ``out``; one launch.

    Args:
        library: Where to launch.
        x: fp32 ``[batch, columns]``, at most eight rows.
        norm: fp32 ``[columns]``; None multiplies ``x`` as it is.
        eps: Added to the mean square of ``x``.
        zero_centred: The factor is ``1 + norm`` instead of ``norm``.
        weight: ``[rows, columns]``.
        out: fp32 ``[batch, rows]``, not overlapping ``x``.
        pdl: As in :meth:`KernelLibrary.launch`.

    Raises:
        ValueError: A tensor has another shape, type or device.
    """
    _multiply(library, x, norm, eps, zero_centred, weight, out, pdl=pdl)


def linear_residual(
    library: KernelLibrary,
    inputs: Tensor,
    weight: LinearWeight,
    residual: Tensor,
    *,
    pdl: bool = True,
) -> None:
    """Add ``inputs @ W.T`` to ``residual`` in place; one launch.

    ``inputs`` is fp32 ``[batch, columns]``, ``residual`` fp32 ``[batch, rows]``. Raises
    ``ValueError`` when a tensor has another shape, type or device.
    """
    _multiply(library, inputs, None, 0.0, False, weight, residual, accumulate=True, pdl=pdl)


def head(
    library: KernelLibrary,
    x: Tensor,
    norm: Tensor | None,
    *,
    eps: float,
    zero_centred: bool,
    weight: LinearWeight,
    mask_bits: Tensor | None,
    logits: Tensor,
    pdl: bool = True,
) -> None:
    """:func:`rms_linear` into ``logits`` fp32 ``[batch, rows]``; excluded tokens get -inf.

    Bit ``i`` of word ``w`` of ``mask_bits`` (int32 ``[batch, ceil(rows / 32)]``) allows token
    ``32 w + i``; None allows all.
    """
    if mask_bits is not None:
        words = (len(x), -(-weight.rows // 32))
        _check("mask_bits", mask_bits, torch.int32, words, x.device)
    _multiply(library, x, norm, eps, zero_centred, weight, logits, mask=mask_bits, pdl=pdl)


def embed(
    library: KernelLibrary, token_ids: Tensor, table: Tensor, x: Tensor, *, pdl: bool = True
) -> None:
    """Write rows of ``table`` into ``x``; one launch.

    Args:
        library: Where to launch.
        token_ids: int32 ``[batch]``; an id outside the table gives a row of zeros.
        table: fp16 or fp32 ``[vocabulary, columns]``, columns a multiple of 8; on the device, or
            in pinned host memory, which the kernel reads directly.
        x: fp32 ``[batch, columns]``.
        pdl: As in :meth:`KernelLibrary.launch`.

    Raises:
        ValueError: A tensor has another shape, type or device, or the table is on the host and
            not pinned.
    """
    vocabulary, columns = table.shape
    batch = len(token_ids)
    _check("token_ids", token_ids, torch.int32, (batch,), x.device)
    _check("x", x, torch.float32, (batch, columns), x.device)
    if table.dtype not in (torch.float16, torch.float32) or not table.is_contiguous():
        raise ValueError(f"the table is {table.dtype}, not contiguous fp16 or fp32")
    if columns % 8:
        raise ValueError(f"{columns} columns are not a multiple of 8")
    if table.device != x.device and not table.is_pinned():
        raise ValueError("the kernel reads a table on the host only if it is pinned")
    format_, per_thread = ("fp16", 8) if table.dtype == torch.float16 else ("fp32", 4)
    threads = min(THREADS, -(-columns // (per_thread * 32)) * 32)
    library.launch(
        HEAD_SOURCE,
        f"embed_{format_}",
        grid=(-(-columns // (per_thread * threads)), batch, 1),
        block=(threads, 1, 1),
        args=[token_ids, table, x, vocabulary, columns],
        pdl=pdl,
    )


def candidate_scratch(max_batch: int, vocabulary: int, device: torch.device) -> Tensor:
    """Scratch memory of :func:`top_candidates` for up to ``max_batch`` rows: 61 KiB a row of
    250,000 logits. Raises ``ValueError`` for more than 524,288 logits a row."""
    lists = -(-vocabulary // CHUNK)
    if lists > MAX_LISTS:
        raise ValueError(f"a vocabulary of {vocabulary} is larger than {MAX_LISTS * CHUNK}")
    return torch.empty(max_batch, lists, NUM_CANDIDATES, dtype=torch.int64, device=device)


def top_candidates(
    library: KernelLibrary,
    logits: Tensor,
    ids: Tensor,
    values: Tensor,
    scratch: Tensor,
    *,
    pdl: bool = True,
) -> None:
    """Write the 64 tokens of the largest logits of each row, best first; two launches.

    Args:
        library: Where to launch.
        logits: fp32 ``[batch, vocabulary]``; NaN counts as -inf.
        ids: int32 ``[batch, 64]``; of equal logits the lower id comes first, so column 0 is the
            greedy token. -1 where the vocabulary has fewer tokens.
        values: fp32 ``[batch, 64]``, the logits of ``ids``; -inf where there is none.
        scratch: From :func:`candidate_scratch`, for this vocabulary and at least this batch.
        pdl: As in :meth:`KernelLibrary.launch`.

    Raises:
        ValueError: A tensor has another shape, type or device.
    """
    batch, vocabulary = logits.shape
    lists = -(-vocabulary // CHUNK)
    _check("logits", logits, torch.float32, (batch, vocabulary), logits.device)
    _check("ids", ids, torch.int32, (batch, NUM_CANDIDATES), logits.device)
    _check("values", values, torch.float32, (batch, NUM_CANDIDATES), logits.device)
    scratch_shape = (max(batch, len(scratch)), lists, NUM_CANDIDATES)
    _check("scratch", scratch, torch.int64, scratch_shape, logits.device)
    library.launch(
        HEAD_SOURCE,
        "top_local",
        grid=(lists, batch, 1),
        block=(THREADS, 1, 1),
        args=[logits, scratch, vocabulary],
        pdl=pdl,
    )
    library.launch(
        HEAD_SOURCE,
        "top_merge",
        grid=(batch, 1, 1),
        block=(THREADS, 1, 1),
        args=[scratch, ids, values, lists],
    )


def _check(
    name: str,
    tensor: Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device | None = None,
) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}, not contiguous {dtype} {list(shape)}"
        )
    if device is not None and tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, not on {device}")


@dataclass(frozen=True)
class Kernel:
    """Where a product runs, and the warps of a block."""

    source: str
    name: str
    warps: int


def kernel_of(weight: LinearWeight) -> Kernel:
    """The kernel for ``weight``: of ``linear.cu`` wherever that takes it."""
    narrow = weight.format == "int4" and weight.group_size % 128 != 0
    warps = max(2, -(-weight.columns // SLICE))
    whole = warps * SLICE == weight.columns
    fits = warps <= (MAX_WARPS if whole and not narrow else MAX_ODD_WARPS)
    divides = weight.columns % 32 == 0 and (not narrow or weight.group_size % 32 == 0)
    if weight.format == "fp32" or not fits or not divides:
        return Kernel(ROWS_SOURCE, f"rows_{weight.format}", ROW_WARPS)
    name = f"linear_{weight.format}" + ("_narrow" if narrow else "")
    return Kernel(LINEAR_SOURCE, name if whole else f"{name}_ragged", warps)


def _multiply(
    library: KernelLibrary,
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    zero_centred: bool,
    weight: LinearWeight,
    out: Tensor,
    *,
    mask: Tensor | None = None,
    accumulate: bool = False,
    pdl: bool,
) -> None:
    batch = len(x)
    device = weight.weight.device
    if not 1 <= batch <= MAX_BATCH:
        raise ValueError(f"a batch of {batch} rows is not within 1..{MAX_BATCH}")
    _check("x", x, torch.float32, (batch, weight.columns), device)
    _check("out", out, torch.float32, (batch, weight.rows), device)
    if norm is not None:
        _check("norm", norm, torch.float32, (weight.columns,), device)
    kernel = kernel_of(weight)
    warps = kernel.warps
    if kernel.source == ROWS_SOURCE:
        blocks = min(-(-weight.rows // warps), library.multiprocessors * MAX_WARPS)
        shared_bytes = 0
    else:
        if x.data_ptr() % 16 or weight.weight.data_ptr() % 16:
            raise ValueError("x or the weight is not aligned to 16 bytes")
        blocks = min(-(-weight.rows // TILE_ROWS), library.multiprocessors * (MAX_WARPS // warps))
        shared_bytes = 4 * (64 + warps * (SLICE + 2 * MAX_BATCH + 2 * 64))
    library.launch(
        kernel.source,
        kernel.name,
        grid=(blocks, 1, 1),
        block=(warps * 32, 1, 1),
        args=[
            *(x, norm, weight.weight, weight.scales, mask, out),
            *(batch, weight.rows, weight.columns, weight.group_size),
            *(float(eps), int(zero_centred), int(accumulate)),
        ],
        shared_bytes=shared_bytes,
        pdl=pdl,
    )

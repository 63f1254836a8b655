"""One decode step of attention over paged keys and values.

Owns the launch of ``attention.cu``: how a step is split over blocks and what scratch memory that
takes. Knows nothing of sequences or of who hands out pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kernels.library import KernelLibrary

SOURCE = "attention.cu"
MIN_TOKENS_PER_SPLIT = 32
MAX_SPLITS = 256
THREADS = 256
HEADS_PER_BLOCK = 8
MAX_HEAD_DIM = 256
# attention.cu: the merge of eight warps and the softmax state of 32 writers, then the pages.
SHARED_BYTES = 4 * (8 * 32 * 8 * 4 + 2 * 8 * 32)
MAX_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True)
class KVLayer:
    """Keys and values of one layer: ``[num_pages, num_kv_heads, page_size, head_dim]``.

    fp32, fp16, or uint8 holding e4m3 numbers; then ``key_scales`` and ``value_scales`` (fp32,
    ``[num_pages, num_kv_heads, page_size]``) hold one factor a token and head.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def page_size(self) -> int:
        """Tokens of one page; a power of two from 4 on."""
        return int(self.keys.shape[2])


@dataclass(frozen=True)
class AttentionWorkspace:
    """Scratch memory of :func:`attention_step`, shared by all layers; fp32.

    ``partial`` holds one vector a row, head and split, ``stats`` its maximum and sum.
    """

    partial: Tensor
    stats: Tensor

    @property
    def size_bytes(self) -> int:
        """Bytes of both parts."""
        return 4 * (self.partial.numel() + self.stats.numel())


def num_splits(lib: KernelLibrary, batch: int, num_heads: int, num_kv_heads: int) -> int:
    """Splits of the tokens of a row: about one block a multiprocessor over the whole batch."""
    blocks = batch * _head_blocks(num_heads, num_kv_heads)
    return max(1, min(MAX_SPLITS, lib.multiprocessors // blocks))


def attention_workspace(
    lib: KernelLibrary, *, max_batch: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> AttentionWorkspace:
    """Scratch memory for every batch of at most ``max_batch`` rows."""
    vectors = num_heads * max(
        batch * num_splits(lib, batch, num_heads, num_kv_heads) for batch in range(1, max_batch + 1)
    )
    return AttentionWorkspace(
        torch.empty(vectors * head_dim, dtype=torch.float32, device=lib.device),
        torch.empty(vectors * 2, dtype=torch.float32, device=lib.device),
    )


def attention_step(
    lib: KernelLibrary,
    projected: Tensor,
    *,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    zero_centred: bool,
    gated: bool,
    rotary: tuple[Tensor, Tensor],
    positions: Tensor,
    block_tables: Tensor,
    pages: KVLayer,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    workspace: AttentionWorkspace,
    out: Tensor,
    pdl: bool = True,
) -> None:
    """Write the new token's key and value into its page, attend to positions 0 to its own.

    ``positions`` and ``block_tables`` are read before the kernels in front are done: no kernel
    of the same step may write them, and between two steps on the same pages something must run
    that is not launched with ``pdl`` (a copy, a graph launch).

    Args:
        projected: fp32 ``[B, N]``: queries (``num_heads * head_dim``; when ``gated``
            ``[query | gate]`` per head), then keys, then values.
        q_norm: fp32 ``[head_dim]``, weight of the RMS norm of every query head; None = no norm.
        k_norm: The same for the keys.
        zero_centred: The norms multiply by ``1 + weight``.
        rotary: Cosines and sines, fp32 ``[max_model_len, rotary_dim / 2]``; dimension i is
            rotated with i + rotary_dim / 2.
        positions: int32 ``[B]``; a negative one marks padding: nothing is written, ``out`` is 0.
        block_tables: int32 ``[B, P]``, page of tokens ``i * page_size`` and on.
        out: fp32 ``[B, num_heads * head_dim]``; times sigmoid(gate) when ``gated``.

    Raises:
        ValueError: The kernels do not cover these sizes or dtypes.
    """
    cosine, sine = rotary
    batch = int(projected.shape[0])
    splits = num_splits(lib, batch, num_heads, num_kv_heads)
    query_columns = num_heads * head_dim * (2 if gated else 1)
    if projected.shape[1] != query_columns + 2 * num_kv_heads * head_dim:
        raise ValueError(f"{projected.shape[1]} projected columns do not fit the heads")
    _check(pages, head_dim, num_heads, num_kv_heads, int(cosine.shape[1]))
    kernel = _kernel(pages, head_dim)
    vectors = batch * num_heads * splits
    if workspace.stats.numel() < 2 * vectors:
        raise ValueError(f"the workspace is too small for {batch} rows")
    lib.launch(
        SOURCE,
        kernel,
        grid=(_head_blocks(num_heads, num_kv_heads), splits, batch),
        block=(THREADS, 1, 1),
        args=[
            *(projected, q_norm, k_norm, float(eps), int(zero_centred), int(gated)),
            *(cosine, sine, int(cosine.shape[1]), positions),
            *(block_tables, int(block_tables.shape[1])),
            *(pages.keys, pages.values, pages.key_scales, pages.value_scales),
            *(num_heads, num_kv_heads, head_dim, pages.page_size.bit_length() - 1),
            *(splits, MIN_TOKENS_PER_SPLIT, workspace.partial, workspace.stats),
        ],
        shared_bytes=_shared_bytes(block_tables, pages, splits),
        pdl=pdl,
    )
    lib.launch(
        SOURCE,
        "combine",
        grid=(num_heads, (head_dim + 63) // 64, batch),
        block=(256, 1, 1),
        args=[
            *(workspace.partial, workspace.stats, projected, positions, int(gated)),
            *(num_heads, num_kv_heads, head_dim, splits, MIN_TOKENS_PER_SPLIT, out),
        ],
        pdl=pdl,
    )


def _head_blocks(num_heads: int, num_kv_heads: int) -> int:
    group = num_heads // num_kv_heads
    return num_kv_heads * ((group + HEADS_PER_BLOCK - 1) // HEADS_PER_BLOCK)


def _kernel(pages: KVLayer, head_dim: int) -> str:
    """The kernel with as many lanes a token as its dtype and ``head_dim`` want."""
    if pages.keys.dtype == torch.float32:
        return "attend_fp32"
    if pages.keys.dtype == torch.uint8 and pages.key_scales is not None:
        return "attend_fp8_128" if head_dim <= 128 else "attend_fp8_256"
    if pages.keys.dtype == torch.float16:
        lanes_cover = next(size for size in (64, 128, MAX_HEAD_DIM) if head_dim <= size)
        return f"attend_fp16_{lanes_cover}"
    raise ValueError(f"no attention kernel for pages of {pages.keys.dtype}")


def _check(
    pages: KVLayer, head_dim: int, num_heads: int, num_kv_heads: int, half_rotary: int
) -> None:
    page_size = pages.page_size
    if page_size < 4 or page_size & (page_size - 1):
        raise ValueError(f"page size {page_size} is no power of two from 4 on")
    if head_dim % 8 or not 8 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head_dim {head_dim} is no multiple of 8 up to {MAX_HEAD_DIM}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads do not share {num_kv_heads} key-value heads evenly")
    if 2 * half_rotary > head_dim:
        raise ValueError(f"{2 * half_rotary} rotary dimensions of a head of {head_dim}")
    if pages.keys.shape[1] != num_kv_heads or pages.keys.shape[3] != head_dim:
        raise ValueError(f"pages of shape {tuple(pages.keys.shape)} do not fit the heads")


def _shared_bytes(block_tables: Tensor, pages: KVLayer, splits: int) -> int:
    """Shared memory of a block, whose split may be as long as the block tables allow."""
    longest = int(block_tables.shape[1]) * pages.page_size
    share = max(MIN_TOKENS_PER_SPLIT, -(-longest // splits)) + 3
    size = SHARED_BYTES + 4 * (share // pages.page_size + 2)
    if size > MAX_SHARED_BYTES:
        raise ValueError(
            f"{longest} tokens in {splits} splits need {size} bytes of shared memory, a block "
            f"has {MAX_SHARED_BYTES}: use larger pages or a shorter max_model_len"
        )
    return size

"""The linear kernels at the shapes of the 35B model, on the GPU."""

from __future__ import annotations

import pytest
import torch

from inference.kernels.cuda_kernels import CudaKernels
from inference.kernels.linear import (
    Format,
    LinearWeight,
    candidate_scratch,
    embed,
    head,
    linear_residual,
    rms_linear,
    top_candidates,
)
from inference.kernels.quantize import dequantize
from inference.kernels.reference_linear import (
    embed_reference,
    mask_logits_reference,
    rms_linear_reference,
    top_candidates_reference,
)

pytestmark = pytest.mark.gpu

VOCABULARY, HIDDEN = 248_320, 2048
# Of the largest output of a row; the reference is formed in fp64.
TOLERANCE = 2e-6


def random_weight(format_: Format, rows: int, columns: int) -> LinearWeight:
    """Random bits in the format: quantising a head of this size would take minutes."""
    if format_ == "fp16":
        weight = torch.randn(rows, columns, dtype=torch.float16, device="cuda") * 0.02
        return LinearWeight.dense(weight)
    if format_ == "int8":
        levels = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device="cuda")
        scales = torch.rand(rows, device="cuda") * 1e-3
        return LinearWeight("int8", levels, scales, rows, columns)
    words = torch.randint(
        -(2**31), 2**31, (rows, columns // 8), dtype=torch.int64, device="cuda"
    ).to(torch.int32)
    half_scales = (torch.randn(rows, columns // 128, device="cuda") * 1e-2).half()
    return LinearWeight("int4", words, half_scales, rows, columns, 128)


def assert_close_in_blocks(
    actual: torch.Tensor,
    x: torch.Tensor,
    norm: torch.Tensor | None,
    weight: LinearWeight,
    residual: torch.Tensor | None = None,
) -> None:
    """Against the reference, 8,192 weight rows at a time."""
    for start in range(0, weight.rows, 8192):
        part = weight.slice_rows(start, min(start + 8192, weight.rows))
        expected = rms_linear_reference(x, norm, eps=1e-6, zero_centred=True, weight=part)
        if residual is not None:
            expected = expected + residual[:, start : start + 8192]
        error = (actual[:, start : start + 8192].double() - expected).abs().amax(-1)
        assert bool((error <= TOLERANCE * expected.abs().amax(-1)).all()), error.tolist()


@pytest.mark.parametrize("format_", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("rows", "columns"), [(12_352, 2048), (9_216, 2048), (512, 2048), (2048, 4096)]
)
def test_backbone_shapes(
    cuda_kernels: CudaKernels, format_: Format, batch: int, rows: int, columns: int
) -> None:
    torch.manual_seed(1)
    weight = random_weight(format_, rows, columns)
    x, norm = torch.randn(batch, columns, device="cuda"), torch.randn(columns, device="cuda")
    out = torch.empty(batch, rows, device="cuda")
    settings = {"eps": 1e-6, "zero_centred": True, "weight": weight}
    rms_linear(cuda_kernels, x, norm, **settings, out=out)  # type: ignore[arg-type]
    assert_close_in_blocks(out, x, norm, weight)
    again = torch.empty_like(out)
    rms_linear(cuda_kernels, x, norm, **settings, out=again)  # type: ignore[arg-type]
    assert torch.equal(out, again)
    alone = torch.empty(1, rows, device="cuda")
    rms_linear(cuda_kernels, x[-1:].clone(), norm, **settings, out=alone)  # type: ignore[arg-type]
    assert torch.equal(alone[0], out[-1])
    before = torch.randn(batch, rows, device="cuda")
    residual = before.clone()
    linear_residual(cuda_kernels, x, weight, residual)
    assert_close_in_blocks(residual, x, None, weight, before)


@pytest.mark.parametrize("format_", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("batch", [1, 8])
def test_head_and_candidates(cuda_kernels: CudaKernels, format_: Format, batch: int) -> None:
    torch.manual_seed(2)
    weight = random_weight(format_, VOCABULARY, HIDDEN)
    x, norm = torch.randn(batch, HIDDEN, device="cuda"), torch.randn(HIDDEN, device="cuda")
    mask = torch.randint(
        -(2**31), 2**31, (batch, VOCABULARY // 32), dtype=torch.int64, device="cuda"
    ).to(torch.int32)
    logits = torch.empty(batch, VOCABULARY, device="cuda")
    settings = {"eps": 1e-6, "zero_centred": True, "weight": weight}
    head(cuda_kernels, x, norm, **settings, mask_bits=None, logits=logits)  # type: ignore[arg-type]
    assert_close_in_blocks(logits, x, norm, weight)
    masked = torch.empty_like(logits)
    head(cuda_kernels, x, norm, **settings, mask_bits=mask, logits=masked)  # type: ignore[arg-type]
    assert torch.equal(masked, mask_logits_reference(logits, mask))
    ids = torch.empty(batch, 64, dtype=torch.int32, device="cuda")
    values = torch.empty(batch, 64, device="cuda")
    scratch = candidate_scratch(batch, VOCABULARY, logits.device)
    for rows in (logits, masked, logits.round(), torch.zeros_like(logits)):
        top_candidates(cuda_kernels, rows, ids, values, scratch)
        expected_ids, expected_values = top_candidates_reference(rows)
        assert torch.equal(ids, expected_ids)
        assert torch.equal(values, expected_values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_embed_reads_pinned_host_memory(cuda_kernels: CudaKernels, dtype: torch.dtype) -> None:
    table = torch.randn(1000, HIDDEN).to(dtype).pin_memory()
    token_ids = torch.tensor([0, 999, -1, 1000, 5, 6, 7, 8], dtype=torch.int32, device="cuda")
    x = torch.full((8, HIDDEN), torch.nan, device="cuda")
    embed(cuda_kernels, token_ids, table, x)
    assert torch.equal(x, embed_reference(token_ids, table))
    with pytest.raises(ValueError, match="only if it is pinned"):
        embed(cuda_kernels, token_ids, table.clone(), x)


def test_chain_in_a_graph_sees_each_result(cuda_kernels: CudaKernels) -> None:
    """Kernels start while the one before ends; each must still see what that one wrote."""
    torch.manual_seed(3)
    weight = random_weight("fp16", HIDDEN, HIDDEN)
    weight.weight.mul_(0.5)
    norm = torch.randn(HIDDEN, device="cuda")
    start = torch.randn(1, HIDDEN, device="cuda")
    residual, hidden = start.clone(), torch.empty(1, HIDDEN, device="cuda")

    def step() -> None:
        residual.copy_(start)
        for _ in range(20):
            settings = {"eps": 1e-6, "zero_centred": True, "weight": weight}
            rms_linear(cuda_kernels, residual, norm, **settings, out=hidden)  # type: ignore[arg-type]
            linear_residual(cuda_kernels, hidden, weight, residual)

    step()
    torch.cuda.synchronize()
    eager = residual.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(residual, eager)
    dense = dequantize(weight, torch.float64)
    expected = start.double()
    for _ in range(20):
        scale = torch.rsqrt(expected.square().mean(-1, keepdim=True) + 1e-6)
        expected = expected + (expected * scale * (1 + norm.double())) @ dense.T @ dense.T
    assert float((residual.double() - expected).norm() / expected.norm()) < 1e-4

"""Backbones in bf16, int8 and int4 on the CPU, against fp32.

Tolerances are of logits, relative to their size, for the median of nine steps: a rounding now and
then makes a router choose another expert, and a step where it does differs by much more. One
rounding of a weight to bf16 is 0.2 %, to int8 0.7 %, to int4 in groups of 32 8 %; these small
models of wide weights multiply it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inference.checkpoint.loader import load_model
from inference.engine.cpu_linear import Int8Matrix, MatrixLinear, Projection
from inference.engine.model_runner import ModelRunner
from inference.moe.packed_matrix import is_supported

DIRS = ["tiny_model_dir", "tiny_hybrid_dir"]


def logits_of(folder: Path, dtype: torch.dtype, **options: Any) -> torch.Tensor:
    """The same tokens whatever is answered: prompts in two chunks, then eight steps."""
    runner = ModelRunner(
        load_model(folder, dtype=dtype), max_num_seqs=2, max_model_len=128, **options
    )
    prompt = [index * 7 % 640 for index in range(60)]
    runner.prefill(prompt[:40], 0, 0)
    rows = [runner.prefill(prompt[40:], 0, 40)]
    rows += [runner.decode([5 + step], [0], [60 + step])[0] for step in range(8)]
    return torch.stack(rows)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The median row's error."""
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).median())


@pytest.mark.parametrize("fixture", DIRS)
@pytest.mark.parametrize(
    ("dtype", "options", "tolerance"),
    [
        (torch.bfloat16, {}, 0.1),
        (torch.float32, {"backbone_dtype": "int8", "lm_head_dtype": "int8"}, 0.2),
        (torch.bfloat16, {"backbone_dtype": "int8", "lm_head_dtype": "int8"}, 0.2),
    ],
)
def test_smaller_backbones_stay_close_to_fp32(
    request: pytest.FixtureRequest,
    fixture: str,
    dtype: torch.dtype,
    options: dict[str, Any],
    tolerance: float,
) -> None:
    folder = request.getfixturevalue(fixture)
    exact = logits_of(folder, torch.float32)
    close = logits_of(folder, dtype, **options)
    assert close.dtype is torch.float32
    assert 0 < relative(close, exact) < tolerance


@pytest.mark.skipif(not is_supported(128, 128, 32), reason="no INT4 kernel for this processor")
def test_an_int4_head_changes_the_logits_by_its_rounding_only(tiny_model_dir: Path) -> None:
    exact = logits_of(tiny_model_dir, torch.float32)
    close = logits_of(tiny_model_dir, torch.float32, lm_head_dtype="int4")
    assert 0 < relative(close, exact) < 0.12


@pytest.mark.parametrize("num_rows", [1, 4, 5, 12, 13, 50])
def test_int8_products_are_within_one_percent(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    weight, inputs = torch.randn(96, 128), torch.randn(num_rows, 128)
    weight[3] = 0.0
    product = Int8Matrix(weight).product(inputs)
    assert relative(product, inputs @ weight.t()) < 0.012
    assert product[:, 3].eq(0).all()


def test_a_projection_of_fp32_layers_is_one_matrix_with_their_biases() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(16, rows) for rows in (8, 4, 4)]
    inputs, residual = torch.randn(3, 16), torch.randn(3, 16)
    expected = torch.cat([layer(inputs) for layer in layers], dim=1)
    projection = Projection(*layers)
    assert torch.allclose(projection.product(inputs), expected, atol=1e-6)
    assert torch.allclose(projection.added_to(residual, inputs), residual + expected, atol=1e-6)


def test_rows_of_other_layers_keep_the_shape_of_their_input() -> None:
    linear = MatrixLinear(Int8Matrix(torch.randn(24, 16)))
    assert linear(torch.randn(2, 5, 16)).shape == (2, 5, 24)

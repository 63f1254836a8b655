"""The linear layer over quantised weights against nn.Linear on the dense ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inference.engine.quantized_linear import DequantizeWorkspace, QuantizedLinear
from inference.kernels.linear import LinearWeight
from inference.kernels.quantize import dequantize, quantize_int4_linear, quantize_int8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("workspace_rows", [70, 64, 9, 1])
@pytest.mark.parametrize("format_", ["int8", "int4", "fp16"])
def test_equals_the_dense_layer(dtype: torch.dtype, workspace_rows: int, format_: str) -> None:
    torch.manual_seed(1)
    dense = torch.randn(64, 128) * 0.1
    weight = {
        "int8": quantize_int8,
        "int4": quantize_int4_linear,
        "fp16": lambda w: LinearWeight.dense(w.half()),
    }[format_](dense)
    stock = nn.Linear(128, 64, bias=False).to(dtype)
    stock.weight.data = dequantize(weight, dtype)
    workspace = DequantizeWorkspace(workspace_rows * 128, dtype, "cpu")
    layer = QuantizedLinear(weight, workspace)
    x = torch.randn(2, 5, 128).to(dtype)
    actual = layer(x)
    assert actual.dtype == dtype
    assert actual.shape == (2, 5, 64)
    # Blocks of rows may sum in another order.
    tolerance = 1e-5 if dtype == torch.float32 else 5e-3
    assert torch.allclose(actual, stock(x), rtol=tolerance, atol=tolerance)
    assert workspace.size_bytes == workspace_rows * 128 * dtype.itemsize


def test_layers_share_one_workspace() -> None:
    workspace = DequantizeWorkspace(4096, torch.float32, "cpu")
    dense = [torch.randn(64, 64), torch.randn(32, 64)]
    layers = [QuantizedLinear(quantize_int8(w), workspace) for w in dense]
    x = torch.randn(3, 64)
    results = [layer(x) for layer in layers]
    for result, layer in zip(results, layers, strict=True):
        assert torch.allclose(result, x @ dequantize(layer.linear_weight).T, atol=1e-4)
    assert not list(layers[0].parameters())
    assert not list(layers[0].buffers())


def test_misfits_are_refused() -> None:
    weight = quantize_int8(torch.randn(8, 64))
    with pytest.raises(ValueError, match="holds no row of 64"):
        QuantizedLinear(weight, DequantizeWorkspace(63, torch.float32, "cpu"))
    layer = QuantizedLinear(weight, DequantizeWorkspace(64, torch.float16, "cpu"))
    with pytest.raises(ValueError, match=r"the input is torch.float32"):
        layer(torch.randn(2, 64))

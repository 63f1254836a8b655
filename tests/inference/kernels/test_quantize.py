"""INT8 and INT4 forms of linear weights."""

from __future__ import annotations

import pytest
import torch

from inference.checkpoint import int4
from inference.kernels import quantize
from inference.kernels.quantize import dequantize, quantize_int4_linear, quantize_int8


def test_int8_error_is_half_a_step() -> None:
    dense = torch.randn(50, 96) * torch.logspace(-6, 3, 50).unsqueeze(-1)
    weight = quantize_int8(dense)
    step = dense.abs().amax(-1, keepdim=True) / 127
    error = (dequantize(weight) - dense).abs()
    assert bool((error <= 0.5001 * step).all())
    assert int(weight.weight.abs().max()) == 127
    assert weight.size_bytes == 50 * 96 + 4 * 50


def test_int8_takes_rows_of_zeros_and_of_tiny_values() -> None:
    dense = torch.zeros(3, 64)
    dense[1] = 1e-42  # a subnormal row must not become NaN
    dense[2, 5] = -2.0
    restored = dequantize(quantize_int8(dense))
    assert torch.equal(restored[0], dense[0])
    assert bool(restored.isfinite().all())
    assert float((restored - dense).abs().max()) < 1e-6


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_values_that_are_no_numbers_are_refused(bad: float) -> None:
    dense = torch.zeros(3, 64)
    dense[1, 7] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        quantize_int8(dense)
    with pytest.raises(ValueError, match="NaN or infinite"):
        quantize_int4_linear(dense, 32)


def test_int4_is_the_checkpoint_format() -> None:
    dense = torch.randn(20, 128)
    weight = quantize_int4_linear(dense, 64)
    packed = int4.quantize(dense, 64)
    assert torch.equal(weight.weight, packed.qweight)
    assert weight.scales is not None
    assert torch.equal(weight.scales, packed.scales)
    assert torch.equal(dequantize(weight), int4.dequantize(packed))
    half = dequantize(weight, torch.float16)
    assert torch.allclose(half.float(), int4.dequantize(packed), rtol=2**-11, atol=1e-7)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.randn(23, 64)
    whole = [quantize_int8(dense), quantize_int4_linear(dense, 32)]
    monkeypatch.setattr(quantize, "BLOCK_ELEMENTS", 64 * 5)
    for before, after in zip(
        whole, [quantize_int8(dense), quantize_int4_linear(dense, 32)], strict=True
    ):
        assert torch.equal(before.weight, after.weight)
        assert before.scales is not None
        assert after.scales is not None
        assert torch.equal(before.scales, after.scales)

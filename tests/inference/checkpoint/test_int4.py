from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.checkpoint import int4


def test_nibble_i_of_a_word_is_column_8c_plus_i_stored_plus_8() -> None:
    q = torch.tensor([[-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]])
    words = int4.pack(q)
    assert words.dtype == torch.int32
    assert [word & 0xFFFFFFFF for word in words[0].tolist()] == [0x76543210, 0xFEDCBA98]


@given(st.lists(st.integers(-8, 7), min_size=8, max_size=64).filter(lambda q: len(q) % 8 == 0))
def test_unpack_inverts_pack(q: list[int]) -> None:
    assert int4.unpack(int4.pack(torch.tensor([q])))[0].tolist() == q


def test_representable_weights_survive_exactly() -> None:
    torch.manual_seed(0)
    q = torch.randint(-8, 8, (16, 64))
    q[:, ::32] = -8
    weight = q * 0.25
    assert torch.equal(int4.round_trip(weight, 32), weight)


def test_error_is_below_plain_rounding_to_nearest() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 128)
    groups = weight.reshape(64, 4, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 7
    plain = ((groups / scale).round() * scale).reshape(64, 128)
    ours = int4.round_trip(weight, 32)
    assert (ours - weight).norm() < 0.95 * (plain - weight).norm()
    assert (ours - weight).norm() < 0.1 * weight.norm()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.floats(1e-3, 10))
def test_every_value_is_within_one_step(seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = size * torch.randn(4, 32, generator=generator)
    packed = int4.quantize(weight, 32)
    step = packed.scales.float().abs()
    assert ((int4.dequantize(packed) - weight).abs() <= 2 * step + 1e-6).all()


def test_a_group_of_zeros_stays_zero() -> None:
    weight = torch.zeros(2, 64)
    weight[:, 32:] = 1.0
    assert torch.equal(int4.round_trip(weight, 32)[:, :32], torch.zeros(2, 32))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    weight = torch.ones(2, 32)
    weight[1, 3] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        int4.quantize(weight, 32)


def test_columns_must_be_a_multiple_of_the_group() -> None:
    with pytest.raises(ValueError, match="48 columns"):
        int4.quantize(torch.ones(2, 48), 32)

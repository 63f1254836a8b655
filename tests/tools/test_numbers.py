"""Figures in words."""

from __future__ import annotations

import datetime
import decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.numbers import format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "空"),
        (0, "0"),
        (-0.001, "-0.001"),
        (7, "7"),
        (9999, "9999"),
        (9999.994, "9999.99"),
        (9999.996, "1万"),
        (10000, "1万"),
        (12345678, "1234.57万"),
        (99_999_949, "9999.99万"),
        (99_999_950, "1亿"),
        (123456789, "1.23亿"),
        (-45000, "-4.5万"),
        (1.23e15, "1230万亿"),
        (10**19, "10000000万亿"),
        (10**30, "1.00e+30"),
        (2.675, "2.68"),
        (100.10, "100.1"),
        (1 / 3, "0.333"),
        (1e-9, "1.00e-9"),
        (float("nan"), "—"),
        (float("inf"), "—"),
        (True, "是"),
        ("华东", "华东"),
        (decimal.Decimal("12.345"), "12.35"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02 03:04:05"),
    ],
)
def test_format(value: object, text: str) -> None:
    assert format_number(value) == text  # type: ignore[arg-type]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-9e19, max_value=9e19))
def test_what_is_shown_is_near_the_value(value: float) -> None:
    text = format_number(value)
    scale = 1.0
    for unit, size in (("万亿", 1e12), ("亿", 1e8), ("万", 1e4)):
        if text.endswith(unit):
            text, scale = text.removesuffix(unit), size
            break
    assert "e+" not in text
    assert abs(float(text) * scale - value) <= 0.00501 * max(scale, 1.0) + abs(value) * 1e-12


@given(st.integers(min_value=-9999, max_value=9999))
def test_small_integers_are_exact(value: int) -> None:
    assert format_number(value) == str(value)

"""How figures are written for people: 万, 亿, two decimals, never 8.1e+07.

Owns the wording of one value. Knows nothing of columns, tables or charts.
"""

from __future__ import annotations

import datetime
import decimal
import math

from tools.base import Value

EMPTY = "空"
NOT_A_NUMBER = "—"
_READABLE = decimal.Decimal("1e20")
_UNITS: tuple[tuple[float, str], ...] = ((1e12, "万亿"), (1e8, "亿"), (1e4, "万"))


def format_number(value: Value) -> str:
    """One value in words.

    ``1.23亿`` from 1e8, ``1234.57万`` from 1e4, else at most two decimals; a size below 1 keeps
    three significant digits so that ratios survive. ``None`` is 空, NaN is —, text stays text.
    """
    if value is None:
        return EMPTY
    if isinstance(value, bool):
        return "是" if value else "否"
    if isinstance(value, str):
        return value
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return _figure(value)


def is_number(value: Value) -> bool:
    """True for a finite int, float or Decimal; booleans are not figures."""
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _figure(value: int | float | decimal.Decimal) -> str:
    if not isinstance(value, int) and not math.isfinite(value):
        return NOT_A_NUMBER
    # Decimal arithmetic: an integer of any size stays exact until it is rounded.
    exact = decimal.Decimal(value) if not isinstance(value, float) else decimal.Decimal(repr(value))
    if abs(exact) >= _READABLE:
        return f"{exact:.2e}"
    for size, unit in _UNITS:
        if abs(exact) >= _threshold(size):
            return _trim(_round2(exact / decimal.Decimal(size))) + unit
    if exact and abs(exact) < 1:
        return _small(exact)
    return _trim(_round2(exact))


def _threshold(size: float) -> decimal.Decimal:
    """The least value written in a unit: 99,999,950 reads 1亿, since in 万 it would read 10000."""
    below = {1e12: "1e8", 1e8: "1e4", 1e4: "1"}[size]
    return decimal.Decimal(size) - decimal.Decimal("0.005") * decimal.Decimal(below)


def _round2(value: decimal.Decimal) -> decimal.Decimal:
    with decimal.localcontext() as context:
        context.prec = max(28, value.adjusted() + 8)
        return value.quantize(decimal.Decimal("0.01"), rounding=decimal.ROUND_HALF_UP)


def _small(value: decimal.Decimal) -> str:
    rounded = +value.normalize(decimal.Context(prec=3, rounding=decimal.ROUND_HALF_UP))
    if abs(rounded) < decimal.Decimal("1e-6"):
        return f"{rounded:.2e}"
    return _trim(rounded)


def _trim(value: decimal.Decimal) -> str:
    text = f"{value:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in {"-0", ""} else text

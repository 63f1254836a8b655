"""How a Python value is shown to the model. Standard library only: the native child loads it."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Any


def value_text(value: Any) -> str:
    """A value as Python would show it, floats without binary noise (0.1 + 0.2 is 0.3)."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inner(k)}: {_inner(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_inner(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | range):
        return "[" + ", ".join(_inner(v) for v in value) + "]"
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return str(value)


def _inner(value: Any) -> str:
    return repr(value) if isinstance(value, str) else value_text(value)


def _float_text(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    rounded = float(f"{value:.12g}")
    if rounded.is_integer() and abs(rounded) < 1e15:
        return str(int(rounded))
    if 1e-6 <= abs(rounded) < 1e15:
        return format(decimal.Decimal(repr(rounded)), "f")
    return repr(rounded)


def shortened(text: str, limit: int) -> str:
    """``text``, or its head and tail with a line that says how much is left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n…（略去{len(text) - 2 * half}个字符）…\n{text[-half:]}"

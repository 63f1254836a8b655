"""How often figures fall into equal ranges: a column of numbers becomes a table of counts.

Owns the choice of ranges. Knows nothing of how the table is drawn.
"""

from __future__ import annotations

import math
from collections import Counter

from tools.base import Table
from tools.numbers import format_number, is_number

MIN_VALUES, MAX_RANGES = 8, 8
_STEPS = (1, 2, 5, 10)


def counted(table: Table) -> Table | None:
    """Counts of a single column of at least eight different figures; None for other tables.

    Ranges are half-open and start at multiples of 1, 2 or 5 times a power of ten.
    """
    if len(table.columns) != 1:
        return None
    cells = [row[0] for row in table.rows if row[0] is not None]
    values = [float(cell) for cell in cells if is_number(cell) and _fits(cell)]  # type: ignore[arg-type]
    if len(values) < len(cells) or len(set(values)) < MIN_VALUES:
        return None
    low, high = min(values), max(values)
    step = _step(high - low)
    if not math.isfinite(step) or step <= 0 or low + step == low or high + step == high:
        return None
    first, last = math.floor(low / step), math.floor(high / step)
    found = Counter(min(last, max(first, math.floor(value / step))) for value in values)
    rows = tuple(
        (f"{_edge(at * step)}–{_edge((at + 1) * step)}", found[at]) for at in range(first, last + 1)
    )
    return Table(("区间", "个数"), rows, table.truncated)


def _fits(value: object) -> bool:
    return not isinstance(value, int) or abs(value) < 10**300


def _step(span: float) -> float:
    """The least handy step that needs at most eight ranges."""
    if not math.isfinite(span) or span <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(span / (MAX_RANGES - 1)))
    return next((n * unit for n in _STEPS if n * unit * (MAX_RANGES - 1) >= span), 10 * unit)


def _edge(value: float) -> str:
    return format_number(round(value, 12))

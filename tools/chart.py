"""Character charts for chat text: bars, groups of bars, shares, histograms, a sparkline.

Owns layout and the byte budget. Knows nothing of WeCom or SQL. WeCom draws text in a proportional
font, so bars start at the margin on a line of their own, unless every label has the same width.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from wcwidth import wcswidth

from tools import histogram
from tools.base import ChartKind, Table, Value
from tools.numbers import NOT_A_NUMBER, format_number, is_number

MAX_CELLS = 16
"""Cells of the longest bar; drawn smaller only when the byte budget asks for it."""
MIN_CELLS = 8
MAX_BARS, MAX_TIME_BARS = 10, 12
LABEL_COLUMNS = 24
FULL, NEGATIVE = "█", "▒"
MEMBERS = "█▓░"
"""One glyph for each member of a group of bars."""
MAX_GROUPS = 6
_SPARKS = "▁▂▃▄▅▆▇█"
_TIME_WORDS = {
    "year": "year", "年": "year", "年份": "year",
    "quarter": "quarter", "季度": "quarter",
    "month": "month", "月": "month", "月份": "month",
}  # fmt: skip
_TIME_TEXT = re.compile(r"\d{4}(年|-Q?\d{1,2}.*|Q\d|/\d{1,2}.*)?")
_RATE = re.compile(
    r"率|同比|环比|占比|比例|份额|增长(?![额量])|增幅|百分|%"
    r"|(?<![a-z])(rate|ratio|percent\w*|share)(?![a-z])",
    re.I,
)
_SHARE = re.compile(r"占比|份额|share", re.I)
_REFERENCE = re.compile(r"目标|上期|同期|去年|上年|target", re.I)
_LARGEST = 1e300
"""Larger figures draw alike, so that no sum of them overflows."""
_PERCENT_FROM = 1.5
"""A rate column with no size above this may hold fractions of 1, and gets no percent sign."""
_NOT_ADDITIVE = re.compile(
    r"平均|均|率|占比|比例|单价|百分|%|最|avg|rate|ratio|percent|min|max", re.I
)


@dataclass(frozen=True)
class Item:
    """One bar. ``value`` is None where there is nothing to draw (NULL, NaN)."""

    label: str
    value: float | None
    shown: str


@dataclass(frozen=True)
class _Series:
    items: tuple[Item, ...]
    is_time: bool
    additive: bool
    truncated: bool = False


def width(text: str) -> int:
    """Display columns of ``text`` in a monospace font, CJK counted as two."""
    columns = wcswidth(text)
    return columns if columns >= 0 else len(text)


def render(table: Table, kind: ChartKind | None, *, limit_bytes: int) -> str:
    """Draw ``table``; "" when it has no chart's shape or nothing fits ``limit_bytes`` of UTF-8.

    ``kind`` None lets the shape decide: a figure for each of two or more labels is a bar chart,
    a figure beside its target or last year's is a group of two bars, and so are the few members
    of each label in ``(label, member, figure)``; a single column of figures is a histogram.
    """
    if kind == "none":
        return ""
    table = histogram.counted(table) or table
    if kind in (None, "bar") and (groups := _groups(table)):
        drawn = _grouped(groups, limit_bytes)
        if drawn:
            return drawn
    series = _series(table, kind)
    if series is None or (kind is None and len(series.items) < 2):
        return ""
    if kind == "line" and series.is_time and len(series.items) > MAX_TIME_BARS:
        drawn = _sparkline(series.items)
        return drawn if len(drawn.encode()) <= limit_bytes else ""
    if kind == "share":
        series = _with_shares(series)
    most = min(MAX_TIME_BARS if series.is_time else MAX_BARS, len(series.items))
    for cells in (MAX_CELLS, (MAX_CELLS + MIN_CELLS) // 2, MIN_CELLS):
        drawn = _first(series, most, cells)
        if len(drawn.encode()) <= limit_bytes:
            return drawn
    if kind == "line" and series.is_time:
        drawn = _sparkline(series.items)
        return drawn if len(drawn.encode()) <= limit_bytes else ""
    for kept in range(most - 1, 0, -1):
        drawn = _first(series, kept, MIN_CELLS)
        if len(drawn.encode()) <= limit_bytes:
            return drawn
    return ""


@dataclass(frozen=True)
class _Group:
    label: str
    members: tuple[Item, ...]


def _groups(table: Table) -> tuple[_Group, ...]:
    """Rows whose figures belong side by side; empty when the table has no such shape."""
    numeric = [_is_measure(table, i) for i in range(len(table.columns))]
    times = [_TIME_WORDS.get(name.strip().lower(), "") for name in table.columns]
    measures = [i for i, ok in enumerate(numeric) if ok and not times[i]]
    labels = [i for i in range(len(table.columns)) if i not in measures]
    if any(_RATE.search(table.columns[i]) for i in measures) or len(table.rows) < 2:
        return ()
    if len(labels) == 1 and len(measures) == 2:
        references = [i for i in measures if _REFERENCE.search(table.columns[i])]
        if len(references) != 1:
            return ()
        order = [i for i in measures if i not in references] + references
        return tuple(
            _Group(
                _label([(row[labels[0]], times[labels[0]])]),
                tuple(Item(table.columns[i], _finite(row[i]), _shown(row[i])) for i in order),
            )
            for row in table.rows
        )
    if len(labels) == 2 and len(measures) == 1 and not (times[labels[0]] and times[labels[1]]):
        return _groups_of_members(table, labels, measures[0], times)
    return ()


def _groups_of_members(
    table: Table, labels: Sequence[int], at: int, times: Sequence[str]
) -> tuple[_Group, ...]:
    """``(label, member, figure)`` rows; every label has the same two or three members, once."""
    found: dict[str, dict[str, Item]] = {}
    for row in table.rows:
        label, member = (_label([(row[i], times[i])]) for i in labels)
        group = found.setdefault(label, {})
        if member in group:
            return ()
        group[member] = Item(member, _finite(row[at]), _shown(row[at]))
    names = list(next(iter(found.values())))
    if not 2 <= len(names) <= len(MEMBERS) or len(found) < 2 or table.truncated:
        return ()
    if any(group.keys() != set(names) for group in found.values()):
        return ()
    return tuple(_Group(k, tuple(group[name] for name in names)) for k, group in found.items())


def _grouped(groups: Sequence[_Group], limit_bytes: int) -> str:
    """A line for the label, then a bar from the margin for each member, the figure after it."""
    sizes = [abs(m.value) for group in groups for m in group.members if m.value is not None]
    longest = max(sizes, default=0.0)
    for kept in range(min(MAX_GROUPS, len(groups)), 0, -1):
        lines = []
        for group in groups[:kept]:
            lines.append(group.label)
            for glyph, member in zip(MEMBERS, group.members, strict=False):
                bar = _bar(member.value, longest, MIN_CELLS, glyph)
                lines.append(f"{bar}{' ' if bar else ''}{member.label} {member.shown}")
        if kept < len(groups):
            lines.append(f"其余{len(groups) - kept}项")
        drawn = "\n".join(lines)
        if len(drawn.encode()) <= limit_bytes:
            return drawn
    return ""


def _series(table: Table, kind: ChartKind | None) -> _Series | None:
    """Split columns into labels and the measure to draw; None when either is missing."""
    if not table.rows or len(table.columns) < 2:
        return None
    numeric = [_is_measure(table, index) for index in range(len(table.columns))]
    times = [_TIME_WORDS.get(name.strip().lower(), "") for name in table.columns]
    measures = [i for i, ok in enumerate(numeric) if ok and not times[i]]
    if measures and measures[0] == 0:
        # Only figures: the first column names the rows, as in (hour, orders).
        measures = measures[1:] if len(measures) > 1 else measures
    if not measures:
        return None
    at = _subject(table, measures, kind)
    labels = [i for i in range(len(table.columns)) if i != at and (not numeric[i] or times[i])]
    if not labels and at != 0:
        labels = [0]
    if not labels:
        return None
    sign = "%" if _is_percent(table, at) else ""
    items = tuple(
        Item(
            _label([(row[i], times[i]) for i in labels]),
            _finite(row[at]),
            _shown(row[at]) + (sign if is_number(row[at]) else ""),
        )
        for row in table.rows
    )
    is_time = all(times[i] or _is_time_text(table, i) for i in labels)
    additive = not (_NOT_ADDITIVE.search(table.columns[at]) or _RATE.search(table.columns[at]))
    return _Series(items, is_time, additive, table.truncated)


def _subject(table: Table, measures: Sequence[int], kind: ChartKind | None) -> int:
    """The measure that the result is about: a rate, else what it is ordered by, else the first.

    A chart of shares draws the amounts where it can compute the shares of the whole itself.
    """
    rates = [i for i in measures if _RATE.search(table.columns[i])]
    amounts = [i for i in measures if i not in rates]
    if kind == "share" and rates and amounts and _is_whole(table, rates[0]):
        rates = []
    if rates:
        return rates[0]
    ordered = [i for i in amounts if table.columns[i] == table.ordered_by]
    actual = [i for i in amounts if not _REFERENCE.search(table.columns[i])]
    return (ordered or actual or amounts)[0]


def _is_percent(table: Table, index: int) -> bool:
    """Whether the column holds percentages, not fractions of 1."""
    values = [_finite(row[index]) for row in table.rows]
    sizes = [abs(value) for value in values if value is not None]
    return bool(_RATE.search(table.columns[index])) and max(sizes, default=0.0) > _PERCENT_FROM


def _is_whole(table: Table, index: int) -> bool:
    """Whether the rows are all parts of one whole: their percentages make 100."""
    total = math.fsum(_finite(row[index]) or 0.0 for row in table.rows)
    return bool(_SHARE.search(table.columns[index])) and abs(total - 100) < 1


def _is_measure(table: Table, index: int) -> bool:
    values = [row[index] for row in table.rows if row[index] is not None]
    return bool(values) and all(
        isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)
        for value in values
    )


def _is_time_text(table: Table, index: int) -> bool:
    return all(
        isinstance(row[index], datetime.date) or _TIME_TEXT.fullmatch(str(row[index]))
        for row in table.rows
    )


def _finite(value: Value) -> float | None:
    if not is_number(value):
        return None
    assert isinstance(value, int | float | decimal.Decimal)
    try:
        return max(-_LARGEST, min(_LARGEST, float(value)))
    except OverflowError:
        return math.copysign(_LARGEST, value)


def _shown(value: Value) -> str:
    return NOT_A_NUMBER if value is None else format_number(value)


def _label(parts: Sequence[tuple[Value, str]]) -> str:
    """``2024-07`` from a year and a month, ``华东 手机`` from two names; cut at 24 columns."""
    kinds = [kind for _, kind in parts]
    values = dict(zip(kinds, (value for value, _ in parts), strict=True))
    if kinds in (["year", "month"], ["year", "quarter"]) and all(is_number(v) for v, _ in parts):
        month = values.get("month")
        tail = f"{month:02d}" if isinstance(month, int) else f"Q{values.get('quarter')}"
        return f"{values['year']}-{tail}"
    text = " ".join(_part(value, kind) for value, kind in parts)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if width(text) <= LABEL_COLUMNS:
        return text
    while width(text) > LABEL_COLUMNS - 1:
        text = text[:-1]
    return text + "…"


def _part(value: Value, kind: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        words = {"year": f"{value}年", "quarter": f"第{value}季度", "month": f"{value:02d}月"}
        return words.get(kind, str(value))
    return format_number(value)


def _with_shares(series: _Series) -> _Series:
    """Append each item's percentage; a negative value or a zero total has no shares."""
    values = [item.value or 0.0 for item in series.items]
    total = math.fsum(values)
    if total <= 0 or min(values) < 0:
        return series
    items = tuple(
        item
        if item.value is None
        else Item(item.label, item.value, f"{item.shown} {item.value / total * 100:.1f}%")
        for item in series.items
    )
    return _Series(items, series.is_time, series.additive)


def _bars(items: Sequence[Item], cells: int) -> str:
    longest = max((abs(item.value) for item in items if item.value is not None), default=0.0)
    widths = {width(item.label) for item in items}
    lines: list[str] = []
    for item in items:
        bar = _bar(item.value, longest, cells)
        if len(widths) == 1:
            lines.append(f"{item.label} |{bar}{' ' if bar else ''}{item.shown}")
        else:
            lines.append(f"{item.label} {item.shown}")
            lines.extend([bar] if bar else [])
    return "\n".join(lines)


def _bar(value: float | None, longest: float, cells: int, glyph: str = FULL) -> str:
    """Blocks in proportion to ``value / longest``; a value that is not zero gets at least one."""
    if value is None or value == 0 or longest == 0:
        return ""
    count = max(1, math.floor(abs(value) / longest * cells + 0.5))
    return (glyph if value > 0 else NEGATIVE) * count


def _sparkline(items: Sequence[Item]) -> str:
    """One glyph a point between the extremes, then the extremes in words."""
    known = [(item.value, item) for item in items if item.value is not None]
    if not known:
        return ""
    low, high = min(value for value, _ in known), max(value for value, _ in known)
    # Halved before the subtraction so that two huge extremes cannot overflow.
    span = high / 2 - low / 2
    line = "".join(
        NOT_A_NUMBER
        if item.value is None
        else _SPARKS[3 if span == 0 else min(7, int((item.value / 2 - low / 2) / span * 7 + 0.5))]
        for item in items
    )
    lowest = next(item for value, item in known if value == low)
    highest = next(item for value, item in known if value == high)
    return (
        f"{items[0].label} 至 {items[-1].label}\n{line}\n"
        f"最高 {highest.label} {highest.shown}\n最低 {lowest.label} {lowest.shown}"
    )


def _first(series: _Series, kept: int, cells: int) -> str:
    """The leading ``kept`` items as bars and one line without a bar for the others."""
    drawn = _bars(series.items[:kept], cells)
    return drawn if kept == len(series.items) else f"{drawn}\n{_rest(series, kept)}"


def _rest(series: _Series, kept: int) -> str:
    tail = series.items[kept:]
    line = f"其余{len(tail)}项"
    if series.truncated:
        # The table was cut, so neither the count nor a sum is the whole.
        return f"{line}以上"
    known = [item.value for item in tail if item.value is not None]
    if not series.additive or not known or max(map(abs, known)) >= _LARGEST:
        # A mean of means or a rate has no sum.
        return line
    total = math.fsum(known)
    line += f"合计{format_number(total)}"
    if series.items[0].shown.endswith("%"):
        whole = math.fsum(item.value for item in series.items if item.value is not None)
        line += f" {total / whole * 100:.1f}%"
    return line

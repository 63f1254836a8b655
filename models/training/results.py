"""Invented query results: random names and magnitudes, so that copying is what is learned.

Owns the cells of a result and their text, in the form the SQL tool shows them. Knows nothing
of questions. Real figures never enter the training data.
"""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import dataclass

from models.training import lexicon
from models.training.frames import Frame
from models.training.sql import Column, Query
from tools.base import Value
from tools.numbers import format_number

SHOWN_ROWS = 12
"""What the SQL tool shows today. A quarter of the results shows 20, as it once did."""
EMPTY = "0行，没有符合条件的数据"


@dataclass(frozen=True)
class Result:
    """``rows`` as the database would return them, ``cells`` as the model reads them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    cells: tuple[tuple[str, ...], ...]
    content: str
    cut: bool = False
    """Whether rows were left out of ``content``."""


def shown(
    columns: tuple[str, ...], rows: tuple[tuple[Value, ...], ...], limit: int = SHOWN_ROWS
) -> Result:
    """Format rows as the SQL tool does."""
    if not rows:
        return Result(columns, (), (), EMPTY)
    cells = tuple(tuple(format_number(value) for value in row) for row in rows)
    lines = ["|".join(columns), *("|".join(row) for row in cells[:limit])]
    cut = len(rows) > limit
    lines.append(f"{'…' if cut else ''}共{len(rows)}行")
    return Result(columns, rows, cells, "\n".join(lines), cut)


def invent(rng: random.Random, frame: Frame, query: Query) -> Result:
    """A result of the query's shape; now and then an empty one."""
    columns = tuple(column.alias for column in query.columns)
    if rng.random() < 0.03:
        nothing = query.shape == "one" and query.columns[0].role != "count"
        if query.shape != "one" or nothing:
            return shown(columns, ())
    scale = rng.uniform(0, 1)
    count = _row_count(rng, frame, query)
    if query.shape == "time":
        steps = _steps(rng, frame, query.columns[0], count)
        rows = [(step, *(_value(rng, c, scale) for c in query.columns[1:])) for step in steps]
    else:
        rows = [tuple(_value(rng, column, scale) for column in query.columns) for _ in range(count)]
        rows = _consistent(rng, frame, query, rows)
    return shown(columns, tuple(rows), 20 if rng.random() < 0.25 else SHOWN_ROWS)


def _row_count(rng: random.Random, frame: Frame, query: Query) -> int:
    if query.shape in ("one", "best", "person"):
        return 1
    if query.shape == "spans" or (frame.intent == "compare" and frame.values):
        return 2
    first = query.columns[0]
    fixed = {column: len(values) for column, values in lexicon.VALUES.items()}
    cut = re.search(r" LIMIT (\d+)$", query.sql)
    limit = int(cut[1]) if cut else 25
    if first.role == "member" and first.ref in fixed:
        count = fixed[first.ref]
        return min(limit, count if rng.random() < 0.8 else rng.randint(min(2, count), count))
    sizes = {"reason": 5, "warehouse": 5, "department": 8, "level": 4}
    if first.role in sizes and query.shape == "rows":
        return min(limit, rng.randint(2, sizes[first.role]))
    if cut:
        return limit if rng.random() < 0.9 else rng.randint(1, limit)
    return rng.choice((rng.randint(1, 8), rng.randint(2, 14), rng.randint(8, 30)))


def _steps(rng: random.Random, frame: Frame, column: Column, count: int) -> list[Value]:
    period, first = frame.period, rng.randint(2020, 2024)
    if column.ref == "year":
        if period.kind == "years":
            return list(range(period.year, period.year_end + 1))
        return list(range(first, first + rng.randint(2, 4)))
    if column.ref in ("month", "quarter"):
        size = 12 if column.ref == "month" else 4
        low, high = 1, size
        if period.kind == "quarter":
            low, high = period.part * 3 - 2, period.part * 3
        elif period.kind == "half":
            low, high = (1, size // 2) if period.part == 1 else (size // 2 + 1, size)
        elif period.kind == "months":
            low, high = period.part, period.part_end
        elif rng.random() < 0.25:
            high = rng.randint(2, size)
        return list(range(low, high + 1))
    del count
    start = period.year if period.kind == "years" else first
    if column.ref == "label":
        labels = [f"{start + i // 4}-Q{i % 4 + 1}" for i in range(rng.randint(3, 12))]
        return list(labels)
    return [f"{start + i // 12}-{i % 12 + 1:02d}" for i in range(rng.randint(3, 24))]


def _value(rng: random.Random, column: Column, scale: float) -> Value:
    match column.role:
        case "member":
            return lexicon.member(rng, column.ref)
        case "figure":
            return figure(rng, column.ref, scale)
        case "percent":
            return round(rng.uniform(0.5, 130), 2)
        case "share":
            return 0.0
        case "rate":
            return round(rng.gauss(5, 30), 2)
        case "count":
            return rng.choice((rng.randint(1, 30), rng.randint(1, 300), rng.randint(100, 20000)))
        case "small":
            return rng.randint(1, 12)
        case "date":
            day = datetime.date(2014, 1, 1) + datetime.timedelta(days=rng.randint(0, 5000))
            return day.isoformat()
        case "time":
            year, month = rng.randint(2020, 2026), rng.randint(1, 12)
            return {"month": month, "quarter": (month + 2) // 3, "year": year}.get(
                column.ref, f"{year}-{month:02d}")  # fmt: skip
        case "reason" | "warehouse" | "department" | "level" | "city":
            return lexicon.member(rng, column.role)
        case "span":
            return ""
    raise KeyError(column.role)


def figure(rng: random.Random, metric: str, scale: float) -> Value:
    """A plausible value; figures of one result share their ``scale`` (0 to 1)."""
    if metric == "销售额":
        return round(10 ** (3.2 + 5.5 * scale) * rng.uniform(0.15, 1.2), 2)
    if metric in ("客单价", "均价"):
        return round(10 ** (1.8 + 2.2 * scale) * rng.uniform(0.5, 1.2), 2)
    if metric not in ("销量", "订单数"):
        return round(10 ** (1.5 + 5 * scale) * rng.uniform(0.15, 1.2), rng.choice((0, 1, 2, 2)))
    return max(1, int(10 ** (0.8 + 4.6 * scale) * rng.uniform(0.15, 1.2)))


def _consistent(
    rng: random.Random, frame: Frame, query: Query, rows: list[tuple[Value, ...]]
) -> list[tuple[Value, ...]]:
    """Keys distinct, figures in the order the SQL asks for, shares that add up."""
    first = query.columns[0]
    if first.role in ("member", "reason", "warehouse", "department", "level", "city"):
        distinct: dict[Value, tuple[Value, ...]] = {}
        for row in rows:
            distinct.setdefault(row[0] if query.shape == "rows" else row, row)
        rows = list(distinct.values())
    left_out = {value for column, value in frame.excluded if column == first.ref}
    rows = [row for row in rows if row[0] not in left_out] or rows
    if frame.intent == "compare" and frame.values:
        rows = [(value, *row[1:]) for value, row in zip(frame.values, rows * 2, strict=False)]
    if query.shape == "spans":
        labels = (frame.period.label("zh"), frame.period2.label("zh"))
        return [(label, *row[1:]) for label, row in zip(labels, rows, strict=False)]
    rows = _pinned(frame, query, rows)
    figures = [i for i, column in enumerate(query.columns) if column.role in ("figure", "count")]
    if query.columns[-1].role == "rate":
        rows = [(*row[:-1], _rate(row[-3], row[-2])) for row in rows]
        rows.sort(key=lambda row: -row[-1])
    elif query.columns[-1].role == "percent" and query.shape == "rows":
        rows = [_reached(frame.kind, row) for row in rows]
        rows.sort(key=lambda row: -row[-1])
    elif figures and " ORDER BY " in query.sql:
        key = figures[0]
        falling = " DESC" in query.sql.rsplit(" ORDER BY ", 1)[1]
        rows.sort(key=lambda row: row[key], reverse=falling)
    if query.columns[-1].role == "share":
        total = sum(row[1] for row in rows) or 1
        rows = [(row[0], row[1], round(100.0 * row[1] / total, 2)) for row in rows]
    del rng
    return rows


def _rate(now: Value, before: Value, minus: float = 1.0) -> Value:
    return round(100.0 * (float(now) / float(before) - minus), 2)


def _reached(kind: str, row: tuple[Value, ...]) -> tuple[Value, ...]:
    """A row of a target table whose rate fits its figures and the kind of question."""
    target, sold = sorted(row[-3:-1]) if kind == "reached" else row[-3:-1]
    if kind == "missed":
        target, sold = max(row[-3:-1]), min(row[-3:-1])
    return (*row[:-3], target, sold, _rate(sold, target, 0.0))


def _pinned(frame: Frame, query: Query, rows: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """Columns that a filter fixes hold the filter's value."""
    fixed = dict(frame.filters)
    columns = {i: fixed[c.ref if c.role == "member" else c.role]
               for i, c in enumerate(query.columns)
               if (c.ref if c.role == "member" else c.role) in fixed}  # fmt: skip
    if not columns:
        return rows
    return [tuple(columns.get(i, value) for i, value in enumerate(row)) for row in rows]

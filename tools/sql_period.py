"""Periods of time in a WHERE clause and in words: ``2024年第3季度``, ``2023年``, ``2024年1至6月``.

Owns calendar arithmetic over integer year, quarter, month columns and ISO dates in text columns.
Knows nothing of tables or titles.
"""

from __future__ import annotations

import calendar
import contextlib
import datetime
import re
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlglot import exp

Narrow = Callable[["Period"], bool]
IsDay = Callable[[exp.Column], bool]
_DAY = datetime.timedelta(days=1)
_ISO = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?")
_CLOCK = re.compile(r"[ T](?!00:00(:00)?$|23:59(:59)?$)\d")
"""A moment within a day: no words for it but its own."""
_QUARTER_LABEL = re.compile(r"(\d{4})-?Q([1-4])", re.I)
_FIXED_DATE = re.compile(r"date\(('\d{4}-\d\d-\d\d'(?:, ?'[\w +:-]{1,24}'){0,4})\)", re.I)
_COLUMN = r"(?:\"?\w+\"?\.)?\"?(\w+)\"?"
_CALLS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"strftime\('%Y', ?{_COLUMN}\)", re.I), "year"),
    (re.compile(rf"strftime\('%m', ?{_COLUMN}\)", re.I), "month"),
    (re.compile(rf"strftime\('%Y-%m', ?{_COLUMN}\)", re.I), "prefix"),
    (re.compile(rf"substr(?:ing)?\({_COLUMN}, ?1, ?(?:4|7|10)\)", re.I), "prefix"),
    (re.compile(rf"substr(?:ing)?\({_COLUMN}, ?6, ?2\)", re.I), "month"),
    (re.compile(rf"year\({_COLUMN}\)", re.I), "year"),
    (re.compile(rf"quarter\({_COLUMN}\)", re.I), "quarter"),
    (re.compile(rf"month\({_COLUMN}\)", re.I), "month"),
    (re.compile(rf"date\({_COLUMN}\)", re.I), "date"),
)
_NAMES = {"year", "quarter", "month", "quarter_label"}
_SWAPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE,
}  # fmt: skip


@dataclass
class Period:
    """A conjunction of restrictions on time. Bounds of ``low`` and ``high`` are inclusive."""

    years: set[int] | None = None
    year_low: int | None = None
    year_high: int | None = None
    quarters: set[int] | None = None
    months: set[int] | None = None
    labels: list[str] = field(default_factory=list)
    label_ends: list[datetime.date] = field(default_factory=list)
    low: datetime.date | None = None
    high: datetime.date | None = None

    def words(self) -> str:
        """The period in words, "" when nothing is restricted."""
        parts = [self._calendar(), "、".join(self.labels), _span(self.low, self.high)]
        return " ".join(part for part in parts if part)

    def reaches(self, today: datetime.date) -> bool:
        """Whether the period goes on to ``today`` or beyond; also when nothing ends it."""
        label_end = max(self.label_ends, default=None)
        ends = [self.high, self._calendar_end(today), label_end]
        return all(end >= today for end in ends if end is not None)

    def _calendar_end(self, today: datetime.date) -> datetime.date | None:
        """Last day of the years, quarters and months; of this year's when no year is named."""
        months = {q * 3 for q in self.quarters or ()} | set(self.months or ())
        last = max(self.years) if self.years else self.year_high
        if last is None:
            if not months or self.year_low is not None:
                return None
            last = today.year
        span = _prefix(f"{last}-{max(months) if months else 12:02d}")
        return span[1] if span else None

    def _calendar(self) -> str:
        years = self._years()
        quarters = sorted(self.quarters or ())
        months = sorted(self.months or ())
        if not (quarters or months):
            return years
        text = years or "各年"
        if quarters:
            text += f"第{'、'.join(map(str, quarters))}季度"
        if months:
            text += f"{_run(months)}月"
        return text

    def _years(self) -> str:
        years = sorted(self.years or ())
        low, high = self.year_low, self.year_high
        if years:
            kept = [y for y in years if (low is None or y >= low) and (high is None or y <= high)]
            return f"{_run(kept or years)}年"
        if low is not None and high is not None:
            return f"{low}年" if low == high else f"{low}至{high}年"
        if low is not None:
            return f"{low}年起"
        return f"{high}年及以前" if high is not None else ""


def named_like_a_day(column: exp.Column) -> bool:
    """``date``, ``hire_date``."""
    return column.name == "date" or column.name.endswith("_date")


def time_part(node: exp.Expr, is_day: IsDay = named_like_a_day) -> tuple[exp.Column, Narrow] | None:
    """The column and the way a condition narrows a period; None when it is not about time.

    ``is_day``: which columns hold days or moments.
    """
    if isinstance(node, exp.In) and node.expressions:
        subject, values = node.this, [_text(value) for value in node.expressions]
        target = _subject(subject, is_day)
        if target and all(values):
            column, unit = target
            return column, lambda period: _within(period, unit, values)
    if isinstance(node, exp.Between):
        target = _subject(node.this, is_day)
        low, high = _text(node.args["low"]), _text(node.args["high"])
        if target and low and high:
            column, unit = target
            return (
                column,
                lambda period: (
                    _bound(period, unit, exp.GTE, low) and _bound(period, unit, exp.LTE, high)
                ),
            )
    if isinstance(node, exp.Like):
        target = _subject(node.this, is_day)
        pattern = _text(node.expression)
        if target and target[1] == "date" and re.fullmatch(r"[\d-]+%", pattern):
            prefix = pattern[:-1].rstrip("-")
            return target[0], lambda period: _bound(period, "prefix", exp.EQ, prefix)
    if type(node) in _SWAPPED:
        return _compared(node, is_day)
    return None


def _compared(node: exp.Expr, is_day: IsDay) -> tuple[exp.Column, Narrow] | None:
    left, right, kind = node.args["this"], node.args["expression"], type(node)
    if _text(left) and not _text(right):
        left, right, kind = right, left, _SWAPPED[kind]
    target, value = _subject(left, is_day), _text(right)
    if not target or not value or _CLOCK.search(value):
        return None
    column, unit = target
    return column, lambda period: _bound(period, unit, kind, value)


def _subject(node: exp.Expr, is_day: IsDay) -> tuple[exp.Column, str] | None:
    """The time column that ``node`` is about and its unit."""
    while isinstance(node, exp.Paren | exp.Cast):
        node = node.this
    if isinstance(node, exp.Column):
        name = node.name
        if name in _NAMES:
            return node, name
        return (node, "date") if is_day(node) else None
    column = node.find(exp.Column)
    if column is None or not isinstance(column, exp.Column):
        return None
    text = node.sql(dialect="sqlite")
    for pattern, unit in _CALLS:
        if pattern.fullmatch(text) and is_day(column):
            return column, unit
    return None


def _within(period: Period, unit: str, values: Iterable[str]) -> bool:
    listed = list(values)
    if unit in {"year", "quarter", "month"}:
        if not all(value.isdecimal() for value in listed):
            return False
        _intersect(period, unit, {int(value) for value in listed})
        return True
    if unit == "quarter_label":
        spans = [_quarter(value) for value in listed]
    else:
        spans = [_prefix(value) for value in listed]
    if all(spans):
        period.labels.extend(_span(*span) for span in spans if span)
        period.label_ends.extend(span[1] for span in spans if span)
        return True
    return False


def _bound(period: Period, unit: str, kind: type[exp.Expr], value: str) -> bool:
    """Narrow ``period`` by ``unit kind value``; False when the value cannot be read."""
    if (kind is exp.EQ and unit == "prefix") or unit == "date":
        return _date_bound(period, kind, value)
    if kind is exp.EQ:
        return _within(period, unit, [value])
    if unit not in {"year", "quarter", "month"} or not value.isdecimal():
        return False
    number = int(value) + (1 if kind is exp.GT else -1 if kind is exp.LT else 0)
    upward = kind in (exp.GT, exp.GTE)
    if unit == "year":
        if upward:
            period.year_low = max(number, period.year_low or number)
        else:
            period.year_high = min(number, period.year_high or number)
        return True
    most = 4 if unit == "quarter" else 12
    _intersect(period, unit, set(range(number, most + 1) if upward else range(1, number + 1)))
    return True


def _date_bound(period: Period, kind: type[exp.Expr], value: str) -> bool:
    span = _prefix(value)
    if span is None:
        return False
    first, last = span
    if kind is exp.EQ:
        _narrow(period, first, last)
    elif kind is exp.GTE:
        _narrow(period, first, None)
    elif kind is exp.GT:
        # Text compares: '2024-07-02' > '2024-07' holds, but not for a whole day.
        _narrow(period, first if len(value) < 10 else last + _DAY, None)
    elif kind is exp.LT:
        _narrow(period, None, first - _DAY)
    else:
        _narrow(period, None, first - _DAY if len(value) < 10 else last)
    return True


def _narrow(period: Period, low: datetime.date | None, high: datetime.date | None) -> None:
    if low is not None:
        period.low = max(low, period.low or low)
    if high is not None:
        period.high = min(high, period.high or high)


def _intersect(period: Period, unit: str, values: set[int]) -> None:
    if unit == "year":
        period.years = values & period.years if period.years else values
    elif unit == "quarter":
        period.quarters = values & period.quarters if period.quarters else values
    else:
        period.months = values & period.months if period.months else values


def _prefix(value: str) -> tuple[datetime.date, datetime.date] | None:
    """First and last day of ``2024``, ``2024-07`` or ``2024-07-15``."""
    match = _ISO.fullmatch(value)
    if not match:
        return None
    year, month, day = (int(group) if group else 0 for group in match.groups())
    try:
        if not month:
            return datetime.date(year, 1, 1), datetime.date(year, 12, 31)
        if not day:
            last = calendar.monthrange(year, month)[1]
            return datetime.date(year, month, 1), datetime.date(year, month, last)
        exact = datetime.date(year, month, day)
    except (ValueError, calendar.IllegalMonthError):
        return None
    return exact, exact


def _quarter(value: str) -> tuple[datetime.date, datetime.date] | None:
    """First and last day of ``2024-Q3``."""
    match = _QUARTER_LABEL.fullmatch(value)
    if not match:
        return None
    year, number = int(match.group(1)), int(match.group(2))
    last = calendar.monthrange(year, number * 3)[1]
    return datetime.date(year, number * 3 - 2, 1), datetime.date(year, number * 3, last)


def _span(low: datetime.date | None, high: datetime.date | None) -> str:
    """``2023年``, ``2024年第3季度``, ``2024年上半年``, ``2024年7月``, else the two days."""
    if low is None or high is None:
        if low is not None:
            return f"{low.isoformat()}起"
        return f"{high.isoformat()}及以前" if high is not None else ""
    if low == high:
        return low.isoformat()
    whole = low.day == 1 and (high + _DAY).day == 1
    if whole and low.year == high.year:
        months = high.month - low.month + 1
        if months == 12:
            return f"{low.year}年"
        if months == 6 and low.month in (1, 7):
            return f"{low.year}年{'上' if low.month == 1 else '下'}半年"
        if months == 3 and low.month % 3 == 1:
            return f"{low.year}年第{(low.month + 2) // 3}季度"
        return f"{low.year}年{_run(list(range(low.month, high.month + 1)))}月"
    if whole and low.month == 1 and high.month == 12:
        return f"{low.year}至{high.year}年"
    return f"{low.isoformat()}至{high.isoformat()}"


def _run(numbers: list[int]) -> str:
    """``1至6`` for consecutive numbers, ``1、3`` for others."""
    if len(numbers) >= 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}至{numbers[-1]}"
    return "、".join(map(str, numbers))


def _text(node: exp.Expr) -> str:
    """The text of a literal, or the day that ``DATE('2024-11-15', '-15 day')`` names."""
    if isinstance(node, exp.Literal):
        return str(node.this)
    call = _FIXED_DATE.fullmatch(node.sql(dialect="sqlite"))
    if not call:
        return ""
    words = [word.strip().strip("'") for word in call.group(1).split(",")]
    with contextlib.closing(sqlite3.connect(":memory:")) as calculator:
        marks = ",".join("?" * len(words))
        return str(calculator.execute(f"SELECT date({marks})", words).fetchone()[0] or "")

"""How SQLite's date functions are written for PostgreSQL and MySQL.

Owns calendar arithmetic in SQL text. Dates may be stored as DATE, TIMESTAMP or ISO text. Knows
nothing of rights or connections.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3

import sqlglot
from sqlglot import exp

from tools.base import ToolArgumentError
from tools.sql_backend import Dialect

DATE_CALLS = frozenset({"date", "datetime", "julianday", "dateadd"})
TEXT_FORMATS = frozenset("YmdHMSj")
_UNITS = ("year", "quarter", "month", "week", "day")
_TRUNC: dict[Dialect, dict[str, str]] = {
    "postgres": {
        unit: f"CAST(DATE_TRUNC('{unit}', CAST({{}} AS TIMESTAMP)) AS DATE)" for unit in _UNITS
    },
    "mysql": {
        "year": "MAKEDATE(YEAR({0}), 1)",
        "quarter": "DATE_ADD(MAKEDATE(YEAR({0}), 1), INTERVAL (QUARTER({0}) - 1) * 3 MONTH)",
        "month": "DATE_ADD(MAKEDATE(YEAR({0}), 1), INTERVAL (MONTH({0}) - 1) MONTH)",
        "week": "DATE_SUB(CAST({0} AS DATE), INTERVAL WEEKDAY({0}) DAY)",
        "day": "CAST({0} AS DATE)",
    },
}
_STEPS = {"year": ("month", 12), "quarter": ("month", 3), "month": ("month", 1),
          "week": ("day", 7), "day": ("day", 1)}  # fmt: skip
_MODIFIER = re.compile(r"([+-]?\d{1,6}) (day|month|year)s?", re.I)


def rewritten_date(node: exp.Expr, dialect: Dialect) -> exp.Expr | None:
    """``node`` in ``dialect`` when it is one of SQLite's ways with dates, else None."""
    if isinstance(node, exp.Year | exp.Quarter | exp.Month | exp.Day):
        return _part(type(node).__name__.upper(), _inner(node.this), dialect)
    if isinstance(node, exp.DateTrunc | exp.TimestampTrunc):
        return truncated(str(node.args["unit"].name), _inner(node.this), dialect)
    if isinstance(node, exp.TimeToStr):
        return _formatted(node, dialect)
    if isinstance(node, exp.Date):
        return _date([_inner(node.this), *node.expressions], dialect)
    if isinstance(node, exp.Anonymous):
        return _call(node.name.lower(), list(node.expressions), dialect)
    return None


def as_date(node: exp.Expr, dialect: Dialect) -> exp.Expr:
    """``node`` as a day."""
    return _parsed("CAST({} AS DATE)", dialect, node)


def truncated(unit: str, node: exp.Expr, dialect: Dialect) -> exp.Expr:
    """First day of the unit that holds ``node``."""
    mold = _TRUNC[dialect].get(unit.lower())
    if mold is None:
        raise ToolArgumentError(f"date_trunc的单位只能是{'、'.join(_UNITS)}")
    return _parsed(mold, dialect, node)


def added(unit: str, amount: exp.Expr, node: exp.Expr, dialect: Dialect) -> exp.Expr:
    """``node`` plus ``amount`` units, as a day."""
    if unit.lower() not in _STEPS:
        raise ToolArgumentError(f"dateadd的单位只能是{'、'.join(_UNITS)}")
    step, size = _STEPS[unit.lower()]
    if dialect == "mysql":
        mold = f"DATE_ADD(CAST({{0}} AS DATE), INTERVAL (({{1}}) * {size}) {step.upper()})"
    else:
        mold = f"CAST(CAST({{0}} AS DATE) + (({{1}}) * INTERVAL '{size} {step}') AS DATE)"
    return _parsed(mold, dialect, node, amount)


def _call(name: str, arguments: list[exp.Expr], dialect: Dialect) -> exp.Expr | None:
    if name not in DATE_CALLS:
        return None
    if name == "dateadd":
        if len(arguments) != 3 or not isinstance(arguments[0], exp.Literal):
            raise ToolArgumentError("dateadd要写成dateadd('month', 1, 日期)")
        return added(str(arguments[0].this), arguments[1], arguments[2], dialect)
    if name == "julianday" and len(arguments) == 1:
        if dialect == "mysql":
            mold = "(TIMESTAMPDIFF(SECOND, '1970-01-01', {}) / 86400.0 + 2440587.5)"
        else:
            mold = "(EXTRACT(EPOCH FROM CAST({} AS TIMESTAMP)) / 86400.0 + 2440587.5)"
        return _parsed(mold, dialect, arguments[0])
    if name == "datetime" and len(arguments) == 1:
        kind = "DATETIME" if dialect == "mysql" else "TIMESTAMP"
        return _parsed(f"CAST({{}} AS {kind})", dialect, arguments[0])
    if name == "date" and arguments:
        return _date(arguments, dialect)
    raise ToolArgumentError(f"{name}不能这样用，请改用date_trunc和dateadd")


def _date(arguments: list[exp.Expr], dialect: Dialect) -> exp.Expr:
    """``date(x, modifier, …)``; of literals it is worked out here."""
    first, *modifiers = arguments
    if not all(isinstance(m, exp.Literal) and m.is_string for m in modifiers):
        raise ToolArgumentError("date的修饰要写成文本，如date(列, '-1 month')")
    words = [str(m.this) for m in modifiers]
    if isinstance(first, exp.Literal) and first.is_string:
        with contextlib.closing(sqlite3.connect(":memory:")) as calculator:
            marks = ",".join("?" * (len(words) + 1))
            row = calculator.execute(f"SELECT date({marks})", [str(first.this), *words])
            day = row.fetchone()[0]
        return exp.Literal.string(day) if day else exp.Null()
    day_node = as_date(first, dialect)
    for word in words:
        start = re.fullmatch(r"start of (year|month|day)", word.strip(), re.I)
        step = _MODIFIER.fullmatch(word.strip())
        if start:
            day_node = truncated(start[1], day_node, dialect)
        elif step:
            day_node = added(step[2], exp.Literal.number(int(step[1])), day_node, dialect)
        else:
            raise ToolArgumentError(f"date的修饰“{word[:20]}”不支持，请改用date_trunc和dateadd")
    return day_node


def _part(unit: str, node: exp.Expr, dialect: Dialect) -> exp.Expr:
    if dialect == "mysql":
        return _parsed(f"{unit}({{}})", dialect, node)
    return _parsed(f"CAST(EXTRACT({unit} FROM CAST({{}} AS DATE)) AS INT)", dialect, node)


def _formatted(node: exp.TimeToStr, dialect: Dialect) -> exp.Expr:
    form = node.args.get("format")
    text = str(form.this) if isinstance(form, exp.Literal) else ""
    letters = set(re.findall(r"%-?(.)", text))
    inner = _inner(node.this)
    if text == "%w":
        mold = "CAST(DAYOFWEEK({}) - 1 AS CHAR)"
        if dialect == "postgres":
            mold = "CAST(EXTRACT(DOW FROM CAST({} AS TIMESTAMP)) AS TEXT)"
        return _parsed(mold, dialect, inner)
    if not letters or letters - TEXT_FORMATS:
        raise ToolArgumentError(f"strftime的格式“{text[:20]}”不支持，请用%Y、%m、%d或date_trunc")
    if dialect == "postgres":
        inner = exp.cast(inner, "TIMESTAMP")
    return exp.TimeToStr(this=inner, format=exp.Literal.string(text))


def _inner(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.TsOrDsToDate | exp.TsOrDsToTimestamp | exp.TsOrDsToTime):
        node = node.this
    return node


def _parsed(mold: str, dialect: Dialect, *parts: exp.Expr) -> exp.Expr:
    texts = [part.sql(dialect=dialect, comments=False) for part in parts]
    return sqlglot.parse_one(mold.format(*texts), read=dialect)

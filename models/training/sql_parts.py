"""Pieces of canonical SQL that every query builder shares: columns, conditions, time steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.training.frames import Frame
from models.training.periods import Period


@dataclass(frozen=True)
class Column:
    """A result column: ``role`` tells what values it holds, ``ref`` of which thing.

    Roles: member (a name of dimension ``ref``), figure (of metric ``ref``), percent, rate,
    time (a step of grain ``ref``), count, date, text.
    """

    alias: str
    role: str
    ref: str = ""


@dataclass(frozen=True)
class Query:
    """SQL with its result columns, and the kind of row set: one, rows or time."""

    sql: str
    columns: tuple[Column, ...]
    shape: str
    chart: str = ""


def quote(value: str) -> str:
    """A SQL string literal."""
    return "'" + value.replace("'", "''") + "'"


def where(
    frame: Frame, *, extra: Sequence[str] = (), period: Period | None = None, only: str = ""
) -> str:
    """`` WHERE ...`` with filters in fixed order, then time; empty when nothing restricts."""
    filters = [f"{column}={quote(value)}" for column, value in frame.filters
               if not only or column == only]  # fmt: skip
    filters += without(frame)
    time = (frame.period if period is None else period).conditions()
    conditions = [*extra, *filters, *time]
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def without(frame: Frame) -> list[str]:
    """Conditions of what the frame leaves out: one value, or several of one column."""
    values = [quote(value) for _, value in frame.excluded]
    if len(values) > 1:
        return [f"{frame.excluded[0][0]} NOT IN ({','.join(values)})"]
    return [f"{frame.excluded[0][0]}<>{values[0]}"] if values else []


def time_step(frame: Frame) -> tuple[str, str, Column]:
    """Select expression, GROUP BY expression and column of the time step."""
    if frame.grain == "year":
        return "year AS 年份", "year", Column("年份", "time", "year")
    if frame.period.one_year:
        alias = "季度" if frame.grain == "quarter" else "月份"
        return f"{frame.grain} AS {alias}", frame.grain, Column(alias, "time", frame.grain)
    if frame.grain == "quarter":
        return "quarter_label AS 季度", "quarter_label", Column("季度", "time", "label")
    text = "SUBSTR(date,1,7)"
    return f"{text} AS 月份", text, Column("月份", "time", "year_month")

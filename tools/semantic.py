"""What the tables mean: titles in Chinese, synonyms, value samples, units and metric formulas.

Owns the semantic file (YAML) and the schema block of the prompt, which the models are trained
on. Knows nothing of database connections; names are checked against the database by ``sql``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class SemanticError(Exception):
    """The semantic file is missing or malformed; the message names the place."""


@dataclass(frozen=True)
class ColumnCard:
    """One column: its name in the database, its title for people, unit and known values."""

    name: str
    title: str
    unit: str = ""
    values: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()

    def render(self) -> str:
        """``region 区域[大区]:华东/华北`` or ``price 单价(元)``."""
        unit = f"({self.unit})" if self.unit else ""
        values = f":{'/'.join(self.values)}" if self.values else ""
        return f"{self.name} {_title(self.title, self.synonyms)}{unit}{values}"


@dataclass(frozen=True)
class TableCard:
    """One table with the columns the model may use. ``time``: the column that a period means."""

    name: str
    title: str
    columns: tuple[ColumnCard, ...]
    synonyms: tuple[str, ...] = ()
    time: str = ""

    def render(self) -> str:
        """One line of the prompt's schema block."""
        columns = ", ".join(column.render() for column in self.columns)
        time = f" 默认时间{self.time}" if self.time else ""
        return f"{self.name} {_title(self.title, self.synonyms)}({columns}){time}"


@dataclass(frozen=True)
class Metric:
    """A figure people ask for by name, and the aggregate that computes it."""

    name: str
    sql: str
    unit: str = ""
    synonyms: tuple[str, ...] = ()

    def render(self) -> str:
        """``销售额[营收]=SUM(quantity*price) 元``."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{_title(self.name, self.synonyms)}={self.sql}{unit}"


@dataclass(frozen=True)
class Semantic:
    """The tables, in prompt order, and the metrics over them.

    ``fiscal_year_start``: the month in which the company's year begins.
    """

    tables: tuple[TableCard, ...]
    metrics: tuple[Metric, ...] = ()
    fiscal_year_start: int = 1

    def render(self) -> str:
        """The schema block of the prompt."""
        lines = ["数据表:", *(table.render() for table in self.tables)]
        if self.metrics:
            lines.append("指标: " + "; ".join(metric.render() for metric in self.metrics))
        return "\n".join(lines)

    def column_titles(self, table: str) -> dict[str, str]:
        """Column name to title for one table; empty for an unknown table."""
        card = self._card(table)
        return {column.name: column.title for column in card.columns} if card else {}

    def time_column(self, table: str) -> str:
        """The column that a period means: the declared one, else ``date``; "" without either."""
        card = self._card(table)
        if card is None or card.time:
            return card.time if card else ""
        return "date" if any(column.name == "date" for column in card.columns) else ""

    def _card(self, table: str) -> TableCard | None:
        return next((card for card in self.tables if card.name.lower() == table.lower()), None)


def load(path: Path) -> Semantic:
    """Read a semantic file; raises ``SemanticError``, for a key that it does not know too::

    fiscal_year_start: 4
    tables:
      sales_data:
        title: 销售订单
        synonyms: [订单]
        time: date
        columns:
          region: {title: 区域, synonyms: [大区], values: [华东, 华北]}
          price: {title: 单价, unit: 元}
    metrics:
      销售额: {sql: SUM(quantity*price), unit: 元, synonyms: [营收]}
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SemanticError(f"语义文件 {path.name} 读不了：{error}") from error
    top = _entry("", document, {"tables", "metrics", "fiscal_year_start"})
    tables = _entry("tables", top.get("tables"), None)
    if not tables:
        raise SemanticError("语义文件里没有 tables")
    start = top.get("fiscal_year_start", 1)
    if not isinstance(start, int) or not 1 <= start <= 12:
        raise SemanticError(f"语义文件的 fiscal_year_start 应是1到12的月份，现在是 {start!r}")
    return Semantic(
        tuple(_table(name, entry) for name, entry in tables.items()),
        tuple(
            _metric(name, entry)
            for name, entry in _entry("metrics", top.get("metrics"), None).items()
        ),
        start,
    )


def _table(name: str, written: object) -> TableCard:
    place = f"tables.{name}"
    entry = _entry(place, written, {"title", "synonyms", "time", "columns"})
    columns = _entry(f"{place}.columns", entry.get("columns"), None)
    if not columns:
        raise SemanticError(f"语义文件的 {place} 没有 columns")
    time = str(entry.get("time", ""))
    if time and time not in columns:
        raise SemanticError(f"语义文件的 {place}.time 是 {time}，但 columns 里没有它")
    return TableCard(
        name,
        str(entry.get("title", name)),
        tuple(
            _column(f"{place}.columns.{column}", column, card) for column, card in columns.items()
        ),
        _words(place, entry, "synonyms"),
        time,
    )


def _column(place: str, name: str, written: object) -> ColumnCard:
    entry = _entry(place, written, {"title", "unit", "values", "synonyms"})
    return ColumnCard(
        name,
        str(entry.get("title", name)),
        str(entry.get("unit", "")),
        _words(place, entry, "values"),
        _words(place, entry, "synonyms"),
    )


def _metric(name: str, written: object) -> Metric:
    place = f"metrics.{name}"
    entry = _entry(place, written, {"sql", "unit", "synonyms"})
    if not entry.get("sql"):
        raise SemanticError(f"语义文件的 {place} 没有 sql")
    return Metric(
        name, str(entry["sql"]), str(entry.get("unit", "")), _words(place, entry, "synonyms")
    )


def _entry(place: str, written: object, known: set[str] | None) -> Mapping[str, Any]:
    """A mapping with ``known`` keys only (None: any names); empty for nothing at all."""
    where = place or "最外层"
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise SemanticError(f"语义文件的 {where} 应是“键: 值”，现在是 {str(written)[:40]!r}")
    entry = {str(key): value for key, value in written.items()}
    unknown = sorted(entry.keys() - known) if known is not None else []
    if unknown:
        raise SemanticError(f"语义文件的 {where} 里有不认识的键 {'、'.join(unknown)}")
    return entry


def _words(place: str, entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    listed = entry.get(key, [])
    if not isinstance(listed, list):
        raise SemanticError(f"语义文件的 {place}.{key} 应是列表，现在是 {listed!r}")
    return tuple(str(value) for value in listed)


def _title(title: str, synonyms: tuple[str, ...]) -> str:
    return f"{title}[{'/'.join(synonyms)}]" if synonyms else title

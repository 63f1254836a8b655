"""What the tables mean: titles in Chinese, value samples, units and metric formulas.

Owns the semantic file (YAML) and the schema block of the prompt, which the models are trained
on. Knows nothing of database connections; names are checked against the database by ``sql``.
"""

from __future__ import annotations

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

    def render(self) -> str:
        """``region 区域:华东/华北`` or ``price 单价(元)``."""
        unit = f"({self.unit})" if self.unit else ""
        values = f":{'/'.join(self.values)}" if self.values else ""
        return f"{self.name} {self.title}{unit}{values}"


@dataclass(frozen=True)
class TableCard:
    """One table with the columns the model may use."""

    name: str
    title: str
    columns: tuple[ColumnCard, ...]

    def render(self) -> str:
        """One line of the prompt's schema block."""
        columns = ", ".join(column.render() for column in self.columns)
        return f"{self.name} {self.title}({columns})"


@dataclass(frozen=True)
class Metric:
    """A figure people ask for by name, and the aggregate that computes it."""

    name: str
    sql: str
    unit: str = ""

    def render(self) -> str:
        """``销售额=SUM(quantity*price) 元``."""
        return f"{self.name}={self.sql}" + (f" {self.unit}" if self.unit else "")


@dataclass(frozen=True)
class Semantic:
    """The tables, in prompt order, and the metrics over them."""

    tables: tuple[TableCard, ...]
    metrics: tuple[Metric, ...] = ()

    def render(self) -> str:
        """The schema block of the prompt."""
        lines = ["数据表:", *(table.render() for table in self.tables)]
        if self.metrics:
            lines.append("指标: " + "; ".join(metric.render() for metric in self.metrics))
        return "\n".join(lines)

    def column_titles(self, table: str) -> dict[str, str]:
        """Column name to title for one table; empty for an unknown table."""
        for card in self.tables:
            if card.name == table:
                return {column.name: column.title for column in card.columns}
        return {}


def load(path: Path) -> Semantic:
    """Read a semantic file::

    tables:
      sales_data:
        title: 销售订单
        columns:
          region: {title: 区域, values: [华东, 华北]}
          price: {title: 单价, unit: 元}
    metrics:
      销售额: {sql: SUM(quantity*price), unit: 元}
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SemanticError(f"cannot read the semantic file {path.name}: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("tables"), dict):
        raise SemanticError(f"{path.name}: expected a mapping with the key 'tables'")
    tables = tuple(_table(path, name, entry) for name, entry in document["tables"].items())
    metrics = tuple(
        Metric(name, str(entry["sql"]), str(entry.get("unit", "")))
        for name, entry in (document.get("metrics") or {}).items()
    )
    return Semantic(tables, metrics)


def _table(path: Path, name: str, entry: Any) -> TableCard:
    if not isinstance(entry, dict) or not isinstance(entry.get("columns"), dict):
        raise SemanticError(f"{path.name}: table {name} needs 'title' and 'columns'")
    columns = tuple(
        ColumnCard(
            column,
            str((card or {}).get("title", column)),
            str((card or {}).get("unit", "")),
            tuple(str(value) for value in (card or {}).get("values", ())),
        )
        for column, card in entry["columns"].items()
    )
    return TableCard(name, str(entry.get("title", name)), columns)

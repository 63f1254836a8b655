"""Databases to run queries on: two fillings of the demo company, and two for any varied schema.

Owns how rows are made. The second filling has the names of the first, with other rows and other
figures, so that a query that is right by chance on one fails on the other. Knows nothing of
models and questions.
"""

from __future__ import annotations

import datetime
import hashlib
import random
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.training.lexicon import BASE_DIMS
from models.training.schema_jitter import SALES, Schema
from tools.demo_company import generate

Row = tuple[Any, ...]
Tables = dict[str, tuple[tuple[str, ...], list[Row]]]
"""Table -> (column names, rows)."""
SAMPLE_ROWS = 20_000
_MAX_OPCODES = 60_000_000
_TEXTS = ("甲", "乙", "丙", "丁", "备用", "普通", "无")


def demo_tables() -> Tables:
    """All rows of the demo company."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "company.db"
        generate.generate(path)
        database = sqlite3.connect(path)
        try:
            names = [r[0] for r in database.execute("SELECT name FROM sqlite_master "
                                                    "WHERE type='table'")]  # fmt: skip
            return {name: _rows(database, name) for name in names}
        finally:
            database.close()


def _rows(database: sqlite3.Connection, table: str) -> tuple[tuple[str, ...], list[Row]]:
    cursor = database.execute(f"SELECT * FROM {table}")
    return tuple(column[0] for column in cursor.description), cursor.fetchall()


def _share(*parts: object) -> float:
    """A number from 0 to 1 that depends on the parts only."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def refilled(tables: Tables) -> Tables:
    """The same names with other rows and figures; every ranking changes."""
    rng = random.Random("second filling")
    weights: dict[tuple[int, object], float] = {}

    def weight(index: int, value: object) -> float:
        key = (index, value)
        if key not in weights:
            weights[key] = 0.35 + 1.3 * _share("weight", *key)
        return weights[key]

    def sale(names: tuple[str, ...], row: Row) -> Row | None:
        kept = 0.55
        for column in ("product_name", "region", "channel", "customer", "salesperson", "month"):
            kept *= weight(names.index(column), row[names.index(column)])
        if rng.random() > kept:
            return None
        price = row[names.index("price")] * (0.4 + 1.6 * _share(row[names.index("product_name")]))
        quantity = 1 + int(rng.random() ** 2 * 9)
        return _with(names, row, quantity=quantity, price=float(round(price)))

    def returned(names: tuple[str, ...], row: Row) -> Row | None:
        kept = weight(40, row[names.index("product_name")]) * weight(41, row[names.index("reason")])
        return _with(names, row, quantity=rng.randint(1, 5)) if rng.random() < 0.7 * kept else None

    def target(names: tuple[str, ...], row: Row) -> Row:
        amount = row[names.index("amount")] * (0.1 + 0.4 * rng.random())
        return _with(names, row, amount=float(round(amount)))

    def stock(names: tuple[str, ...], row: Row) -> Row:
        safety = 5 * rng.randint(2, 90)
        return _with(names, row, safety_stock=safety, stock=int(safety * 2.4 * rng.random()))

    def shuffled(*columns: str) -> Callable[[tuple[str, ...], Row], Row]:
        def change(names: tuple[str, ...], row: Row) -> Row:
            values: dict[str, Any] = {}
            for column in columns:
                if column.endswith("date"):
                    day = datetime.date.fromisoformat(row[names.index(column)])
                    values[column] = (
                        day - datetime.timedelta(days=rng.randint(0, 400))
                    ).isoformat()
                else:
                    values[column] = rng.choice(pools[column])
            return _with(names, row, **values)

        return change

    pools: dict[str, list[Any]] = {}
    for table, columns in (("staff", ("department",)), ("customers", ("level", "city"))):
        names, rows = tables[table]
        for column in columns:
            pools[column] = [row[names.index(column)] for row in rows]
    changes: dict[str, Callable[[tuple[str, ...], Row], Row | None]] = {
        SALES: sale, "returns": returned, "targets": target, "inventory": stock,
        "staff": shuffled("department", "hire_date"),
        "customers": shuffled("level", "city", "registered_date"),
    }  # fmt: skip
    out: Tables = {}
    for table, (names, rows) in tables.items():
        changed = (changes[table](names, row) for row in rows)
        out[table] = (names, [row for row in changed if row is not None])
    return out


def _with(names: tuple[str, ...], row: Row, **values: Any) -> Row:
    return tuple(values.get(name, cell) for name, cell in zip(names, row, strict=True))


def demo_database(tables: Tables) -> sqlite3.Connection:
    """``database`` with the demo company's indexes."""
    return database(tables, generate.INDEXES)


def database(tables: Tables, indexes: str = "") -> sqlite3.Connection:
    """The tables in memory, usable from any one thread at a time."""
    made = sqlite3.connect(":memory:", check_same_thread=False)
    for table, (names, rows) in tables.items():
        made.execute(f"CREATE TABLE {table} ({', '.join(names)})")
        marks = ",".join("?" * len(names))
        made.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    made.executescript(indexes)
    made.execute("PRAGMA query_only=1")
    made.set_progress_handler(_Budget(made).tick, 100_000)
    return made


class _Budget:
    """Ends a query that runs away. Counts since the last change of the total."""

    def __init__(self, made: sqlite3.Connection) -> None:
        self.ticks = 0
        made.set_trace_callback(self._begin)

    def _begin(self, statement: str) -> None:
        del statement
        self.ticks = 0

    def tick(self) -> int:
        self.ticks += 1
        return int(self.ticks * 100_000 > _MAX_OPCODES)


def plan(schema: Schema) -> dict[str, Any]:
    """How to fill a schema, as JSON: table -> where its rows and columns come from."""
    columns: dict[str, Any] = {}
    values = schema.vocabulary.values
    figures = {metric.per_row for metric in schema.vocabulary.metrics.values()}
    shown = {card.name: card for card in schema.semantic.tables}
    for table, name in schema.tables.items():
        found: dict[str, Any] = {}
        for source, column in schema.columns[table].items():
            if source in schema.vocabulary.dims and source not in BASE_DIMS:
                found[column] = {"choice": list(values[source])}
            elif source in figures or source == "cost":
                found[column] = {"figure": 1 if source == "cost" else 400}
            else:
                found[column] = {"copy": source}
                if source in values:
                    found[column]["values"] = list(values[source])
        if table == SALES and schema.amount:
            found[schema.amount] = {"amount": True}
        for card in shown[name].columns:
            found.setdefault(card.name, {"text": True})
        columns[name] = {"from": table, "columns": found}
    for other in schema.semantic.tables:
        if other.name not in columns:
            texts = {column.name: {"text": True} for column in other.columns}
            columns[other.name] = {"from": "", "columns": texts}
    return columns


def fitted(tables: Tables, planned: Mapping[str, Any], seed: str) -> Tables:
    """Rows for a planned schema, made from those of the demo company."""
    rng = random.Random(seed)
    out: Tables = {}
    for table, spec in planned.items():
        makers = spec["columns"]
        if not spec["from"]:
            out[table] = (tuple(makers), [tuple(rng.choice(_TEXTS) for _ in makers)
                                          for _ in range(20)])  # fmt: skip
            continue
        names, rows = tables[spec["from"]]
        if len(rows) > SAMPLE_ROWS:
            rows = rng.sample(rows, SAMPLE_ROWS)
        cells = [_column(rng, maker, names, rows) for maker in makers.values()]
        out[table] = (tuple(makers), list(zip(*cells, strict=True)))
    return out


def _column(
    rng: random.Random, maker: Mapping[str, Any], names: tuple[str, ...], rows: Sequence[Row]
) -> list[Any]:
    if "choice" in maker:
        values = maker["choice"]
        weights = [rng.uniform(0.3, 2.0) for _ in values]
        return rng.choices(values, weights, k=len(rows))
    if "figure" in maker:
        if maker["figure"] == 1:
            at = names.index("price")
            return [round(row[at] * rng.uniform(0.4, 0.9), 2) for row in rows]
        return [round(rng.uniform(1, maker["figure"]), 2) for _ in rows]
    if "amount" in maker:
        price, quantity = names.index("price"), names.index("quantity")
        return [row[price] * row[quantity] for row in rows]
    if "text" in maker:
        return [rng.choice(_TEXTS) for _ in rows]
    at = names.index(maker["copy"])
    if "values" not in maker:
        return [row[at] for row in rows]
    old = sorted({row[at] for row in rows})
    new = maker["values"]
    mapped = {value: new[i % len(new)] for i, value in enumerate(old)}
    return [mapped[row[at]] if len(new) <= len(old) or rng.random() < 0.6 else rng.choice(new)
            for row in rows]  # fmt: skip

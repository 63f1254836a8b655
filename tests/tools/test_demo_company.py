"""The demo company: the same data every time, large enough, with clear rankings."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path

import pytest

from tools import demo_company, semantic
from tools.demo_company.generate import generate
from tools.passages import files_of, passages_of


@pytest.fixture
def database(company_db: Path):
    with contextlib.closing(sqlite3.connect(company_db)) as connection:
        yield connection


def _digest(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()


def test_the_same_seed_writes_the_same_data(company_db: Path, tmp_path: Path) -> None:
    generate(tmp_path / "again.db")
    assert _digest(tmp_path / "again.db") == _digest(company_db)


def test_a_running_generator_leaves_no_half_file(company_db: Path) -> None:
    assert [path.name for path in company_db.parent.iterdir()] == ["company.db"]


def test_sales_are_many_and_cover_the_period(database: sqlite3.Connection) -> None:
    count, first, last = database.execute(
        "SELECT COUNT(*), MIN(date), MAX(date) FROM sales_data"
    ).fetchone()
    assert count >= 100_000
    assert (first, last) == ("2022-01-01", "2024-11-14")


def test_calendar_columns_agree_with_the_date(database: sqlite3.Connection) -> None:
    wrong = database.execute(
        "SELECT COUNT(*) FROM sales_data WHERE year <> CAST(substr(date,1,4) AS INTEGER)"
        " OR month <> CAST(substr(date,6,2) AS INTEGER) OR quarter <> (month+2)/3"
        " OR quarter_label <> year || '-Q' || quarter"
    ).fetchone()
    assert wrong == (0,)


@pytest.mark.parametrize("column", ["region", "channel", "category", "product_name"])
@pytest.mark.parametrize("quarter", [(2023, 4), (2024, 3)])
def test_rankings_have_no_ties(
    database: sqlite3.Connection, column: str, quarter: tuple[int, int]
) -> None:
    sums = [
        row[1]
        for row in database.execute(
            f"SELECT {column}, SUM(quantity*price) FROM sales_data"
            " WHERE year=? AND quarter=? GROUP BY 1",
            quarter,
        )
    ]
    assert len(set(sums)) == len(sums) >= 5


def test_names_join(database: sqlite3.Connection) -> None:
    for query in (
        "SELECT customer FROM sales_data EXCEPT SELECT name FROM customers",
        "SELECT salesperson FROM sales_data EXCEPT SELECT name FROM staff"
        " WHERE department='销售部'",
        "SELECT product_name FROM inventory EXCEPT SELECT product_name FROM sales_data",
        "SELECT product_name FROM returns EXCEPT SELECT product_name FROM sales_data",
        "SELECT region FROM targets EXCEPT SELECT region FROM sales_data",
    ):
        assert database.execute(query).fetchall() == []


def test_nobody_sells_before_being_hired_or_buys_before_registering(
    database: sqlite3.Connection,
) -> None:
    early = database.execute(
        "SELECT COUNT(*) FROM sales_data s JOIN staff e ON e.name=s.salesperson"
        " JOIN customers c ON c.name=s.customer"
        " WHERE s.date < e.hire_date OR s.date < c.registered_date"
    ).fetchone()
    assert early == (0,)


def test_semantic_values_are_the_values_in_the_database(
    database: sqlite3.Connection, company_semantic: semantic.Semantic
) -> None:
    for table in company_semantic.tables:
        for column in table.columns:
            found = {
                row[0]
                for row in database.execute(f"SELECT DISTINCT {column.name} FROM {table.name}")
            }
            assert not column.values or set(column.values) == found


def test_semantic_metrics_run(
    database: sqlite3.Connection, company_semantic: semantic.Semantic
) -> None:
    for metric in company_semantic.metrics:
        assert database.execute(f"SELECT {metric.sql} FROM sales_data").fetchone()[0] > 0


def test_documents_are_short_passages_with_a_section() -> None:
    files = files_of(demo_company.DOCUMENTS_DIR)
    assert len(files) >= 8
    for path in files:
        passages = passages_of(path)
        assert len(passages) >= 6
        assert len({passage.section for passage in passages}) == len(passages)
        for passage in passages:
            assert passage.title == path.stem
            assert 0 < len(passage.text) <= 80

"""Whole numbers divided by whole numbers keep their rest, on every database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sql_servers import READER_PASSWORD, Server, load_company
from tools.base import ToolContext
from tools.semantic import Semantic
from tools.sql import SqlTool

Context = Callable[..., ToolContext]
DIVISIONS = [
    ("SELECT 1/3 AS x", 1 / 3),
    ("SELECT -7/2 AS x", -3.5),
    ("SELECT 7/2*2 AS x", 7.0),
    ("SELECT 100*3/7 AS x", 300 / 7),
    ("SELECT (7)/(2) AS x", 3.5),
    ("SELECT 7.0/2 AS x", 3.5),
    ("SELECT CAST(7 AS INTEGER)/2 AS x", 3.5),
    ("SELECT ABS(-7)/2 AS x", 3.5),
    ("SELECT COUNT(*)/2 AS x FROM staff", 49.5),
    ("SELECT COALESCE(COUNT(*), 0)/2 AS x FROM staff", 49.5),
    ("SELECT (SELECT COUNT(*) FROM staff)/2 AS x", 49.5),
    ("SELECT a/2 AS x FROM (SELECT COUNT(*) AS a FROM staff) AS s", 49.5),
    ("WITH t AS (SELECT COUNT(*) AS a FROM staff) SELECT a/2 AS x FROM t", 49.5),
    ("SELECT SUM(CASE WHEN name=name THEN 1 ELSE 0 END)/(2*COUNT(*)) AS x FROM staff", 0.5),
    ("SELECT MAX(month)/5 AS x FROM sales_data WHERE year=2023", 2.4),
    # Parts of a calendar are meant to be whole.
    ("SELECT MAX((month+2)/3) AS x FROM sales_data WHERE year=2023 AND month=8", 3),
    ("SELECT MAX((month-1)/3+1) AS x FROM sales_data WHERE year=2023 AND month=8", 3),
]


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def tool(
    request: pytest.FixtureRequest, company_db: Path, company_semantic: Semantic
) -> Iterator[SqlTool]:
    database: Path | str = company_db
    if request.param != "sqlite":
        server: Server = request.getfixturevalue(f"{request.param}_server")
        server.create_database("division")
        load_company(server, company_db, "division")
        database = server.url("reader", READER_PASSWORD, "division")
    made = SqlTool(database, company_semantic)
    yield made
    made.close()


@pytest.mark.parametrize(("sql", "value"), DIVISIONS)
def test_a_rate_is_not_cut_to_a_whole_number(
    tool: SqlTool, context: Context, sql: str, value: float
) -> None:
    table = tool.run({"sql": sql}, context()).table
    assert table is not None
    ((cell,),) = table.rows
    assert isinstance(cell, int) == isinstance(value, int)
    assert float(str(cell)) == pytest.approx(value, rel=1e-6)


def test_division_by_zero_is_no_value(tool: SqlTool, context: Context) -> None:
    sql = "SELECT name, 1/0 AS x FROM staff LIMIT 1"
    table = tool.run({"sql": sql}, context()).table
    assert table is not None
    assert table.rows[0][1] is None

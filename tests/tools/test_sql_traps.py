"""Statements that run and give a wrong answer in silence: columns of any row, days cut short."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sql_servers import READER_PASSWORD, Server, grant_reader
from tools.base import Table, ToolArgumentError, ToolContext
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql import SqlTool

Context = Callable[..., ToolContext]


def _table(tool: SqlTool, context: Context, sql: str) -> Table:
    table = tool.run({"sql": sql}, context()).table
    assert table is not None
    return table


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT region, SUM(quantity) FROM sales_data",
        "SELECT COUNT(*), name FROM staff",
        "SELECT name || '先生' AS x, COUNT(*) FROM staff",
        "SELECT MIN(price), MAX(price), region FROM sales_data",
        "SELECT x FROM (SELECT region AS x, SUM(quantity) AS y FROM sales_data) AS s",
        "SELECT *, COUNT(*) FROM staff GROUP BY department",
    ],
)
def test_a_column_of_any_row_is_refused(sql_tool: SqlTool, context: Context, sql: str) -> None:
    with pytest.raises(ToolArgumentError, match=r"任意一行的值；请加上GROUP BY (region|name)"):
        sql_tool.run({"sql": sql}, context())


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            "SELECT region, product_name, SUM(quantity) AS n FROM sales_data GROUP BY region",
            "GROUP BY region, product_name",
        ),
        (
            "SELECT s.region AS r, s.year AS y, SUM(s.quantity) AS n FROM sales_data s GROUP BY 1",
            "GROUP BY s.region, s.year",
        ),
        (
            "SELECT quarter_label, SUM(quantity) AS n FROM sales_data GROUP BY year, quarter",
            "GROUP BY quarter_label",
        ),
        (
            "SELECT region, SUM(quantity)/MAX(price)+year AS n FROM sales_data GROUP BY region",
            "GROUP BY region, year",
        ),
    ],
)
def test_what_a_group_by_lacks_is_added(
    sql_tool: SqlTool, context: Context, written: str, meant: str
) -> None:
    right = written[: written.index("GROUP BY")] + meant
    rows = _table(sql_tool, context, written).rows
    assert sorted(rows) == sorted(_table(sql_tool, context, right).rows)
    assert rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT product_name, MAX(price) FROM sales_data",
        "SELECT region AS r, SUM(quantity) FROM sales_data GROUP BY r",
        "SELECT strftime('%Y', date) AS y, COUNT(*) FROM sales_data GROUP BY y",
        "SELECT CASE WHEN year=2024 THEN 1 ELSE 2 END AS p, COUNT(*) FROM sales_data GROUP BY p",
        "SELECT SUM(quantity), (SELECT COUNT(*) FROM staff) AS n FROM sales_data",
        "SELECT COUNT(*) FILTER (WHERE month=1) AS a, COUNT(*) AS b FROM sales_data",
        "SELECT year, SUM(quantity), RANK() OVER (ORDER BY SUM(quantity)) AS r FROM sales_data"
        " GROUP BY year",
        "SELECT region, SUM(quantity) OVER (PARTITION BY region) AS s FROM sales_data",
        "SELECT r, s, (SELECT MAX(amount) FROM targets AS t WHERE t.region=q.r) AS m FROM"
        " (SELECT region AS r, SUM(quantity) AS s FROM sales_data GROUP BY region) AS q",
        "SELECT '合计' AS x, SUM(quantity) FROM sales_data",
    ],
)
def test_what_is_right_is_left_alone(
    sql_tool: SqlTool, company_db: Path, context: Context, sql: str
) -> None:
    with contextlib.closing(sqlite3.connect(company_db)) as database:
        wanted = database.execute(sql).fetchmany(200)
    assert _table(sql_tool, context, sql).rows == tuple(wanted)


MOMENTS = Semantic(
    (
        TableCard(
            "visits",
            "来访",
            (ColumnCard("moment", "时刻"), ColumnCard("n", "人数")),
            time="moment",
        ),
    )
)
ROWS = (
    "CREATE TABLE visits(moment TIMESTAMP NULL, n INT)",
    "INSERT INTO visits VALUES ('2024-06-30 23:59:59', 1), ('2024-07-01 00:00:00', 10),"
    " ('2024-09-30 18:30:00', 100), ('2024-10-01 00:00:00', 1000)",
)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def visits(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SqlTool]:
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("visits") / "visits.db"
        with contextlib.closing(sqlite3.connect(path)) as database:
            for statement in ROWS:
                database.execute(statement)
            database.commit()
        tool = SqlTool(path, MOMENTS)
    else:
        server: Server = request.getfixturevalue(f"{request.param}_server")
        server.create_database("visits")
        server.run(*ROWS, database="visits")
        grant_reader(server, ["visits"], "visits")
        tool = SqlTool(server.url("reader", READER_PASSWORD, "visits"), MOMENTS)
    yield tool
    tool.close()


@pytest.mark.parametrize(
    ("where", "n", "scope"),
    [
        ("moment BETWEEN '2024-07-01' AND '2024-09-30'", 110, "2024年第3季度"),
        ("moment >= '2024-07-01' AND moment <= '2024-09-30'", 110, "2024年第3季度"),
        ("'2024-07-01' <= v.moment AND '2024-09-30' >= v.moment", 110, "2024年第3季度"),
        ("moment >= '2024-07-01' AND moment < '2024-10-01'", 110, "2024年第3季度"),
        ("moment = '2024-09-30'", 100, "2024-09-30"),
        ("moment > '2024-09-30'", 1000, "2024-10-01起（截至2024-10-01）"),
        (
            "moment <= '2024-06-30' OR n=1000",
            1001,
            "全部时间（截至2024-10-01）；时刻<2024-07-01或人数=1000",
        ),
        (
            "moment <= '2024-09-30 18:30:00'",
            111,
            "全部时间（截至2024-10-01）；时刻≤2024-09-30 18:30:00",
        ),
        ("NOT moment BETWEEN '2024-07-01' AND '2024-09-30'", 1001, "其他条件"),
    ],
)
def test_a_day_is_a_whole_day(
    visits: SqlTool, context: Context, where: str, n: int, scope: str
) -> None:
    result = visits.run({"sql": f"SELECT SUM(n) AS n FROM visits v WHERE {where}"}, context())
    assert result.table is not None
    assert int(str(result.table.rows[0][0])) == n
    assert result.scope == scope

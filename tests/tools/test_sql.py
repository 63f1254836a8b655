"""SQL on SQLite: right answers, exact types, words around them."""

from __future__ import annotations

import contextlib
import datetime
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import Table, ToolContext, ToolTimeoutError, ToolUnavailableError
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql import NO_ROWS, SqlTool, content_of

Context = Callable[..., ToolContext]
TOP5 = (
    "SELECT product_name, SUM(quantity*price) AS 销售额 FROM sales_data "
    "WHERE region='华东' AND year=2024 AND quarter=3 "
    "GROUP BY product_name ORDER BY 销售额 DESC LIMIT 5"
)


def test_top_five_is_exact_and_named(sql_tool: SqlTool, company_db: Path, context: Context) -> None:
    result = sql_tool.run({"sql": TOP5, "chart": "bar"}, context())
    with contextlib.closing(sqlite3.connect(company_db)) as database:
        expected = tuple(database.execute(TOP5).fetchall())
    assert result.table == Table(("产品", "销售额"), expected)
    assert result.chart == "bar"
    assert result.scope == "2024年第3季度；区域=华东"
    assert result.content.split("\n")[0] == "产品|销售额"
    assert result.content.split("\n")[-1] == "共5行"


@pytest.mark.parametrize(
    ("select", "ordered_by"),
    [
        ("product_name, SUM(quantity) AS n, SUM(price) AS p {} ORDER BY p DESC", "p"),
        ("product_name, SUM(quantity), SUM(quantity*price) {} ORDER BY 3", "销售额"),
        ("product_name, SUM(quantity) {} ORDER BY SUM(quantity) DESC", "销量"),
        ("product_name, SUM(quantity) {} ORDER BY MAX(price)", ""),
        ("product_name, SUM(quantity) {}", ""),
    ],
)
def test_the_table_knows_what_it_is_ordered_by(
    sql_tool: SqlTool, context: Context, select: str, ordered_by: str
) -> None:
    sql = "SELECT " + select.format("FROM sales_data WHERE year=2024 GROUP BY product_name")
    table = sql_tool.run({"sql": sql}, context()).table
    assert table is not None
    assert table.ordered_by == ordered_by


def test_the_scope_names_the_last_day_with_data(
    sql_tool: SqlTool, company_db: Path, context: Context
) -> None:
    with contextlib.closing(sqlite3.connect(company_db)) as database:
        last = database.execute("SELECT MAX(date) FROM sales_data").fetchone()[0]
    result = sql_tool.run(
        {"sql": "SELECT SUM(quantity) FROM sales_data WHERE year=2024"}, context()
    )
    assert result.scope == f"2024年（截至{last}）"


def test_the_last_day_is_not_told_to_who_may_not_read_dates(
    company_db: Path, company_semantic: Semantic, context: Context
) -> None:
    tool = SqlTool(
        company_db, company_semantic, may_read=lambda user, name: name != "sales_data.date"
    )
    try:
        sql = {"sql": "SELECT SUM(quantity) FROM sales_data WHERE year=2024"}
        assert tool.run(sql, context()).scope == "2024年"
    finally:
        tool.close()


def test_the_model_reads_at_most_twelve_rows(sql_tool: SqlTool, context: Context) -> None:
    result = sql_tool.run({"sql": "SELECT name FROM staff"}, context())
    assert result.table is not None
    assert len(result.table.rows) == 99
    lines = result.content.split("\n")
    assert (len(lines), lines[-1]) == (14, "…共99行")


def test_rows_and_bytes_are_capped(sql_tool: SqlTool, context: Context) -> None:
    result = sql_tool.run({"sql": "SELECT order_id, price FROM sales_data"}, context())
    assert result.table is not None
    assert (len(result.table.rows), result.table.truncated) == (200, True)
    assert result.content.endswith("…共200行以上")
    wide = "SELECT " + ", ".join(f"customer AS c{i}" for i in range(40)) + " FROM sales_data"
    table = sql_tool.run({"sql": wide}, context()).table
    assert table is not None
    assert table.truncated
    assert sum(len(str(cell).encode()) for row in table.rows for cell in row) <= 50_000


def test_order_numbers_are_not_figures(sql_tool: SqlTool, context: Context) -> None:
    sql = "SELECT order_id FROM sales_data ORDER BY order_id LIMIT 1"
    assert sql_tool.run({"sql": sql}, context()).content == "订单号\n100001\n共1行"
    sql = "SELECT DISTINCT year*100+month AS 年月 FROM sales_data WHERE year=2024 AND month=7"
    assert sql_tool.run({"sql": sql}, context()).content == "年月\n202407\n共1行"


@pytest.mark.parametrize(
    "where",
    [
        "year=2020",
        "region='西北' AND category='手机' AND year=2020",
        "date='2024-02-30'",
        "customer='' AND region='华东'",
    ],
)
def test_no_rows_says_so(sql_tool: SqlTool, context: Context, where: str) -> None:
    for what in ("product_name", "SUM(quantity*price)"):
        result = sql_tool.run({"sql": f"SELECT {what} FROM sales_data WHERE {where}"}, context())
        assert result.content == NO_ROWS
        assert result.table is not None
        assert result.table.rows == ()


def test_zero_is_an_answer(sql_tool: SqlTool, context: Context) -> None:
    sql = "SELECT COUNT(*) AS 单数 FROM sales_data WHERE year=2020"
    assert sql_tool.run({"sql": sql}, context()).content == "单数\n0\n共1行"


@pytest.mark.parametrize(
    ("select", "header"),
    [
        ("product_name", "产品"),
        ("SUM(price * quantity)", "销售额"),
        ("ROUND(SUM(quantity*price), 2)", "销售额"),
        ("SUM(quantity)", "销量"),
        ("AVG(price)", "平均单价"),
        ("COUNT(*)", "销售订单数"),
        ("COUNT(DISTINCT customer)", "客户数"),
        ("MAX(date) AS 最近", "最近"),
        ("sales_data.region", "区域"),
    ],
)
def test_headers_are_words(sql_tool: SqlTool, context: Context, select: str, header: str) -> None:
    table = sql_tool.run({"sql": f"SELECT {select} FROM sales_data LIMIT 1"}, context()).table
    assert table is not None
    assert table.columns == (header,)


def test_date_functions(sql_tool: SqlTool, context: Context) -> None:
    sql = (
        "SELECT quarter('2024-11-15') AS q, date_trunc('quarter','2024-11-15') AS t,"
        " dateadd('month', 1, '2024-01-31') AS m, date_trunc('week','2024-11-15') AS w,"
        " quarter('x') AS n"
    )
    table = sql_tool.run({"sql": sql}, context()).table
    assert table is not None
    assert table.rows == ((4, "2024-10-01", "2024-02-29", "2024-11-11", None),)


def test_a_replaced_database_is_seen(tmp_path: Path, context: Context) -> None:
    def write(path: Path, price: float) -> None:
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE t(price REAL)")
            database.execute("INSERT INTO t VALUES (?)", (price,))
            database.commit()

    path = tmp_path / "a.db"
    write(path, 1)
    tool = SqlTool(path, Semantic((TableCard("t", "表", (ColumnCard("price", "价"),)),)))
    try:
        assert tool.run({"sql": "SELECT price FROM t"}, context()).content == "价\n1\n共1行"
        write(tmp_path / "b.db", 2)
        os.replace(tmp_path / "b.db", path)
        assert tool.run({"sql": "SELECT price FROM t"}, context()).content == "价\n2\n共1行"
    finally:
        tool.close()


def test_a_missing_database_or_column_is_named(tmp_path: Path) -> None:
    semantic = Semantic((TableCard("t", "表", (ColumnCard("price", "价"),)),))
    with pytest.raises(ToolUnavailableError, match="HUTONG_SQL_DATABASE"):
        SqlTool(tmp_path / "none.db", semantic)
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t(x)")
        database.commit()
    with pytest.raises(ToolUnavailableError, match="price"):
        SqlTool(path, semantic)


def test_a_spent_deadline_runs_nothing(sql_tool: SqlTool) -> None:
    spent = ToolContext("u", datetime.date(2024, 11, 15), time.monotonic() - 1)
    with pytest.raises(ToolTimeoutError):
        sql_tool.run({"sql": TOP5}, spent)


def test_many_threads_get_their_own_rows(sql_tool: SqlTool, context: Context) -> None:
    wrong: list[str] = []

    def ask(month: int) -> None:
        for _ in range(5):
            sql = f"SELECT DISTINCT month FROM sales_data WHERE year=2023 AND month={month}"
            content = sql_tool.run({"sql": sql}, context()).content
            if content != f"月\n{month}\n共1行":
                wrong.append(content)

    threads = [threading.Thread(target=ask, args=(month,)) for month in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_cells_cannot_break_the_rows() -> None:
    table = Table(("a|b",), (("x|y\nz",), ("长" * 100,)))
    assert content_of(table) == f"a¦b\nx¦y z\n{'长' * 59}…\n共2行"

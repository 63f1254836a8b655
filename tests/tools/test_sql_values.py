"""Values in a statement that the data does not hold, or holds in another spelling."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import ToolArgumentError, ToolContext
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql import NO_ROWS, SqlTool

Context = Callable[..., ToolContext]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT COUNT(*) FROM sales_data WHERE product_name='星云41手机'",
            "产品没有“星云41手机”，相近的有：星云X1手机",
        ),
        (
            "SELECT SUM(quantity) FROM sales_data WHERE region IN ('华东','火星区')",
            "区域没有“火星区”，有：东北/华东/华中/华北/华南/西北/西南",
        ),
        (
            "SELECT SUM(quantity) FROM sales_data WHERE region='上海' AND year=2024",
            "“上海”是客户的城市",
        ),
        ("SELECT COUNT(*) FROM sales_data WHERE salesperson<>'某某某'", "销售员没有“某某某”"),
        (
            "SELECT 品 FROM (SELECT product_name AS 品 FROM sales_data) WHERE 品='星云41手机'",
            "产品没有“星云41手机”",
        ),
        (
            "SELECT SUM(CASE WHEN s.category='飞机' THEN 1 ELSE 0 END) FROM sales_data s",
            "品类没有“飞机”",
        ),
        (
            "WITH a AS (SELECT name FROM staff WHERE department='太空部') SELECT COUNT(*) FROM a",
            "部门没有“太空部”",
        ),
    ],
)
def test_a_value_that_does_not_exist_is_refused(
    sql_tool: SqlTool, context: Context, sql: str, message: str
) -> None:
    with pytest.raises(ToolArgumentError) as caught:
        sql_tool.run({"sql": sql}, context())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("product_name='星云x1手机'", "product_name='星云X1手机'"),
        ("product_name=' 星云Ｘ1 手机 '", "product_name='星云X1手机'"),
        ("region='华东区'", "region='华东'"),
        ("region IN ('華東','华南地区')", "region IN ('华东','华南')"),
        ("'华东大区'=region", "region='华东'"),
    ],
)
def test_another_spelling_of_a_value_is_repaired(
    sql_tool: SqlTool, context: Context, written: str, meant: str
) -> None:
    sql = "SELECT COUNT(*) FROM sales_data WHERE year=2024 AND "
    got = sql_tool.run({"sql": sql + written}, context())
    wanted = sql_tool.run({"sql": sql + meant}, context())
    assert wanted.table is not None
    assert wanted.table.rows[0][0] != 0
    assert (got.table, got.scope) == (wanted.table, wanted.scope)


def test_values_that_other_filters_exclude_are_no_mistake(
    sql_tool: SqlTool, context: Context
) -> None:
    sql = "SELECT COUNT(*) AS 单数 FROM sales_data WHERE year=2020 AND region='西北'"
    assert sql_tool.run({"sql": sql}, context()).content == "单数\n0\n共1行"


def test_a_value_added_to_a_live_database_is_known_at_once(
    tmp_path: Path, context: Context
) -> None:
    path = tmp_path / "live.db"
    cards = (
        TableCard("t", "表", (ColumnCard("c", "城市"), ColumnCard("n", "数"))),
        TableCard("u", "城市表", (ColumnCard("city", "城市"),)),
    )
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t(c TEXT, n INTEGER)")
        database.execute("CREATE TABLE u(city TEXT)")
        database.execute("INSERT INTO t VALUES ('上海', 1)")
        database.execute("INSERT INTO u VALUES ('杭州')")
        database.commit()
        tool = SqlTool(path, Semantic(cards))
        sql = {"sql": "SELECT n FROM t WHERE c='北京'"}
        try:
            with pytest.raises(ToolArgumentError, match=r"城市没有“北京”，有：上海/杭州"):
                tool.run(sql, context())
            database.execute("INSERT INTO t VALUES ('北京', 2)")
            database.commit()
            assert tool.run(sql, context()).content == "数\n2\n共1行"
            # Known under the same title in another table: no rows is the right answer.
            other = {"sql": "SELECT n FROM t WHERE c='杭州'"}
            assert tool.run(other, context()).content == NO_ROWS
        finally:
            tool.close()

"""Statements with mistakes: repaired, or refused with the words that help to repair them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tools.base import ToolArgumentError, ToolContext
from tools.sql import SqlTool

Context = Callable[..., ToolContext]


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT 产品名称 FROM sales_data", "product_name"),
        ("SELECT regon FROM sales_data", "region"),
        ("SELECT s.regon FROM sales_data s", "region"),
        ("SELECT 销售额 FROM sales_data", "SUM(quantity*price)"),
        ("SELECT region FROM sale_data", "sales_data"),
        ("SELECT 部门 FROM staff", "department"),
        ("SELECT name FROM customers, staff", "表名.name"),
        ("SELECT x.region FROM sales_data s", "别名"),
        ("SELECT \"不存在的列\" FROM sales_data WHERE region='华东'", "不存在的列"),
        ("SELECT summ(price) FROM sales_data", "sum"),
        ("SELECT region FROM sales_data WHERE (", "语法错误"),
        ("SELECT region sum(price) FROM sales_data", "语法错误"),
        ("SELECT SUM(price) FROM sales_data WHERE region='华东", "语法错误"),
        ("SELECT CURRENT_DATE", "2024-11-15"),
        ("我不知道", "SELECT"),
    ],
)
def test_errors_help_to_repair(sql_tool: SqlTool, context: Context, sql: str, hint: str) -> None:
    with pytest.raises(ToolArgumentError, match=r".") as caught:
        sql_tool.run({"sql": sql}, context())
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SUM（quantity） AS n FROM sales_data WHERE region＝“华东” AND year＝２０２４；",
        "```sql\nSELECT SUM(quantity) AS n FROM sales_data WHERE region='华东' AND year=2024;\n```",
        "SQL: SELECT SUM(quantity) AS n FROM sales_data WHERE region=‘华东’ AND year=2024。",
        'SELECT SUM(quantity) AS n FROM sales_data WHERE region="华东" AND year=2024',
        "SELECT SUM(quantity) AS n FROM sales_data WHERE region='华东'"
        " AND strftime(\"%Y\", date)='2024'",
        "SELECT SUM(quantity) AS n FROM sales_data WHERE region='华东' AND year=2024 -- 完",
        "select sum(QUANTITY) as n from SALES_DATA where REGION='华东' and YEAR=2024",
    ],
)
def test_near_misses_are_repaired(sql_tool: SqlTool, context: Context, sql: str) -> None:
    exact = "SELECT SUM(quantity) AS n FROM sales_data WHERE region='华东' AND year=2024"
    wanted = sql_tool.run({"sql": exact}, context())
    got = sql_tool.run({"sql": sql}, context())
    assert got.table is not None
    assert wanted.table is not None
    assert got.table.rows == wanted.table.rows
    assert got.scope == wanted.scope == "2024年（截至2024-11-14）；区域=华东"

"""The semantic file: what it may say, what is refused, and which part of it a prompt shows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import demo_company, semantic
from tools.base import ToolArgumentError, ToolContext
from tools.schema_linking import linked
from tools.semantic import ColumnCard, Metric, Semantic, SemanticError, TableCard
from tools.sql import SqlTool

Context = Callable[..., ToolContext]
FULL = """
fiscal_year_start: 4
tables:
  orders:
    title: 订单
    synonyms: [单子]
    time: order_date
    columns:
      order_date: {title: 下单日期}
      region: {title: 区域, synonyms: [大区, 片区], values: [华东, 华北]}
      amount: {title: 金额, unit: 元}
      note:
metrics:
  销售额: {sql: SUM(amount), unit: 元, synonyms: [营收, 营业额]}
"""


def _load(folder: Path, text: str) -> Semantic:
    file = folder / "semantic.yaml"
    file.write_text(text, encoding="utf-8")
    return semantic.load(file)


def test_all_that_a_file_may_say_reaches_the_prompt(tmp_path: Path) -> None:
    meaning = _load(tmp_path, FULL)
    assert meaning.fiscal_year_start == 4
    assert meaning.render() == (
        "数据表:\n"
        "orders 订单[单子](order_date 下单日期, region 区域[大区/片区]:华东/华北, amount 金额(元),"
        " note note) 默认时间order_date\n"
        "指标: 销售额[营收/营业额]=SUM(amount) 元"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("synonyms: [大区, 片区]", "synonym: [大区]"),
            "tables.orders.columns.region 里有不认识的键",
        ),
        (("time: order_date", "tme: order_date"), "tables.orders 里有不认识的键 tme"),
        (("time: order_date", "time: created"), "time 是 created"),
        (("fiscal_year_start: 4", "fiscal_year_start: 13"), "1到12"),
        (("fiscal_year_start: 4", "fiscal_year: 4"), "最外层 里有不认识的键 fiscal_year"),
        (("values: [华东, 华北]", "values: 华东"), "values 应是列表"),
        (("{title: 下单日期}", "下单日期"), "tables.orders.columns.order_date 应是"),
        (("sql: SUM(amount), ", ""), "metrics.销售额 没有 sql"),
        (
            ("{sql: SUM(amount), unit: 元, synonyms: [营收, 营业额]}", "SUM(amount)"),
            "metrics.销售额",
        ),
        (("tables:", "tables: {}\nother:"), "不认识的键 other"),
        (("  orders:", "  orders: 订单\n  more:"), "tables.orders 应是"),
        ((FULL, "[1, 2]"), "最外层 应是"),
        ((FULL, ""), "没有 tables"),
        ((FULL, "tables: {a: {title: 甲}}"), "tables.a 没有 columns"),
        ((FULL, "a: b: c"), "读不了"),
    ],
)
def test_a_mistake_in_the_file_is_named(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    assert change[0] in FULL
    with pytest.raises(SemanticError, match=words):
        _load(tmp_path, FULL.replace(*change))
    with pytest.raises(SemanticError, match=r"none\.yaml 读不了"):
        semantic.load(tmp_path / "none.yaml")


@pytest.fixture
def orders(tmp_path: Path) -> SqlTool:
    path = tmp_path / "orders.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE orders(order_date TEXT, region TEXT, amount REAL, note TEXT)"
        )
        database.execute("INSERT INTO orders VALUES ('2024-11-10', '华东', 5, 'x')")
        database.commit()
    return SqlTool(path, _load(tmp_path, FULL))


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT 大区 FROM orders", "是不是region"),
        ("SELECT 营收 FROM orders", "营收要写成SUM(amount)"),
        ("SELECT COUNT(*) FROM 单子", "是不是orders"),
    ],
)
def test_synonyms_help_to_repair(orders: SqlTool, context: Context, sql: str, words: str) -> None:
    with pytest.raises(ToolArgumentError) as caught:
        orders.run({"sql": sql}, context())
    assert words in str(caught.value)
    orders.close()


@pytest.mark.parametrize(
    ("where", "scope"),
    [
        ("", "全部时间（截至2024-11-10）"),
        (
            " WHERE order_date>='2024-01-01' AND order_date<'2025-01-01'",
            "2024年（截至2024-11-10）",
        ),
        (" WHERE order_date LIKE '2024-08%' AND region='华东'", "2024年8月；区域=华东"),
    ],
)
def test_a_period_means_the_declared_time_column(
    orders: SqlTool, context: Context, where: str, scope: str
) -> None:
    assert orders.run({"sql": f"SELECT SUM(amount) FROM orders{where}"}, context()).scope == scope
    orders.close()


def _wide() -> Semantic:
    """Forty tables, as a company has them."""
    topics = ("采购", "发票", "考勤", "合同", "设备", "车辆", "会议", "培训", "报销", "仓储")
    tables = [
        TableCard(
            f"{kind}_{number}",
            f"{topic}{title}",
            (
                ColumnCard("id", "编号"),
                ColumnCard("name", f"{topic}名称"),
                ColumnCard("day", "日期"),
            ),
        )
        for number, topic in enumerate(topics)
        for kind, title in (("list", "清单"), ("item", "明细"), ("plan", "计划"), ("log", "记录"))
    ]
    people = TableCard(
        "people",
        "人员",
        (ColumnCard("city", "城市", values=("上海", "杭州")), ColumnCard("pay", "月薪")),
        ("员工", "同事"),
    )
    pay = Metric("人力成本", "SUM(pay)", "元", ("用人成本",))
    return Semantic((*tables, people), (pay, Metric("件数", "COUNT(*)")), 4)


@pytest.mark.parametrize(
    ("asked", "tables"),
    [
        ("上个月的考勤记录有多少条", {"log_2"}),
        ("合同计划和合同明细对一下", {"plan_3", "item_3"}),
        ("杭州有多少人", {"people"}),  # a value
        ("同事分布", {"people"}),  # a synonym
        ("今年的用人成本是多少", {"people"}),  # a synonym of a metric
        ("list_7有几行", {"list_7"}),  # a name
        ("培训清单\n那计划呢", {"plan_7"}),  # the question before is asked too
    ],
)
def test_the_tables_a_question_is_about_are_shown(asked: str, tables: set[str]) -> None:
    whole = _wide()
    part = linked(whole, asked, 600)
    assert len(part.render()) <= 600 < len(whole.render())
    assert tables <= {table.name for table in part.tables}
    order = [table.name for table in whole.tables]
    assert [t.name for t in part.tables] == sorted((t.name for t in part.tables), key=order.index)
    shown = {metric.name for metric in part.metrics}
    assert shown == (
        {"人力成本", "件数"} if "people" in {t.name for t in part.tables} else {"件数"}
    )
    assert part.fiscal_year_start == 4


def test_what_fits_is_shown_whole_and_one_table_always_is() -> None:
    whole = _wide()
    assert linked(whole, "随便", len(whole.render())) is whole
    assert [table.name for table in linked(whole, "同事分布", 10).tables] == ["people"]
    demo = semantic.load(demo_company.SEMANTIC_FILE)
    # With the smallest context that a setting allows.
    assert linked(demo, "你好", 1536 * 3 // 4) is demo

"""The period and filters read back from a WHERE clause."""

from __future__ import annotations

import datetime

import pytest

from tools import demo_company, semantic
from tools.sql_check import SqlChecker


@pytest.fixture(scope="module")
def checker() -> SqlChecker:
    cards = semantic.load(demo_company.SEMANTIC_FILE)
    return SqlChecker({t.name: tuple(c.name for c in t.columns) for t in cards.tables}, cards)


@pytest.mark.parametrize(
    ("where", "scope"),
    [
        ("year=2024 AND quarter=3 AND region='华东'", "2024年第3季度；区域=华东"),
        ("2024=year AND month=1", "2024年1月"),
        ("year=2023", "2023年"),
        ("year IN (2023, 2024)", "2023至2024年"),
        ("year IN (2022, 2024) AND quarter=3", "2022、2024年第3季度"),
        ("year>=2023", "2023年起"),
        ("year>2022 AND year<=2024", "2023至2024年"),
        ("year=2024 AND quarter IN (1,2)", "2024年第1、2季度"),
        ("year=2024 AND month<=6", "2024年1至6月"),
        ("year=2024 AND month BETWEEN 3 AND 5", "2024年3至5月"),
        ("quarter=3", "各年第3季度"),
        ("quarter_label='2024-Q3'", "2024年第3季度"),
        ("quarter_label IN ('2023-Q3','2024-Q3')", "2023年第3季度、2024年第3季度"),
        ("date BETWEEN '2024-07-01' AND '2024-09-30'", "2024年第3季度"),
        ("date >= '2024-07-01' AND date < '2024-10-01'", "2024年第3季度"),
        ("date >= '2024-01-01' AND date <= '2024-06-30'", "2024年上半年"),
        ("date >= '2023-01-01' AND date < '2024-01-01'", "2023年"),
        ("date >= '2022-01-01' AND date < '2024-01-01'", "2022至2023年"),
        ("date >= '2024-10-01' AND date <= '2024-11-14'", "2024-10-01至2024-11-14"),
        ("date = '2024-11-11'", "2024-11-11"),
        ("date > '2024-10-31'", "2024-11-01起"),
        ("date < '2024-01-01'", "2023-12-31及以前"),
        ("date LIKE '2024-08%'", "2024年8月"),
        ("strftime('%Y', date)='2023'", "2023年"),
        ("strftime('%Y-%m', date)='2023-08'", "2023年8月"),
        ("substr(date,1,7)='2024-08'", "2024年8月"),
        ("year=2024 AND quarter(date)=2", "2024年第2季度"),
        ("(year=2024 AND quarter=1) OR (year=2023 AND quarter=1)", "2024年第1季度、2023年第1季度"),
        ("region='华东' OR region='华南'", "全部时间；区域=华东、华南"),
        ("region IN ('华东','华南') AND year=2024", "2024年；区域=华东、华南"),
        ("region<>'华东' AND year=2024", "2024年；区域≠华东"),
        ("NOT region IN ('华东') AND year=2024", "2024年；区域≠华东"),
        ("product_name LIKE '%手机%' AND year=2024", "2024年；产品含“手机”"),
        ("quantity>=5 AND year=2024", "2024年；数量≥5"),
        ("5<quantity AND year=2024", "2024年；数量>5"),
        ("quantity BETWEEN 2 AND 5 AND year=2024", "2024年；数量=2至5"),
        ("year=2024 AND (region='华东' OR quantity>5)", "2024年；区域=华东或数量>5"),
        (
            "year=2024 AND customer IN (SELECT name FROM customers WHERE level='钻石')",
            "2024年；等级=钻石",
        ),
        ("1=1", "全部时间；1=1"),
        ("date BETWEEN '2024-11-09' AND '2024-11-15'", "2024-11-09至2024-11-15"),
        ("date>DATE('2024-11-15','-15 day')", "2024-11-01起"),
        (
            "date>=DATE('2024-11-15','-6 day') AND date<=DATE('2024-11-15')",
            "2024-11-09至2024-11-15",
        ),
        (
            "date>='2024-11-15' AND date<date('2024-11-15','start of month','+1 month')",
            "2024-11-15至2024-11-30",
        ),
        ("NOT region='华东' AND year=2024", "2024年；区域≠华东"),
        ("NOT (region='华东' OR region='华南') AND year=2024", "2024年；区域≠华东、华南"),
        ("NOT quantity>5 AND year=2024", "2024年；数量≤5"),
        ("price>(SELECT AVG(price) FROM sales_data) AND year=2024", "2024年；单价>平均单价"),
        ("price>=15000 AND year=2024", "2024年；单价≥1.5万"),
        ("price>=12345 AND year=2024", "2024年；单价≥12345"),
    ],
)
def test_where(checker: SqlChecker, where: str, scope: str) -> None:
    sql = f"SELECT SUM(quantity) FROM sales_data WHERE {where}"
    assert checker.check(sql, max_rows=10, today=datetime.date(2024, 11, 15)).scope == scope


@pytest.mark.parametrize(
    ("sql", "scope"),
    [
        ("SELECT year, SUM(quantity) FROM sales_data GROUP BY year", "全部时间"),
        ("SELECT region, SUM(quantity) FROM sales_data GROUP BY region", "全部时间"),
        ("SELECT COUNT(*) FROM customers WHERE level='金牌'", "等级=金牌"),
        (
            "SELECT name FROM staff WHERE hire_date >= '2024-01-01' AND hire_date < '2025-01-01'",
            "入职日期=2024年",
        ),
        (
            "SELECT product_name FROM inventory WHERE stock < safety_stock AND warehouse='上海仓'",
            "库存<安全库存；仓库=上海仓",
        ),
        (
            "SELECT s.region, SUM(s.quantity) FROM sales_data s JOIN customers c"
            " ON s.customer=c.name WHERE c.level='钻石' AND s.year=2024 GROUP BY s.region",
            "2024年；等级=钻石",
        ),
        (
            "WITH a AS (SELECT SUM(quantity) n FROM sales_data WHERE year=2023),"
            " b AS (SELECT SUM(quantity) n FROM sales_data WHERE year=2024)"
            " SELECT b.n - a.n FROM a, b",
            "2024年、2023年",
        ),
        (
            "SELECT customer FROM sales_data WHERE year=2024 GROUP BY customer"
            " HAVING SUM(quantity*price) > 1000000",
            "2024年；销售额>100万",
        ),
        (
            "SELECT region AS 区域, SUM(quantity*price) AS 销售额 FROM sales_data WHERE year=2024"
            " GROUP BY region HAVING 销售额>500000",
            "2024年；销售额>50万",
        ),
        (
            "SELECT 本期, 上期, ROUND(100.0*(本期-上期)/上期,2) AS 同比 FROM (SELECT"
            " SUM(CASE WHEN year=2024 AND quarter=3 THEN quantity*price ELSE 0 END) AS 本期,"
            " SUM(CASE WHEN year=2023 AND quarter=3 THEN quantity*price ELSE 0 END) AS 上期"
            " FROM sales_data WHERE region='华东')",
            "2024年第3季度、2023年第3季度；区域=华东",
        ),
        (
            "SELECT SUM(CASE WHEN year=2024 THEN quantity END),"
            " SUM(quantity) FILTER (WHERE year=2023) FROM sales_data WHERE quarter=3",
            "2024年第3季度、2023年第3季度",
        ),
        (
            "SELECT SUM(quantity), SUM(CASE WHEN month=1 THEN quantity END) FROM sales_data"
            " WHERE year=2024",
            "2024年、2024年1月",
        ),
        (
            "SELECT SUM(CASE WHEN region='华东' THEN quantity END) FROM sales_data WHERE year=2024",
            "2024年",
        ),
        (
            "SELECT SUM(quantity) FROM sales_data WHERE customer NOT IN"
            " (SELECT name FROM customers WHERE level='钻石')",
            "全部时间；等级=钻石；其他条件",
        ),
    ],
)
def test_whole_statements(checker: SqlChecker, sql: str, scope: str) -> None:
    checked = checker.check(sql, max_rows=10, today=datetime.date(2024, 11, 15))
    # The order of two CTEs is not part of the contract.
    assert set(checked.scope.replace("、", "；").split("；")) == set(
        scope.replace("、", "；").split("；")
    )


@pytest.mark.parametrize(
    ("where", "period"),
    [
        ("year=2024", "2024年（截至2024-11-14）"),
        ("year=2024 AND quarter=4", "2024年第4季度（截至2024-11-14）"),
        ("quarter_label='2024-Q4'", "2024年第4季度（截至2024-11-14）"),
        ("date>'2024-10-31'", "2024-11-01起（截至2024-11-14）"),
        ("date BETWEEN '2024-11-09' AND '2024-11-15'", "2024-11-09至2024-11-15（截至2024-11-14）"),
        ("year>=2023", "2023年起（截至2024-11-14）"),
        ("1=1", "全部时间（截至2024-11-14）；1=1"),
        ("year=2024 AND quarter=3", "2024年第3季度"),
        ("year=2023", "2023年"),
        ("quarter_label='2024-Q3'", "2024年第3季度"),
        ("quarter=3", "各年第3季度"),
        ("date<='2024-11-14'", "2024-11-14及以前"),
        ("year IN (2023,2024)", "2023至2024年（截至2024-11-14）"),
    ],
)
def test_a_period_that_reaches_today_says_where_the_data_ends(
    checker: SqlChecker, where: str, period: str
) -> None:
    checked = checker.check(
        f"SELECT SUM(quantity) FROM sales_data WHERE {where}",
        max_rows=10,
        today=datetime.date(2024, 11, 15),
        last_day={"sales_data": datetime.date(2024, 11, 14)}.get,
    )
    assert checked.scope == period


def test_each_table_has_its_own_last_day(checker: SqlChecker) -> None:
    def scope(sql: str) -> str:
        days = {"returns": datetime.date(2024, 11, 10)}
        today = datetime.date(2024, 11, 15)
        return checker.check(sql, max_rows=10, today=today, last_day=days.get).scope

    assert scope("SELECT SUM(quantity) FROM returns WHERE year=2024") == "2024年（截至2024-11-10）"
    assert scope("SELECT SUM(amount) FROM targets WHERE year=2024") == "2024年"

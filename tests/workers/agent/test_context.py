"""The prompt's calendar, and the equality of session records."""

from __future__ import annotations

import datetime

import pytest

from inference.protocol import Message, ToolCall
from tools.semantic import ColumnCard, Metric, Semantic, TableCard
from workers.agent import transcript
from workers.agent.context import calendar, ranges, system_prompt


@pytest.mark.parametrize(
    ("today", "expected"),
    [
        ("2024-11-15", "2024-Q1 2024-Q2 2024-Q3 2023-Q4；1-10月属2024年，11-12月属2023年"),
        ("2024-01-01", "2023-Q1 2023-Q2 2023-Q3 2023-Q4；1-12月属2023年"),
        ("2023-12-31", "2023-Q1 2023-Q2 2023-Q3 2022-Q4；1-11月属2023年，12-12月属2022年"),
    ],
)
def test_a_period_without_a_year_is_the_latest_complete_one(today: str, expected: str) -> None:
    assert expected in calendar(datetime.date.fromisoformat(today))


def test_last_month_and_quarter_cross_the_year() -> None:
    text = calendar(datetime.date(2024, 1, 5))
    assert "上季2023-Q4" in text
    assert "上月2023-12" in text


def test_system_prompt_holds_schema_metrics_and_documents() -> None:
    region = ColumnCard("region", "区域", values=("华东", "华北"))
    semantic = Semantic(
        (TableCard("sales", "订单", (region, ColumnCard("price", "单价", "元"))),),
        (Metric("销售额", "SUM(quantity*price)", "元"),),
    )
    text = system_prompt(semantic, datetime.date(2024, 11, 15), ["休假制度"])
    assert "sales 订单(region 区域:华东/华北, price 单价(元))" in text
    assert "指标: 销售额=SUM(quantity*price) 元" in text
    assert text.endswith("文档: 休假制度")


def test_transcript_round_trip_drops_thinking() -> None:
    calls = (ToolCall("sql_query", {"sql": "SELECT '华东'"}),)
    message = Message("assistant", "好", calls, reasoning="想")
    back = transcript.from_json(transcript.to_json(message))
    assert back == Message("assistant", "好", calls)


def _dated(time: str = "", fiscal_year_start: int = 1) -> Semantic:
    table = TableCard("orders", "订单", (ColumnCard("day", "日期"),), time=time)
    return Semantic((table,), fiscal_year_start=fiscal_year_start)


def test_half_open_ranges_are_for_tables_with_a_time_column() -> None:
    assert ranges(_dated(), datetime.date(2024, 11, 15)) == []
    assert ranges(_dated("day"), datetime.date(2024, 1, 1)) == [
        "日期范围(含起不含止): 今天2024-01-01..2024-01-02 昨天2023-12-31..2024-01-01"
        " 本周2024-01-01..2024-01-08 上周2023-12-25..2024-01-01"
        " 本月2024-01-01..2024-02-01 上月2023-12-01..2024-01-01"
        " 本季2024-01-01..2024-04-01 上季2023-10-01..2024-01-01"
        " 今年2024-01-01..2025-01-01 去年2023-01-01..2024-01-01"
    ]
    (leap,) = ranges(_dated("day"), datetime.date(2024, 3, 31))
    assert "上月2024-02-01..2024-03-01" in leap
    assert "本周2024-03-25..2024-04-01" in leap


@pytest.mark.parametrize(
    ("today", "year", "quarter"),
    [
        ("2024-04-01", "2024-04-01..2025-04-01", "(Q1)2024-04-01..2024-07-01"),
        ("2024-03-31", "2023-04-01..2024-04-01", "(Q4)2024-01-01..2024-04-01"),
        ("2024-11-15", "2024-04-01..2025-04-01", "(Q3)2024-10-01..2025-01-01"),
    ],
)
def test_a_fiscal_year_has_its_own_ranges(today: str, year: str, quarter: str) -> None:
    (line,) = ranges(_dated(fiscal_year_start=4), datetime.date.fromisoformat(today))
    assert line.startswith(f"财年从4月开始(含起不含止): 本财年{year} 上财年")
    assert line.endswith(f"本财季{quarter}")

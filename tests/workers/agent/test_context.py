"""The prompt's calendar, and the equality of session records."""

from __future__ import annotations

import datetime

import pytest

from inference.protocol import Message, ToolCall
from tools.semantic import ColumnCard, Metric, Semantic, TableCard
from workers.agent import transcript
from workers.agent.context import calendar, system_prompt


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

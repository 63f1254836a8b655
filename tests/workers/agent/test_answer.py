"""What the user reads: sentence, figures, scope, sources - within one WeCom text part."""

from __future__ import annotations

from tools.base import Source, Table, ToolResult
from workers.agent.answer import compose


def result(rows: int, chart: str | None = None) -> ToolResult:
    table = Table(("产品", "销售额"), tuple((f"产品{n}", 1000.0 - n) for n in range(rows)))
    return ToolResult("", table, chart, "2024年")  # type: ignore[arg-type]


def test_a_single_figure_needs_no_chart() -> None:
    assert compose("共10单。", [result(1)]) == "共10单。\n\n统计口径：2024年"


def test_no_chart_when_the_model_says_none() -> None:
    text = compose("见下。", [result(3, "none")])
    assert "产品0，1000" in text
    assert "█" not in text


def test_only_the_last_table_is_drawn() -> None:
    text = compose("见下。", [result(2), result(3)])
    assert text.count("产品2") == 1


def test_the_answer_fits_one_part() -> None:
    for rows in (2, 30, 200):
        for chart in ("bar", "line", "share", "none", None):
            assert len(compose("结" * 200, [result(rows, chart)]).encode()) <= 2048


def test_document_source_is_named() -> None:
    source = Source("员工休假制度", "年假", "每年5天。", 0.9)
    text = compose("每年5天。", [ToolResult("", sources=(source,))])
    assert text == "每年5天。\n\n来源：《员工休假制度》年假"

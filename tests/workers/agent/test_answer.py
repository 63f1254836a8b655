"""What the user reads: sentence, figures, scope, sources - within one WeCom text part."""

from __future__ import annotations

from tools.base import Source, Table, ToolResult
from workers.agent.answer import FIGURES_ONLY, compose


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


def test_the_passage_that_is_quoted_is_named_as_the_source() -> None:
    sources = (
        Source("员工休假制度", "年假申请", "年假以半天为单位申请。", 0.9),
        Source("员工休假制度", "年假天数", "工作满1年的员工每年5天年假。", 0.8),
    )
    text = compose(
        "根据《员工休假制度》，工作满1年的员工每年5天年假。", [ToolResult("", sources=sources)]
    )
    assert text.endswith("\n\n来源：《员工休假制度》年假天数")


def test_no_source_is_named_when_nothing_is_quoted() -> None:
    source = Source("员工休假制度", "年假申请", "年假以半天为单位申请。", 0.9)
    said = "公司文档里没有找到相关内容。"
    assert compose(said, [ToolResult("", sources=(source,))]) == said


def test_a_sentence_that_promises_figures_has_them_even_for_one_row() -> None:
    assert compose(FIGURES_ONLY, [result(1)]).split("\n\n")[1] == "产品：产品0，销售额：1000"

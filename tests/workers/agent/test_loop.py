"""The agent loop: order of steps, limits, and what a failed turn says and keeps."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from inference.protocol import ChatOutput, Message
from tests.workers.agent.scripted import FixedTools, ScriptedModel, call, say
from tools.base import Table, ToolError, ToolResult
from workers.agent.answer import FIGURES_ONLY
from workers.agent.loop import (
    CANCELLED,
    TIMED_OUT,
    UNANSWERED,
    UNANSWERED_BECAUSE,
    Agent,
    Limits,
)
from workers.agent.steps import AgentResult, ModelStep, Step, ToolStep

TODAY = datetime.date(2024, 11, 15)
TABLE = Table(("产品", "销售额"), (("星云X1", 300.0), ("青竹", 100.0)))


def sql_ok(arguments: Mapping[str, Any]) -> ToolResult:
    return ToolResult("产品|销售额\n星云X1|300\n青竹|100\n共2行", TABLE, "bar", "2024年第3季度")


def failing(arguments: Mapping[str, Any]) -> ToolResult:
    raise ToolError(f"没有列 {arguments['sql'][-1]}")


def run(
    outputs: Sequence[ChatOutput],
    tools: FixedTools | None = None,
    history: Sequence[Message] = (),
    limits: Limits | None = None,
    **kwargs: Any,
) -> tuple[AgentResult, ScriptedModel]:
    model = ScriptedModel(outputs)
    agent = Agent(
        model,
        tools or FixedTools(sql_query=sql_ok),
        system=lambda today, asked: f"system {today}",
        today=lambda: TODAY,
        limits=limits,
    )
    kwargs.setdefault("deadline_s", time.monotonic() + 60)
    return agent.run("问题", history, user="wang", **kwargs), model


def test_sql_then_answer_has_sentence_chart_and_scope() -> None:
    seen: list[Step] = []
    result, model = run(
        [call("sql_query", sql="SELECT 1", chart="bar"), say("第1名是星云X1。")],
        on_step=seen.append,
    )
    assert result.status == "ok"
    assert result.text.startswith("第1名是星云X1。\n\n")
    assert "█" in result.text
    assert result.text.endswith("统计口径：2024年第3季度")
    assert [type(step) for step in result.steps] == [ModelStep, ToolStep, ModelStep]
    assert seen == list(result.steps)
    assert [m.role for m in model.prompts[1]] == ["system", "user", "assistant", "tool"]
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert model.prompts[0][0].content == "system 2024-11-15"


def test_later_tools_get_earlier_tables() -> None:
    tools = FixedTools(sql_query=sql_ok, python_exec=lambda arguments: ToolResult("200"))
    result, _ = run(
        [call("sql_query", sql="SELECT 1"), call("python_exec", code="1"), say("平均200。")], tools
    )
    assert result.status == "ok"
    assert tools.contexts[1].tables == (TABLE,)


def test_tool_error_goes_back_to_the_model_once_as_text() -> None:
    tools = FixedTools(sql_query=lambda a: failing(a) if "x" in a["sql"] else sql_ok(a))
    result, model = run(
        [call("sql_query", sql="SELECT x"), call("sql_query", sql="SELECT 1"), say("好。")], tools
    )
    assert result.status == "ok"
    assert model.prompts[1][-1].content == "错误: 没有列 x"
    assert [s.error for s in result.steps if isinstance(s, ToolStep)] == ["tool_error", ""]


def test_too_many_failed_calls_end_in_one_honest_sentence() -> None:
    calls = [call("sql_query", sql=f"SELECT {n}") for n in range(9)]
    result, model = run(calls, FixedTools(sql_query=failing))
    assert (result.status, result.text) == ("failed", UNANSWERED_BECAUSE.format(reason="没有列 2"))
    assert len(model.prompts) == 3  # the first call and two repairs
    assert [m.role for m in result.messages] == ["user", "assistant"]


def test_the_same_call_twice_is_not_run_again() -> None:
    tools = FixedTools(sql_query=sql_ok)
    same = call("sql_query", sql="SELECT 1")
    result, model = run([same, same, say("好。")], tools)
    assert len(tools.contexts) == 1
    assert "已经做过" in model.prompts[2][-1].content
    assert result.status == "ok"


def test_step_limit() -> None:
    calls = [call("sql_query", sql=f"SELECT {n}") for n in range(9)]
    result, model = run(calls, limits=Limits(max_steps=4))
    assert (result.status, len(model.prompts)) == ("failed", 4)


def test_unknown_tool_is_an_error_for_the_model_not_a_crash() -> None:
    result, model = run([call("rm_rf"), call("sql_query", sql="SELECT 1"), say("好。")])
    assert result.status == "ok"
    assert model.prompts[1][-1].content.startswith("错误")


def test_deadline_and_cancel() -> None:
    result, _ = run([say("", "deadline")])
    assert (result.status, result.text) == ("timeout", TIMED_OUT)
    result, _ = run([call("sql_query", sql="SELECT 1")], deadline_s=time.monotonic() - 1)
    assert result.status == "timeout"
    result, _ = run([say("好。")], cancelled=lambda: True)
    assert (result.status, result.text, result.messages) == ("cancelled", CANCELLED, ())


def test_malformed_call_or_empty_text_is_never_sent() -> None:
    result, _ = run([ChatOutput("<tool", "stop", malformed_tool_call='{"name"')])
    assert result.text == UNANSWERED
    result, _ = run([say("  \n")])
    assert result.text == UNANSWERED


def test_thinking_is_kept_in_the_step_and_never_in_the_text() -> None:
    result, _ = run([ChatOutput("好。", "stop", reasoning="我想想")])
    assert result.steps[0].to_json()["reasoning"] == "我想想"
    assert "想想" not in result.text


def test_a_question_longer_than_the_context_is_answered_politely() -> None:
    model = ScriptedModel([], max_model_len=500)
    agent = Agent(model, FixedTools(), lambda today, asked: "s", lambda: TODAY)
    result = agent.run("很" * 10_000, user="wang", deadline_s=time.monotonic() + 5)
    assert result.status == "failed"
    assert "太长" in result.text


def test_old_turns_are_dropped_whole() -> None:
    history = [Message("user", "甲" * 10), Message("assistant", "乙" * 10)] * 3
    _, model = run([say("好。")], history=history, limits=Limits(history_tokens=45))
    assert [m.role for m in model.prompts[0]] == ["system", *["user", "assistant"] * 2, "user"]
    _, model = run([say("好。")], history=history, limits=Limits(history_tokens=5))
    assert [m.role for m in model.prompts[0]] == ["system", "user"]


def test_words_behind_failed_calls_alone_are_not_sent() -> None:
    tools = FixedTools(sql_query=failing)
    result, _ = run([call("sql_query", sql="SELECT x"), say("共21家。")], tools)
    assert (result.status, result.text) == ("failed", UNANSWERED_BECAUSE.format(reason="没有列 x"))
    assert "21" not in result.text


@pytest.mark.parametrize(
    "text",
    [
        '好的 {"name": "python_exec", "arguments": {"code": "1"}}',
        "SELECT product_name FROM sales_data",
        "结果是" + "23456, " * 9,
        "<tool_call>",
        "好<|im_end|>",
    ],
)
def test_shards_and_stammering_are_not_sent(text: str) -> None:
    result, _ = run([say(text)])
    assert (result.status, result.text) == ("failed", UNANSWERED)


def test_an_answer_cut_short_is_not_sent() -> None:
    result, _ = run([say("2024年共19个", "length")])
    assert (result.status, result.text) == ("failed", UNANSWERED)


def test_a_full_context_drops_history_and_then_rows_before_it_fails() -> None:
    long = ToolResult(
        "产品|销售额\n" + "\n".join(f"产品{n}|{n}" for n in range(40)) + "\n共40行", TABLE
    )
    model = ScriptedModel([call("sql_query", sql="SELECT 1"), say("好。")], max_model_len=200)
    agent = Agent(
        model, FixedTools(sql_query=lambda a: long), lambda today, asked: "s", lambda: TODAY
    )
    history = [Message("user", "甲" * 198), Message("assistant", "乙")]
    result = agent.run("问题", history, user="wang", deadline_s=time.monotonic() + 5)
    assert result.status == "ok"
    assert [m.role for m in model.prompts[0]] == ["system", "user"]
    assert "只列出一部分" in model.prompts[1][-1].content
    assert model.prompts[1][-1].content.endswith("共40行")


def test_a_figure_no_tool_gave_is_not_said() -> None:
    result, _ = run([call("sql_query", sql="SELECT 1"), say("共18个产品。")])
    assert result.status == "ok"
    assert result.text.startswith(FIGURES_ONLY)
    assert "18" not in result.text
    tools = FixedTools(python_exec=lambda arguments: ToolResult("200"))
    result, _ = run([call("python_exec", code="1"), say("结果是300。")], tools)
    assert (result.status, result.text) == ("failed", UNANSWERED)


def test_figures_may_be_rounded_or_written_with_commas() -> None:
    tools = FixedTools(python_exec=lambda arguments: ToolResult("12345.678"))
    for text in ("结果是12,345.678。", "约12345.7。", "约12346。", "Q3是第3季度，12345.678"):
        result, _ = run([call("python_exec", code="Q3"), say(text)], tools)
        assert result.status == "ok", text

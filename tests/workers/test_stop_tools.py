"""/stop while a tool is at work: the real loop, the real tools, a model that calls one of them."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import redis

from app.store.inbox import Inbox
from app.store.turns import Turns
from tests.app.store.messages import tag_of, text_message
from tests.workers.agent.scripted import ScriptedModel, call, say
from tests.workers.fakes import wait_for
from tools import demo_company, semantic
from tools.base import Tool, ToolContext, ToolError, ToolResult
from tools.demo_company.generate import generate
from tools.python_exec import PythonTool
from tools.registry import ToolRegistry
from tools.sandbox.base import Backend
from tools.sandbox.monty import MontyBackend
from tools.sandbox.native import NativeBackend
from tools.sql import SqlTool
from workers.agent.loop import Agent
from workers.turn import TurnRunner

TAG = tag_of("zhang")
LONG_S = 60.0
ENDLESS_SQL = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT SUM(x) FROM c"
ENDLESS_CODE = "while True: pass"


class NotedTools(ToolRegistry):
    """Says when a tool is at work and how it ended."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools)
        self.at_work = threading.Event()
        self.errors: list[str] = []

    def run(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.at_work.set()
        try:
            return super().run(name, arguments, context)
        except ToolError as error:
            self.errors.append(error.code)
            raise


@pytest.fixture(scope="module")
def sql_tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlTool]:
    path = tmp_path_factory.mktemp("company") / "company.db"
    generate(path)
    tool = SqlTool(path, semantic.load(demo_company.SEMANTIC_FILE), timeout_s=LONG_S)
    yield tool
    tool.close()


@pytest.mark.parametrize("which", ["sql", "monty", "native"])
def test_stop_reaches_the_tool_and_the_next_question_is_answered(
    redis_client: redis.Redis, sql_tool: SqlTool, which: str
) -> None:
    backends: dict[str, Backend] = {"monty": MontyBackend(), "native": NativeBackend()}
    chosen = [backends[which]] if which in backends else []
    if chosen and not chosen[0].status().active:
        pytest.skip(chosen[0].status().reason)
    python_tool = PythonTool(time_limit_s=LONG_S, backends=chosen)
    endless, quick = (
        (call("sql_query", sql=ENDLESS_SQL), call("sql_query", sql="SELECT COUNT(*) FROM staff"))
        if which == "sql"
        else (call("python_exec", code=ENDLESS_CODE), call("python_exec", code="98 + 1"))
    )
    tools = NotedTools([sql_tool, python_tool])
    agent = Agent(
        ScriptedModel([endless, quick, say("共有99。")]),
        tools,
        system=lambda today, asked: "system",
        today=lambda: datetime.date(2024, 11, 15),
    )
    inbox, turns = Inbox(redis_client), Turns(redis_client)
    for turn_id in ("first", "second"):
        inbox.put(text_message("zhang", turn_id, "问题"), turn_id)
    runner = TurnRunner(redis_client, agent)
    working = threading.Thread(target=runner.drain, args=(TAG,))
    working.start()
    wait_for(tools.at_work.is_set)
    stop = text_message("zhang", "stop", "/stop")
    assert inbox.answer(stop, "stop", "stop", "已停止。", idle_text="没有").stopped == "first"
    working.join()
    # A tool that nobody stopped would have ended at its time limit with another error.
    assert tools.errors == ["cancelled"]
    stopped = turns.get("first")
    assert stopped is not None
    assert (stopped.status, stopped.error, stopped.answer) == ("failed", "cancelled", "已停止。")
    runner.drain(TAG)
    answered = turns.get("second")
    assert answered is not None
    assert answered.status == "done"
    assert "99" in answered.answer
    python_tool.close()

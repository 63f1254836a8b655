"""/sql after a real query: the real loop, tool, database and store; only the model is scripted."""

from __future__ import annotations

import datetime
from pathlib import Path

import redis

from app.store.outbox import Outbox
from inference.protocol import ChatOutput
from tests.app.store.messages import tag_of, text_message
from tests.app.test_intake import Desk
from tests.workers.agent.scripted import ScriptedModel, call, say
from tools import demo_company, semantic
from tools.demo_company.generate import generate
from tools.registry import ToolRegistry
from tools.sql import SqlTool
from workers.agent.loop import Agent
from workers.turn import TurnRunner

TAG = tag_of("zhang")
WRITTEN = (
    "SELECT product_name, SUM(quantity*price) AS 销售额 FROM sales_data WHERE region＝'华东区' "
    "AND year=2024 AND quarter=3 GROUP BY product_name ORDER BY 销售额 DESC LIMIT 5"
)
RAN = """SELECT
  product_name,
  SUM(quantity * price) AS 销售额
FROM sales_data
WHERE
  region = '华东' AND year = 2024 AND quarter = 3
GROUP BY
  product_name
ORDER BY
  销售额 DESC
LIMIT 5
统计口径：2024年第3季度；区域=华东"""


def test_the_statement_that_ran_is_shown_and_not_what_was_repaired(
    redis_client: redis.Redis, tmp_path: Path
) -> None:
    outputs: list[ChatOutput] = [
        call("sql_query", sql="SELECT nothing FROM sales_data"),
        call("sql_query", sql=WRITTEN),
        say("华东区销售额最高的是星云X1手机。"),
    ]
    generate(tmp_path / "company.db")
    meaning = semantic.load(demo_company.SEMANTIC_FILE)
    registry = ToolRegistry([SqlTool(tmp_path / "company.db", meaning)])
    model = ScriptedModel(outputs)
    agent = Agent(model, registry, lambda today, asked: "", lambda: datetime.date(2024, 11, 15))
    runner = TurnRunner(redis_client, agent)
    desk = Desk(redis_client)
    try:
        desk.intake.take(text_message("zhang", "q", "分析华东区Q3销售TOP5产品"), "q")
        runner.drain(TAG)
        answer = Outbox(redis_client).of_turn(TAG, "q")[0].body
        assert "统计口径：2024年第3季度；区域=华东" in answer
        assert "SELECT" not in answer
        taken = desk.send("把SQL发我")
    finally:
        registry.close()
    (part,) = Outbox(redis_client).of_turn(TAG, taken.turn_id)
    assert part.body == f"“分析华东区Q3销售TOP5产品”用的SQL：\n\n{RAN}"
    assert len(model.prompts) == 3

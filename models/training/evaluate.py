"""Evaluation: ``python -m models.training.evaluate MODEL``; the last line is JSON.

Owns the splits, exact match, execution accuracy and Wilson intervals. Greedy, through our own
engine (``--engine stock``: transformers on the dequantised weights is not needed for that).
Questions use the demo company's names, so that both queries find rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import re
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.llm import LLM
from inference.protocol import ChatModel, Message, ToolCall, ToolSpec
from inference.sampling_params import SamplingParams
from models.training import dialogs, lexicon, rendering
from models.training.dialogs import Dialog, Mode, Prompt, Sampler
from models.training.turns import SQL_INTENTS, TALK_INTENTS, Call
from tools.base import ToolContext, ToolError
from tools.python_exec import PythonTool

TODAY = datetime.date(2024, 11, 15)
FOLLOW_INTENTS = (
    "follow_scope", "follow_metric", "follow_n", "follow_period", "follow_dim", "follow_chart",
)  # fmt: skip
SPLITS: dict[str, tuple[Mode, tuple[str, ...]]] = {
    "values": ("train", SQL_INTENTS),
    "templates": ("held_out", SQL_INTENTS),
    "followups": ("held_out", FOLLOW_INTENTS),
    "no_tool": ("held_out", TALK_INTENTS),
    "tools": ("held_out", ("calc", "doc", "sql_python")),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=512)


def wilson(right: int, total: int) -> tuple[float, float]:
    """95 % Wilson interval of a share, in percent."""
    if total == 0:
        return 0.0, 100.0
    z, share = 1.96, right / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    spread = (
        z * math.sqrt(share * (1 - share) / total + z * z / (4 * total**2)) / (1 + z**2 / total)
    )
    return 100 * (centre - spread), 100 * (centre + spread)


@dataclass
class Score:
    """Counts of one split."""

    total: int = 0
    exact: int = 0
    right: int = 0
    filled: int = 0
    """Questions whose right query finds rows."""


def rows_of(database: sqlite3.Connection, sql: str) -> list[tuple[Any, ...]] | None:
    """Rows with floats rounded; None when the query fails. Order counts where SQL names one."""
    try:
        found = database.execute(sql).fetchmany(5000)
    except sqlite3.Error:
        return None
    rows = [tuple(round(v, 4) if isinstance(v, float) else v for v in row) for row in found]
    return rows if "ORDER BY" in sql.upper() else sorted(rows, key=repr)


class Evaluator:
    """Asks the questions of one dialog after another and compares the first call."""

    def __init__(self, llm: ChatModel, database: sqlite3.Connection) -> None:
        self._llm = llm
        self._database = database
        self._python = PythonTool()
        self.facts = Score()
        self.misses: list[str] = []

    def close(self) -> None:
        """End the Python sandbox."""
        self._python.close()

    def ask(self, prompt: Prompt, dialog: Dialog, score: Score) -> None:
        """Ask the last question of ``dialog`` and count."""
        specs = [ToolSpec(t.name, t.description, t.parameters) for t in prompt.tools]
        history = rendering.messages(prompt, dialog.turns[:-1])
        turn = dialog.turns[-1]
        asked = [*history, Message("user", turn.question)]
        calls = [call for call in turn.calls if call.trained]
        score.total += 1
        good = exact = True
        for call in calls:
            output = self._llm.chat(asked, specs, GREEDY)
            same, right = self._compare(call, output.tool_calls, score)
            exact, good = exact and same, good and right
            if not right:
                self.misses.append(f"{dialog.intent}: {turn.question} -> {output.tool_calls}")
                break
            asked += [
                Message("assistant", "", (ToolCall(call.name, call.arguments),)),
                Message("tool", call.content),
            ]
        else:
            output = self._llm.chat(asked, specs, GREEDY)
            if calls:
                self._count_facts(calls[-1], turn.answer, output.text)
            else:
                good = exact = not output.tool_calls and bool(output.text.strip())
                if not good:
                    self.misses.append(f"{dialog.intent}: {turn.question} -> {output.tool_calls}")
        score.exact += exact
        score.right += good

    def _compare(self, want: Call, got: Sequence[ToolCall], score: Score) -> tuple[bool, bool]:
        """(arguments equal, same effect)."""
        if len(got) != 1 or got[0].name != want.name:
            return False, False
        same = dict(got[0].arguments) == dict(want.arguments)
        if want.name == "sql_query":
            expected = rows_of(self._database, want.arguments["sql"])
            score.filled += bool(expected and any(v is not None for v in expected[0]))
            found = rows_of(self._database, str(got[0].arguments.get("sql", "")))
            charts = [arguments.get("chart") for arguments in (want.arguments, got[0].arguments)]
            return same, found is not None and found == expected and charts[0] == charts[1]
        if want.name == "python_exec" and "tables" not in want.arguments["code"]:
            return same, self._printed(str(got[0].arguments.get("code", ""))) == want.content
        return same, same

    def _printed(self, code: str) -> str:
        context = ToolContext("evaluation", TODAY, time.monotonic() + 10)
        try:
            return self._python.run({"code": code}, context).content
        except ToolError as error:
            return f"error: {error}"

    def _count_facts(self, call: Call, expected: str, text: str) -> None:
        """A summary is right when it holds every figure the expected one copies from the rows."""
        cells = (
            set(re.split(r"[|\n]", call.content)) if call.name == "sql_query" else {call.content}
        )
        facts = [cell for cell in cells if len(cell) > 1 and cell in expected]
        self.facts.total += 1
        self.facts.right += all(fact in text for fact in facts)


def demo_names(database: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Names that occur in the demo database."""
    columns = {"product_name": "product_name", "customer": "customer", "salesperson": "salesperson"}
    names = {
        key: tuple(
            row[0] for row in database.execute(f"SELECT DISTINCT {c} FROM sales_data ORDER BY 1")
        )
        for key, c in columns.items()
    }
    names["city"] = tuple(r[0] for r in database.execute("SELECT DISTINCT city FROM customers"))
    return names


def evaluate(
    llm: ChatModel, database: sqlite3.Connection, per_split: int, seed: int
) -> tuple[dict[str, Score], Evaluator, dict[str, dict[str, list[int]]]]:
    """Scores by split, and (right, all) by split and intent."""
    evaluator = Evaluator(llm, database)
    prompt = dialogs.demo_prompt(TODAY)
    scores, intents = {}, {}
    with lexicon.real_names(demo_names(database)):
        for name, (mode, wanted) in SPLITS.items():
            sampler = Sampler(random.Random(f"{seed}/{name}"), mode)
            score, table = Score(), defaultdict(lambda: [0, 0])
            for _ in range(per_split):
                dialog = sampler.dialog(prompt, wanted)
                before = score.right
                evaluator.ask(prompt, dialog, score)
                table[dialog.intent][0] += score.right - before
                table[dialog.intent][1] += 1
            scores[name], intents[name] = score, dict(table)
    evaluator.close()
    return scores, evaluator, intents


def main(argv: list[str] | None = None) -> int:
    """Evaluate one model folder."""
    parser = argparse.ArgumentParser(prog="python -m models.training.evaluate", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--database", type=Path, default=Path("var/company.db"))
    parser.add_argument("--n", type=int, default=60, help="questions a split")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--misses", type=int, default=10, help="wrong answers to print")
    given = parser.parse_args(argv)
    if not given.database.is_file():
        print(f"no database at {given.database}; make it: python -m tools.demo_company --out var")
        return 2
    database = sqlite3.connect(f"file:{given.database}?mode=ro", uri=True)
    with LLM(given.model) as llm:
        scores, evaluator, intents = evaluate(llm, database, given.n, given.seed)
    summary: dict[str, Any] = {}
    for name, score in scores.items():
        low, high = wilson(score.right, score.total)
        share = 100 * score.right / score.total
        print(f"{name:10s} {share:5.1f} % right (95 %: {low:.1f}-{high:.1f}), "
              f"{100 * score.exact / score.total:.1f} % exact, n={score.total}, "
              f"{score.filled} with rows")  # fmt: skip
        by_intent = sorted(intents[name].items(), key=lambda item: item[1][0] / item[1][1])
        print("           " + ", ".join(f"{i} {r}/{t}" for i, (r, t) in by_intent))
        summary[name] = round(share, 1)
    for line in evaluator.misses[: given.misses]:
        print("miss " + line)
    facts = evaluator.facts
    summary["facts"] = round(100 * facts.right / facts.total, 1) if facts.total else None
    summary["n"] = {name: score.total for name, score in scores.items()}
    print(json.dumps(summary, ensure_ascii=False))
    database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

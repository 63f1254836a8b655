"""Evaluation: ``python -m models.training.evaluate MODEL``; the last line is JSON.

Owns the run over the fixed files of tests/models/eval: greedy, through the engine, several
questions at a time. With ``--float CHECKPOINT`` the unrounded weights run first. The questions
written by people are reported apart (``human_questions``).
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.checkpoint import checksums
from inference.llm import LLM
from inference.protocol import ChatModel, ChatOutput, ToolCall
from inference.sampling_params import SamplingParams
from models.training import fillings, human_questions, judging
from models.training.eval_items import (
    CLASSES,
    Item,
    Step,
    StoredPrompt,
    after,
    read_items,
    read_prompts,
)
from models.training.judging import wilson
from models.training.turns import TALK_INTENTS
from tools.base import ToolContext, ToolError
from tools.python_exec import PythonTool

EVAL_DIR = Path(__file__).parents[2] / "tests" / "models" / "eval"
GREEDY = SamplingParams(temperature=0.0, max_tokens=512)
AT_ONCE = 4
Databases = tuple[sqlite3.Connection, ...]


@dataclass
class Verdict:
    """How one item went. ``facts`` is None where no summary was asked for."""

    item: Item
    right: bool
    chart: bool = True
    facts: bool | None = None
    got: str = ""


@dataclass
class Tally:
    """Counts of one class."""

    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of items."""
        return len(self.verdicts)

    @property
    def right(self) -> int:
        """Number of right items."""
        return sum(verdict.right for verdict in self.verdicts)

    def facts(self) -> tuple[int, int]:
        """(right, all) summaries."""
        judged = [v.facts for v in self.verdicts if v.facts is not None]
        return sum(judged), len(judged)

    def by_intent(self) -> list[tuple[str, int, int]]:
        """(intent, right, all), worst first."""
        table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for verdict in self.verdicts:
            table[verdict.item.intent][0] += verdict.right
            table[verdict.item.intent][1] += 1
        return sorted(((i, r, n) for i, (r, n) in table.items()), key=lambda x: x[1] / x[2])


class World:
    """The two databases of every prompt, made when they are first needed."""

    def __init__(self, prompts: Mapping[str, StoredPrompt]) -> None:
        first = fillings.demo_tables()
        self._tables = (first, fillings.refilled(first))
        self._prompts = prompts
        self._demo: Databases = tuple(fillings.demo_database(tables) for tables in self._tables)
        self._last: tuple[str, Databases] = ("", ())

    def databases(self, prompt: str) -> Databases:
        """Two fillings for a prompt. Those of the prompt before are closed."""
        planned = self._prompts[prompt].filling
        if not planned:
            return self._demo
        if self._last[0] != prompt:
            for database in self._last[1]:
                database.close()
            made = tuple(
                fillings.database(fillings.fitted(tables, planned, f"{prompt}/{number}"))
                for number, tables in enumerate(self._tables, start=1)
            )
            self._last = (prompt, made)
        return self._last[1]

    @property
    def company(self) -> fillings.Tables:
        """The rows of the demo company."""
        return self._tables[0]


class Evaluator:
    """Asks items and judges what comes back."""

    def __init__(self, llm: ChatModel, prompts: Mapping[str, StoredPrompt], world: World) -> None:
        self._llm = llm
        self._prompts = prompts
        self._world = world
        self._python = PythonTool()

    def close(self) -> None:
        """End the Python sandbox."""
        self._python.close()

    def run(self, items: Sequence[Item]) -> Tally:
        """All items of a class; those of one prompt together."""
        tally = Tally()
        groups: dict[str, list[Item]] = defaultdict(list)
        for item in items:
            groups[item.prompt].append(item)
        for prompt, group in groups.items():
            databases = self._world.databases(prompt)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                tally.verdicts += pool.map(lambda item: self._judge(item, databases), group)  # noqa: B023
        return tally

    def _judge(self, item: Item, databases: Databases) -> Verdict:
        prompt = self._prompts[item.prompt]
        asked, specs = item.messages(prompt), prompt.specs()
        verdict = Verdict(item, True)
        for step in item.steps:
            output = self._llm.chat(asked, specs, GREEDY)
            right, chart = self._call_right(step, output, databases)
            verdict.right = verdict.right and right and (chart or not item.chart_matters)
            verdict.chart = verdict.chart and chart
            verdict.got += _shown(output)
            asked += after(step)
        if item.facts or item.intent in TALK_INTENTS:
            output = self._llm.chat(asked, specs, GREEDY)
            if item.facts:
                last = item.steps[-1]
                sources = (last.content, str(last.arguments["sql"]), item.question)
                verdict.facts = not output.tool_calls and judging.facts_right(
                    item.facts, sources, output.text
                )
                verdict.got += f" => {output.text}"
            else:
                verdict.got = _shown(output)
                verdict.right = not output.tool_calls and judging.talk_right(
                    item.intent, output.text
                )
        return verdict

    def _call_right(
        self, step: Step, output: ChatOutput, databases: Databases
    ) -> tuple[bool, bool]:
        """(same effect, same chart)."""
        if len(output.tool_calls) != 1 or output.tool_calls[0].name != step.name:
            return False, False
        given, wanted = dict(output.tool_calls[0].arguments), dict(step.arguments)
        match step.name:
            case "sql_query":
                sql = str(given.get("sql", ""))
                same = all(judging.same_rows(d, wanted["sql"], sql) for d in databases)
                return same, given.get("chart") == wanted.get("chart")
            case "python_exec":
                code = str(given.get("code", ""))
                if code == wanted["code"] or "tables" in wanted["code"]:
                    return code == wanted["code"], True
                return self._printed(code) == step.content, True
            case "search_docs":
                pair = judging.plain(str(given.get("query", ""))), judging.plain(wanted["query"])
                return pair[0] == pair[1], True
        return given == wanted, True

    def _printed(self, code: str) -> str:
        context = ToolContext("evaluation", human_questions.TODAY, time.monotonic() + 10)
        try:
            return self._python.run({"code": code}, context).content
        except ToolError as error:
            return f"error: {error}"


def _shown(output: ChatOutput) -> str:
    calls = "; ".join(_call(call) for call in output.tool_calls)
    return calls or output.text


def _call(call: ToolCall) -> str:
    return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"


def check_sums(folder: Path) -> list[str]:
    """Names of files whose bytes are not those that were committed."""
    return checksums.differing(folder, checksums.read_list(folder))


def evaluate(
    llm: ChatModel, folder: Path, world: World, limit: int, classes: Sequence[str]
) -> dict[str, Tally]:
    """Tallies by class."""
    prompts = read_prompts(folder)
    evaluator = Evaluator(llm, prompts, world)
    tallies = {}
    for kind in classes:
        items = read_items(folder, kind)
        if limit:
            items = items[:: max(1, -(-len(items) // limit))]
        started = time.monotonic()
        tallies[kind] = evaluator.run(items)
        took_s = time.monotonic() - started
        print(f"  {kind}: {len(items)} in {took_s:.0f} s", file=sys.stderr, flush=True)
    evaluator.close()
    return tallies


def report(name: str, tallies: Mapping[str, Tally], misses: int) -> dict[str, Any]:
    """Print a table; return the summary."""
    summary: dict[str, Any] = {}
    right = total = 0
    for kind, tally in tallies.items():
        low, high = wilson(tally.right, tally.total)
        share = 100 * tally.right / max(1, tally.total)
        charts = [v.chart for v in tally.verdicts if v.item.steps and v.right]
        line = f"{name} {kind:12s} {share:5.1f} % right (95 %: {low:.1f}-{high:.1f}), "
        line += f"n={tally.total}"
        if charts:
            line += f", chart argument {100 * sum(charts) / len(charts):.1f} %"
        print(line)
        print("     " + ", ".join(f"{i} {r}/{n}" for i, r, n in tally.by_intent()))
        summary[kind] = round(share, 1)
        right, total = right + tally.facts()[0], total + tally.facts()[1]
    low, high = wilson(right, total)
    print(f"{name} {'facts':12s} {100 * right / max(1, total):5.1f} % right "
          f"(95 %: {low:.1f}-{high:.1f}), n={total}")  # fmt: skip
    for tally in tallies.values():
        wrong = [v for v in tally.verdicts if not v.right or v.facts is False]
        for verdict in wrong[:misses]:
            what = "miss" if not verdict.right else "facts"
            print(f"{what} {verdict.item.id} {verdict.item.question} | {verdict.got}")
    summary["facts"] = round(100 * right / total, 1) if total else None
    summary["n"] = {kind: tally.total for kind, tally in tallies.items()} | {"facts": total}
    return summary


def main(argv: list[str] | None = None) -> int:
    """Evaluate one model folder."""
    parser = argparse.ArgumentParser(prog="python -m models.training.evaluate", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--files", type=Path, default=EVAL_DIR)
    parser.add_argument("--float", type=Path, dest="checkpoint", help="also FP32, from this file")
    parser.add_argument("--n", type=int, default=0, help="at most so many items a class")
    parser.add_argument("--classes", default=",".join(CLASSES))
    parser.add_argument("--misses", type=int, default=8, help="wrong answers to print, a class")
    parser.add_argument("--no-human", action="store_true", help="leave out the human questions")
    given = parser.parse_args(argv)
    if wrong := check_sums(given.files):
        print(f"these files are not the committed ones: {', '.join(wrong)}")
        return 2
    world = World(read_prompts(given.files))
    classes = given.classes.split(",")
    if given.checkpoint:
        from models.training.float_engine import float_llm

        with float_llm(given.model, given.checkpoint, max_num_seqs=AT_ONCE) as llm:
            found = evaluate(llm, given.files, world, given.n, classes)
        print(json.dumps({"fp32": report("FP32", found, 0)}, ensure_ascii=False))
    with LLM(given.model, max_num_seqs=AT_ONCE) as llm:
        summary = report("INT4", evaluate(llm, given.files, world, given.n, classes), given.misses)
        if not given.no_human:
            human_questions.report(llm, world.company, given.n, given.misses)
    print(json.dumps(summary, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What counts as right in a round of the benchmark.

Owns the rules. A call is valid when it parses, names a tool of the user and fits its schema; the
tool is right when the calls of a round, a repaired call counted once, name the expected tools in
order; the result is right when the tables, figures and passages are, and the person sees them.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sqlite3
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.training import judging
from tests.eval_tools.recording import Call
from tests.eval_tools.rounds import Round
from tools.base import Table
from workers.agent.steps import AgentResult

_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:万亿|[万亿])?")
_SCALES = {"万亿": 1e12, "亿": 1e8, "万": 1e4}
_BLOCKS = "▁▂▃▄▅▆▇█▒"
_INTENTS = {"talk": "thanks", "decline": "out_of_scope", "clarify": "clarify"}
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Score:
    """One judged round. ``calls`` counts malformed ones too; ``why`` is empty when all is right."""

    ask: str
    calls: int
    valid: int
    right_tool: bool
    right_result: bool
    failed_calls: int
    why: str = ""

    @property
    def right(self) -> bool:
        """Whether nothing in the round is wrong."""
        return self.right_tool and self.right_result and self.valid == self.calls


def score(
    expected: Round,
    result: AgentResult,
    calls: Sequence[Call],
    malformed: int,
    database: sqlite3.Connection,
) -> Score:
    """Judge one round; ``malformed`` calls never reached a tool."""
    used = tuple(name for name, _ in itertools.groupby(call.name for call in calls))
    right_tool = used == expected.tools and not malformed
    problem = _problem(expected, result, calls, database)
    why = problem if right_tool else f"used {'+'.join(used) or 'no tool'}, {problem}"
    if why:
        called = [json.dumps(dict(call.arguments), ensure_ascii=False) for call in calls]
        why += f" | {' '.join(called)} | {result.text.splitlines()[0] if result.text else ''}"
    return Score(
        ask=expected.ask,
        calls=len(calls) + malformed,
        valid=sum(not call.problem for call in calls),
        right_tool=right_tool,
        right_result=not problem,
        failed_calls=sum(call.result is None for call in calls) + malformed,
        why=why,
    )


def _problem(
    expected: Round, result: AgentResult, calls: Sequence[Call], database: sqlite3.Connection
) -> str:
    """What is wrong with the result, "" when nothing is."""
    if result.status != "ok":
        return f"the turn ended as {result.status}"
    match expected.kind:
        case "none":
            right = not calls and judging.talk_right(_INTENTS[expected.talk], result.text)
            return "" if right else f"not the words of {expected.talk}"
        case "docs":
            source = f"来源：《{expected.title}》{expected.section}"
            return "" if source in result.text else f"not from {source}"
        case "python":
            value = database.execute(expected.value).fetchone()[0]
            return "" if says(result.text, float(value)) else f"{value} is not in the answer"
    return _data_problem(expected, result.text, calls, database)


def _data_problem(
    expected: Round, text: str, calls: Sequence[Call], database: sqlite3.Connection
) -> str:
    gold = database.execute(expected.sql).fetchall()
    tables = [call.result.table for call in calls if call.result and call.result.table]
    if not tables or not covers(gold, tables[-1], ordered=expected.ordered):
        return "other rows than the gold query"
    if expected.kind == "both":
        values = reduced(expected.reduce, [float(row[-1]) for row in gold])
        return "" if any(says(text, v) for v in values) else f"none of {values} in the answer"
    if len(gold) == 1:
        unseen = [cell for cell in gold[0] if not _seen(text, cell)]
        if unseen:
            return f"{unseen} not in the answer"
    return _chart_problem(expected.chart, text)


def _chart_problem(kind: str, text: str) -> str:
    drawn = any(block in text for block in _BLOCKS)
    if kind == "none":
        return "a chart that nobody wanted" if drawn else ""
    if kind == "share" and not (drawn and "%" in text):
        return "no shares drawn"
    return "no chart" if kind and not drawn else ""


def covers(gold: Rows, table: Table, *, ordered: bool) -> bool:
    """Whether every gold row lies in a row of its own of ``table``; more columns do no harm."""
    if len(gold) != len(table.rows):
        return False
    if ordered:
        return all(_within(want, row) for want, row in zip(gold, table.rows, strict=True))
    left = list(table.rows)
    for want in gold:
        found = next((row for row in left if _within(want, row)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _within(want: Sequence[Any], row: Sequence[Any]) -> bool:
    left = list(row)
    for cell in want:
        at = next((i for i, other in enumerate(left) if _same(cell, other)), None)
        if at is None:
            return False
        del left[at]
    return True


def _same(one: Any, other: Any) -> bool:
    """Equal text, or numbers equal to the second decimal or to nine digits."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=0.0051)
    return str(one) == str(other)


def _seen(text: str, cell: Any) -> bool:
    return says(text, float(cell)) if isinstance(cell, int | float) else str(cell) in text


def says(text: str, number: float) -> bool:
    """Whether a figure of ``text`` is ``number`` (its sign is told in words), as exactly as the
    text gives it."""
    for found in _FIGURE.findall(text.replace(",", "")):
        digits = found.rstrip("万亿")
        scale = _SCALES.get(found[len(digits) :], 1.0)
        step = scale * 10.0 ** -len(digits.partition(".")[2])
        if abs(float(digits) * scale - abs(number)) <= 0.51 * step:
            return True
    return False


def reduced(kind: str, values: Sequence[float]) -> tuple[float, ...]:
    """The statistic of ``values``; two for stdev, of the population and of a sample."""
    match kind:
        case "median":
            return (statistics.median(values),)
        case "range":
            return (max(values) - min(values),)
        case "stdev":
            return statistics.pstdev(values), statistics.stdev(values)
    raise ValueError(f"unknown statistic {kind}")

"""The text of the answer: the model's sentence, then the figures as they came from the tools.

Owns the order of the parts and their budget. The model's words are not edited; rows and charts
are rendered from the exact table, never from what the model says about it.
"""

from __future__ import annotations

import re

from tools import chart
from tools.base import Source, Table, ToolResult
from tools.numbers import format_number

ANSWER_LIMIT_BYTES = 2048
FIGURES_ONLY = "查询结果如下，请以数据为准。"
_SHARDS = re.compile(
    r'</?(?:tool_call|tool_response|think)>|<\|im_|"(?:arguments|name)"\s*:|\bSELECT\b.{0,200}\bFROM\b',
    re.IGNORECASE | re.DOTALL,
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_STAMMER = re.compile(r"(.{2,12}?)\1{5,}", re.DOTALL)
"""The same two to twelve characters six times in a row."""
LISTED_ROWS = 10
QUOTED_SHARE = 0.3
"""A passage is named as the source when so much of it stands in the sentence."""


def compose(sentence: str, results: list[ToolResult]) -> str:
    """Join the model's ``sentence`` with the chart or rows of the last table, scope and sources.

    The figures get what the sentence leaves of one WeCom text part (2048 bytes, UTF-8).
    """
    sentence = sentence.strip()
    tabled = [result for result in results if result.table is not None]
    closing = _closing(sentence, tabled[-1] if tabled else None, results)
    figures = ""
    if tabled:
        used = len(f"{sentence}\n\n\n\n{closing}".encode())
        figures = _figures(tabled[-1], max(0, ANSWER_LIMIT_BYTES - used))
        if not figures and sentence == FIGURES_ONLY:
            figures = _single_row(tabled[-1].table, max(0, ANSWER_LIMIT_BYTES - used))
    return "\n\n".join(part for part in (sentence, figures, closing) if part)


def is_presentable(sentence: str) -> bool:
    """Whether the model's words can be shown: not empty, no shards of calls or queries, no
    stammering. What fails is never repaired; the user gets an honest sentence instead."""
    return bool(sentence.strip()) and not _SHARDS.search(sentence) and not _STAMMER.search(sentence)


def unfounded_figures(sentence: str, evidence: str) -> set[str]:
    """Numbers in ``sentence`` that stand nowhere in ``evidence``, as written there or rounded.

    Figures are copied from tools, never worked out by the model; measured on the questions of
    tests/models/questions_zh.jsonl this finds wrong sentences only.
    """
    known = {_plain(number) for number in _NUMBER.findall(evidence)}
    values = [float(number) for number in known]
    return {
        number
        for number in map(_plain, _NUMBER.findall(sentence))
        if number not in known and not any(_rounds_to(value, number) for value in values)
    }


def _plain(number: str) -> str:
    return number.replace(",", "").lstrip("0") or "0"


def _rounds_to(value: float, number: str) -> bool:
    decimals = len(number.partition(".")[2])
    return abs(value - float(number)) <= 0.5 * 10**-decimals and value != int(value)


def _closing(sentence: str, tabled: ToolResult | None, results: list[ToolResult]) -> str:
    if tabled:
        return f"统计口径：{tabled.scope}" if tabled.scope else ""
    source = _quoted(sentence, [source for result in results for source in result.sources])
    return f"来源：《{source.title}》{source.section}".rstrip() if source else ""


def _quoted(sentence: str, sources: list[Source]) -> Source | None:
    """The passage that shares most of its character pairs with ``sentence``; ``None`` when the
    sentence quotes none, such as when it says that nothing was found."""
    pairs = _pairs(sentence)
    shares = [len(pairs & _pairs(s.text)) / max(1, len(_pairs(s.text))) for s in sources]
    best = max(shares, default=0.0)
    return sources[shares.index(best)] if best >= QUOTED_SHARE else None


def _pairs(text: str) -> set[str]:
    return {text[i : i + 2] for i in range(len(text) - 1)}


def _figures(result: ToolResult, limit_bytes: int) -> str:
    table = result.table
    if table is None or len(table.rows) < 2:
        return ""
    if result.chart != "none":
        drawn = chart.render(table, result.chart, limit_bytes=limit_bytes)
        if drawn:
            return drawn
    return _rows(table, limit_bytes)


def _single_row(table: Table | None, limit_bytes: int) -> str:
    """The only row with its headers, for a sentence that promises figures and has none."""
    if table is None or len(table.rows) != 1:
        return ""
    pairs = zip(table.columns, table.rows[0], strict=True)
    line = "，".join(f"{name}：{format_number(value)}" for name, value in pairs)
    return line if len(line.encode()) <= limit_bytes else ""


def _rows(table: Table, limit_bytes: int) -> str:
    lines: list[str] = []
    for row in table.rows[:LISTED_ROWS]:
        line = "，".join(format_number(value) for value in row)
        if len("\n".join([*lines, line]).encode()) > limit_bytes - 48:
            break
        lines.append(line)
    if len(lines) < len(table.rows):
        lines.append(f"…共{len(table.rows)}行")
    return "\n".join(lines) if len(lines) > 1 else ""

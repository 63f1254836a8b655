"""The text of the answer: the model's sentence, then the figures as they came from the tools.

Owns the order of the parts and their budget. The model's words are not edited; rows and charts
are rendered from the exact table, never from what the model says about it.
"""

from __future__ import annotations

from tools import chart
from tools.base import Source, Table, ToolResult
from tools.numbers import format_number

ANSWER_LIMIT_BYTES = 2048
LISTED_ROWS = 10


def compose(sentence: str, results: list[ToolResult]) -> str:
    """Join the model's ``sentence`` with the chart or rows of the last table, scope and sources.

    The figures get what the sentence leaves of one WeCom text part (2048 bytes, UTF-8).
    """
    sentence = sentence.strip()
    tabled = [result for result in results if result.table is not None]
    closing = _closing(tabled[-1] if tabled else None, results)
    figures = ""
    if tabled:
        used = len(f"{sentence}\n\n\n\n{closing}".encode())
        figures = _figures(tabled[-1], max(0, ANSWER_LIMIT_BYTES - used))
    return "\n\n".join(part for part in (sentence, figures, closing) if part)


def _closing(tabled: ToolResult | None, results: list[ToolResult]) -> str:
    lines = []
    if tabled and tabled.scope:
        lines.append(f"统计口径：{tabled.scope}")
    sources = [source for result in results for source in result.sources]
    if sources and not tabled:
        lines.append(f"来源：{_citation(sources[0])}")
    return "\n".join(lines)


def _citation(source: Source) -> str:
    return f"《{source.title}》{source.section}".rstrip()


def _figures(result: ToolResult, limit_bytes: int) -> str:
    table = result.table
    if table is None or len(table.rows) < 2:
        return ""
    if result.chart != "none":
        drawn = chart.render(table, result.chart, limit_bytes=limit_bytes)
        if drawn:
            return drawn
    return _rows(table, limit_bytes)


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

"""The prompt: what the model is told before the question. Frozen with the trained models.

Owns the system prompt and the choice of history. Knows nothing of how text becomes tokens
(the model counts) or where history is stored.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from inference.protocol import Message
from tools.semantic import Semantic

PERSONA = "你是胡同，公司的企业微信助手。用工具查数据和文档，数字只取自工具结果；只读，不改数据。"


def system_prompt(semantic: Semantic, today: datetime.date, documents: Sequence[str] = ()) -> str:
    """The system message: persona, calendar, schema, metrics and document titles."""
    lines = [PERSONA, calendar(today), *ranges(semantic, today), semantic.render()]
    if documents:
        lines.append("文档: " + ", ".join(documents))
    return "\n".join(lines)


def calendar(today: datetime.date) -> str:
    """Today and the periods people name without a year, computed so that no model has to.

    A quarter or month without a year means the latest one that is complete.
    """
    quarter = (today.month - 1) // 3 + 1
    last_quarter = previous_quarter(today.year, quarter)
    last_month = (today.year, today.month - 1) if today.month > 1 else (today.year - 1, 12)
    quarters = " ".join(
        f"{today.year if q < quarter else today.year - 1}-Q{q}" for q in (1, 2, 3, 4)
    )
    months = f"1-{today.month - 1}月属{today.year}年" if today.month > 1 else ""
    rest = f"{today.month}-12月属{today.year - 1}年"
    return (
        f"今天{today.isoformat()}。今年{today.year}，去年{today.year - 1}；"
        f"本季{today.year}-Q{quarter}，上季{last_quarter[0]}-Q{last_quarter[1]}；"
        f"本月{today.year}-{today.month:02d}，上月{last_month[0]}-{last_month[1]:02d}。"
        f"不写年份时: {quarters}；{'，'.join(part for part in (months, rest) if part)}。"
    )


def ranges(semantic: Semantic, today: datetime.date) -> list[str]:
    """Half-open date ranges, for tables with a time column of their own or a fiscal year."""
    lines = []
    if any(table.time for table in semantic.tables):
        day, week = datetime.timedelta(days=1), datetime.timedelta(weeks=1)
        monday = today - today.weekday() * day
        month = today.replace(day=1)
        quarter = month_start(month, -((today.month - 1) % 3))
        year = today.replace(month=1, day=1)
        spans = [
            ("今天", today, today + day), ("昨天", today - day, today),
            ("本周", monday, monday + week), ("上周", monday - week, monday),
            ("本月", month, month_start(month, 1)), ("上月", month_start(month, -1), month),
            ("本季", quarter, month_start(quarter, 3)), ("上季", month_start(quarter, -3), quarter),
            ("今年", year, month_start(year, 12)), ("去年", month_start(year, -12), year),
        ]  # fmt: skip
        lines.append(_spans("日期范围(含起不含止)", spans))
    start = semantic.fiscal_year_start
    if start != 1:
        month = today.replace(day=1)
        into = (today.month - start) % 12
        year, quarter = month_start(month, -into), month_start(month, -(into % 3))
        spans = [
            ("本财年", year, month_start(year, 12)), ("上财年", month_start(year, -12), year),
            (f"本财季(Q{into // 3 + 1})", quarter, month_start(quarter, 3)),
        ]  # fmt: skip
        lines.append(_spans(f"财年从{start}月开始(含起不含止)", spans))
    return lines


def _spans(title: str, spans: Sequence[tuple[str, datetime.date, datetime.date]]) -> str:
    return f"{title}: " + " ".join(f"{name}{first}..{end}" for name, first, end in spans)


def month_start(first: datetime.date, months: int) -> datetime.date:
    """``first``, a first of a month, moved by ``months``."""
    index = first.year * 12 + first.month - 1 + months
    return datetime.date(index // 12, index % 12 + 1, 1)


def previous_quarter(year: int, quarter: int) -> tuple[int, int]:
    """The quarter before, as (year, quarter)."""
    return (year, quarter - 1) if quarter > 1 else (year - 1, 4)


def fit_history(
    history: Sequence[Message], budget_tokens: int, count: Callable[[Sequence[Message]], int]
) -> tuple[Message, ...]:
    """The newest whole turns of ``history`` whose rendered size stays within the budget.

    A turn starts at a user message, so an answer never loses its question.
    """
    starts = [i for i, message in enumerate(history) if message.role == "user"]
    for start in starts:
        kept = tuple(history[start:])
        if count(kept) <= budget_tokens:
            return kept
    return ()

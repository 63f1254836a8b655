"""``/sql``: the statements behind the last answer of the user who asks, and the sentences that
mean the same.

Owns which sentences these are and the text. The statements come from the steps that the turn
worker stored; no model and no database is asked. Knows nothing of SQL itself.
"""

from __future__ import annotations

import json
import re
from typing import Any

import redis

from app import replies
from app.store.turns import Turns
from app.wecom.markdown import to_text

MOST_SHOWN_CHARACTERS = 40
_LAST = "(?:刚才|刚刚|上面|前面|上一个|上个|上一条|上次|这个|这条|这次)"
_OF_IT = f"(?:{_LAST}?(?:那个|那条|的)?(?:查询|问题|回答|答案|结果)?(?:用的|里的|的|用)?)"
_LOOK = "(?:看看|看一下|看一看|看下|看)"
_CHINESE = re.compile(
    "(?:请|麻烦|麻烦你|可以|能|能不能|我想|我要|想)?(?:"
    # 用的什么SQL，刚才的查询是用哪条SQL查的
    f"{_LAST}?(?:的)?(?:查询|问题|回答|答案|结果)?(?:是)?(?:你)?用(?:的)?(?:是)?"
    "(?:什么|啥|哪条|哪个|怎样的|什么样的)sql(?:语句)?(?:查的|查询的)?"
    # 用的SQL是什么
    f"|{_LAST}?(?:的)?(?:查询|问题|回答|答案|结果)?用的sql(?:语句)?(?:是什么|是啥|是哪条|呢)"
    # 把SQL发我看看
    f"|把{_OF_IT}sql(?:语句)?(?:也)?(?:发|发给|给|贴|贴给|列|写)(?:我|出来|一下)(?:{_LOOK})?"
    # 看看SQL，给我看一下刚才用的SQL语句
    f"|(?:给我|让我|帮我)?(?:{_LOOK}|发|发我|发一下|给我|贴一下|显示|列出){_OF_IT}sql(?:语句)?"
    ")(?:吧|呀|啊|呢|吗|么|行吗|好吗|可以吗)?"
)
_ENGLISH = re.compile(
    "(?:please )?(?:can you |could you |let me |can i |i want to )?(?:show|see|send|give)(?: me)?"
    "(?: the| your| that)?(?: last)? sql(?: query| queries| statement| statements)?"
    "(?: you used| used| behind (?:it|this|that))?(?: please)?"
    "|(?:what|which) sql(?: query| statement)? (?:did you use|was used|did that use)"
)


def asks_for_sql(text: str) -> bool:
    """Whether the whole of ``text`` (lower case) is ``/sql`` or a plain wish to see the SQL.

    Narrow on purpose: a question about SQL or about data is none.
    """
    text = re.sub(r"\s+", " ", text).strip(" 。.？?！!～~")
    return (
        text == "/sql"
        or _CHINESE.fullmatch(text.replace(" ", "")) is not None
        or _ENGLISH.fullmatch(text.replace(",", "").replace("，", "")) is not None
    )


class LastSql:
    """Reads turns of the user whose tag is given, and of nobody else."""

    def __init__(self, client: redis.Redis) -> None:
        self._turns = Turns(client)

    def text(self, tag: str, *, dry_run: bool = False) -> str:
        """What to answer. A dry run looks at the last dry run first."""
        turn = self._turns.last_answered(tag, dry_run=dry_run)
        if turn is None:
            return replies.NO_ANSWER_YET
        question = " ".join(turn.text.split())
        if len(question) > MOST_SHOWN_CHARACTERS:
            question = question[: MOST_SHOWN_CHARACTERS - 1] + "…"
        queries = _queries(turn.steps)
        if not queries:
            return _plain(replies.NO_SQL.format(question=question))
        blocks = [replies.SQL_OF.format(question=question)]
        for number, step in enumerate(queries, 1):
            mark = f"{number}/{len(queries)}\n" if len(queries) > 1 else ""
            scope = f"\n统计口径：{step['scope']}" if step.get("scope") else ""
            blocks.append(f"{mark}{_statement(step)}{scope}")
        return _plain("\n\n".join(blocks))


def _queries(steps: str) -> list[dict[str, Any]]:
    """The queries of a turn that gave a result, in order."""
    return [
        step
        for step in json.loads(steps)
        if step.get("name") == "sql_query" and not step.get("error") and _statement(step)
    ]


def _statement(step: dict[str, Any]) -> str:
    """What ran; of a turn before this was stored, what the model wrote."""
    return str(step.get("statement") or step.get("arguments", {}).get("sql", "")).strip()


def _plain(text: str) -> str:
    """The text with nothing in it that WeCom would take for a link; asterisks stay."""
    return to_text(f"```\n{text}\n```")

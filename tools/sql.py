"""``sql_query``: one read-only SELECT on the company's SQLite database.

Owns limits, the text the model reads and the wording of database errors. Checking is in
``sql_check``, the walls around the database in ``sql_worker``. Knows nothing of who may ask.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tools import schemas
from tools.base import (
    ChartKind,
    Table,
    ToolArgumentError,
    ToolContext,
    ToolError,
    ToolResult,
    ToolTimeoutError,
    ToolUnavailableError,
    Value,
)
from tools.numbers import format_number
from tools.semantic import Semantic
from tools.sql_check import CheckedQuery, SqlChecker
from tools.sql_process import WorkerPool, WorkerRequest
from tools.sql_values import KnownValues
from tools.sql_words import ordered_by
from tools.sql_worker import FUNCTIONS

TIMEOUT_S = 3.0
MAX_ROWS = 200
MAX_BYTES = 50_000
SHOWN_ROWS = 12
CELL_CHARS = 60
NO_ROWS = "0行，没有符合条件的数据"


class SqlTool:
    """``sql_query`` over one SQLite file. Thread-safe; ``close`` ends the query processes.

    Only the tables and columns of ``semantic`` can be read. Raises ``ToolUnavailableError`` when
    the file is missing or lacks one of them.
    """

    name = schemas.SQL_QUERY.name
    description = schemas.SQL_QUERY.description
    parameters: Mapping[str, Any] = schemas.SQL_QUERY.parameters

    def __init__(
        self, database: Path, semantic: Semantic, *, timeout_s: float = TIMEOUT_S, workers: int = 4
    ) -> None:
        self._timeout_s = timeout_s
        tables = {t.name: tuple(c.name for c in t.columns) for t in semantic.tables}
        reserved = _verified(database, tables)
        self._checker = SqlChecker(tables, semantic, reserved=reserved)
        self._pool = WorkerPool(database.resolve(), tables, size=workers)
        self._values = KnownValues(database.resolve(), semantic, self._pool)

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run ``arguments["sql"]``; at most 200 rows and 50 kB come back.

        Raises ``ToolArgumentError`` for a statement to repair, ``ToolTimeoutError`` past the time
        limit, ``ToolUnavailableError`` when the database cannot be read.
        """
        timeout_s = min(self._timeout_s, context.remaining_s())
        if timeout_s <= 0:
            raise ToolTimeoutError("已到时限，没有查询")
        query = self._checker.check(
            str(arguments["sql"]),
            max_rows=MAX_ROWS,
            today=context.today,
            resolve=lambda table, column, text: self._values.resolve(
                table, column, text, timeout_s
            ),
            last_day=lambda table: self._values.last_day(table, timeout_s),
        )
        answer = self._pool.ask(
            WorkerRequest(query.sql, query.cte_names, timeout_s, MAX_ROWS, MAX_BYTES)
        )
        if "error" in answer:
            raise _explained(answer["error"], answer["message"])
        table = self._table(query, answer)
        content = content_of(table) if table.rows else NO_ROWS
        return ToolResult(
            content=content,
            table=table,
            chart=cast("ChartKind | None", arguments.get("chart")),
            scope=query.scope,
        )

    def close(self) -> None:
        """End the query processes; a later call starts new ones."""
        self._pool.close()

    def _table(self, query: CheckedQuery, answer: Mapping[str, Any]) -> Table:
        names = tuple(str(name) for name in answer["columns"])
        rows = tuple(tuple(row) for row in answer["rows"])
        if len(rows) == 1 and all(value is None for value in rows[0]):
            # SUM over nothing: one row of NULLs means that no row matched.
            rows = ()
        headers = self._checker.words.headers(query.tree, names)
        identifiers = [name.lower().endswith("_id") for name in names]
        return Table(
            headers,
            tuple(_row(row, identifiers) for row in rows),
            answer["truncated"],
            ordered_by(query.tree, headers),
        )


def content_of(table: Table) -> str:
    """The table as the model reads it: header, at most 12 rows, ``共N行``."""
    lines = ["|".join(_cell(name) for name in table.columns)]
    lines += ["|".join(_cell(value) for value in row) for row in table.rows[:SHOWN_ROWS]]
    more = "以上" if table.truncated else ""
    cut = "…" if len(table.rows) > SHOWN_ROWS or table.truncated else ""
    lines.append(f"{cut}共{len(table.rows)}行{more}")
    return "\n".join(lines)


def _cell(value: Value) -> str:
    """One value on one line: no bar, no line break, at most 60 characters."""
    text = " ".join(format_number(value).replace("|", "¦").split())
    return text if len(text) <= CELL_CHARS else text[: CELL_CHARS - 1] + "…"


def _row(row: Sequence[Value], identifiers: Sequence[bool]) -> tuple[Value, ...]:
    """Identifiers become text: order 100001 is not 10万."""
    return tuple(
        str(value) if is_id and isinstance(value, int) else value
        for value, is_id in zip(row, identifiers, strict=True)
    )


def _verified(database: Path, tables: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Check that the database has what the semantic file names; return all its other names."""
    if not database.is_file():
        raise ToolUnavailableError(f"没有找到数据库文件 {database}，请检查 HUTONG_SQL_DATABASE")
    try:
        with contextlib.closing(
            sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
        ) as connection:
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            for table, columns in tables.items():
                found = {
                    row[0]
                    for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
                }
                missing = [column for column in columns if column not in found]
                if missing:
                    raise ToolUnavailableError(
                        f"数据库的表 {table} 缺少 {'、'.join(missing)}，请对照语义文件检查"
                    )
    except sqlite3.Error as error:
        raise ToolUnavailableError(f"数据库 {database} 打不开：{error}") from error
    return frozenset(name for name in names if name not in tables)


def _explained(code: str, message: str) -> ToolError:
    """A database error as text that helps the model to repair its SQL."""
    if code == "timeout":
        return ToolTimeoutError("查询超过了时间上限，已停止；请加上条件缩小范围")
    if code == "too_big":
        return ToolArgumentError("结果或中间结果太大，请先汇总或缩小范围")
    if code == "unavailable":
        return ToolUnavailableError(f"数据库暂时读不了：{message[:80]}")
    if code == "denied":
        return ToolArgumentError(f"不允许使用“{message[:40]}”；只能读已列出的表、列，用普通函数")
    unknown = re.search(r"no such function: (\w+)", message)
    if unknown:
        near = difflib.get_close_matches(unknown.group(1).lower(), sorted(FUNCTIONS), n=1)
        hint = f"，是不是{near[0]}？" if near else "，请换一种写法"
        return ToolArgumentError(f"没有函数{unknown.group(1)}{hint}")
    return ToolArgumentError(f"SQL执行失败：{message[:160]}")

"""``sql_query``: one read-only SELECT on the company's database.

Owns limits, the text the model reads and the wording of database errors. Checking is in
``sql_check``, the walls around a SQLite file in ``sql_worker``, those around a PostgreSQL or MySQL
server in ``sql_server``. Knows nothing of who may read what: a function says so.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
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
from tools.sql_backend import Backend, SqliteFile
from tools.sql_check import CheckedQuery, SqlChecker
from tools.sql_dialect import laid_out, written
from tools.sql_process import WorkerRequest
from tools.sql_server import SqlServer, is_url
from tools.sql_server_errors import Unreachable
from tools.sql_values import Asker, KnownValues
from tools.sql_words import ordered_by
from tools.sql_worker import FUNCTIONS

TIMEOUT_S = 3.0
MAX_ROWS = 200
MAX_BYTES = 50_000
SHOWN_ROWS = 12
CELL_CHARS = 60
IDENTIFIERS = ("_id", "年月", "year_month", "yyyymm")
"""Ends of column names whose whole numbers are no figures."""
NO_ROWS = "0行，没有符合条件的数据"


MayRead = Callable[[str, str], bool]
"""(user, ``table`` or ``table.column``) to whether this user may read it."""
log = logging.getLogger(__name__)


def anyone(user: str, name: str) -> bool:
    """The default right: every user may read all that the semantic file names."""
    return True


class SqlTool:
    """``sql_query`` over a SQLite file or a server's URL. Thread-safe; ``close`` ends it all.

    Only the tables and columns of ``semantic`` can be read, and of these what ``may_read`` allows.
    Raises ``ToolUnavailableError`` when the database lacks one of them, refuses the password or
    lets its user write. A server that cannot be reached now is tried again at each question.
    """

    name = schemas.SQL_QUERY.name
    description = schemas.SQL_QUERY.description
    parameters: Mapping[str, Any] = schemas.SQL_QUERY.parameters

    def __init__(
        self,
        database: Path | str,
        semantic: Semantic,
        *,
        timeout_s: float = TIMEOUT_S,
        workers: int = 4,
        may_read: MayRead = anyone,
    ) -> None:
        self._timeout_s = timeout_s
        self._semantic = semantic
        self._may_read = may_read
        self._tables = {t.name: tuple(c.name for c in t.columns) for t in semantic.tables}
        self._backend: Backend
        if isinstance(database, str) and is_url(database):
            self._backend = SqlServer(database, self._tables, connections=workers)
        else:
            self._backend = SqliteFile(Path(database), self._tables, workers=workers)
        self._values = KnownValues(self._backend, semantic)
        self._checker: SqlChecker | None = None
        self._lock = threading.Lock()
        try:
            self._opened()
        except Unreachable:
            log.warning("the database server cannot be reached yet")
        except ToolError:
            self._backend.close()
            raise

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run ``arguments["sql"]``; at most 200 rows and 50 kB come back.

        Raises ``ToolArgumentError`` for a statement to repair, ``ToolForbiddenError`` for data this
        user may not see, ``ToolTimeoutError`` past the time limit, ``ToolCancelledError`` within a
        second after the turn was stopped, ``ToolUnavailableError`` when the database cannot be
        read.
        """
        timeout_s = min(self._timeout_s, context.remaining_s())
        if timeout_s <= 0:
            raise ToolTimeoutError("已到时限，没有查询")

        @functools.cache
        def may_read(name: str) -> bool:
            return self._may_read(context.user, name)

        asker = Asker(timeout_s, may_read, context.cancelled)
        checker = self._opened()
        query = checker.check(
            str(arguments["sql"]),
            max_rows=MAX_ROWS,
            today=context.today,
            resolve=lambda table, column, text: self._values.resolve(table, column, text, asker),
            last_day=lambda table: self._values.last_day(table, asker),
            may_read=may_read,
        )
        readable = {
            table: tuple(c for c in self._tables[table] if may_read(f"{table}.{c}"))
            for table in self._tables
            if table.lower() in query.tables and may_read(table)
        }
        answer = self._backend.ask(
            WorkerRequest(query.sql, query.cte_names, timeout_s, MAX_ROWS, MAX_BYTES, readable),
            context.cancelled,
        )
        if "error" in answer:
            raise _explained(answer["error"], answer["message"])
        table = self._table(checker, query, answer)
        content = content_of(table) if table.rows else NO_ROWS
        return ToolResult(
            content=content,
            table=table,
            chart=cast("ChartKind | None", arguments.get("chart")),
            scope=query.scope,
            statement=laid_out(query.sql, self._backend.dialect, max_rows=MAX_ROWS + 1),
        )

    def close(self) -> None:
        """End the query processes or connections; a later call starts new ones."""
        self._backend.close()

    def _opened(self) -> SqlChecker:
        """The checker for the database as it is, made once the database could be reached."""
        with self._lock:
            if self._checker is None:
                reflected = self._backend.open()
                dialect = self._backend.dialect
                names = {
                    name.lower(): name
                    for table, columns in reflected.types.items()
                    for name in (table, *columns)
                }
                self._checker = SqlChecker(
                    self._tables,
                    self._semantic,
                    types=reflected.types,
                    reserved=reflected.others,
                    write=None
                    if dialect == "sqlite"
                    else lambda tree: written(tree, dialect, names, max_rows=MAX_ROWS + 1),
                )
            return self._checker

    @staticmethod
    def _table(checker: SqlChecker, query: CheckedQuery, answer: Mapping[str, Any]) -> Table:
        names = tuple(str(name) for name in answer["columns"])
        rows = tuple(tuple(row) for row in answer["rows"])
        if len(rows) == 1 and all(value is None for value in rows[0]):
            # SUM over nothing: one row of NULLs means that no row matched.
            rows = ()
        headers = checker.words.headers(query.tree, names)
        identifiers = [name.lower().endswith(IDENTIFIERS) for name in names]
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
    """Identifiers become text: order 100001 is not 10万, nor is the month 202407."""
    return tuple(
        str(value) if is_id and isinstance(value, int) else value
        for value, is_id in zip(row, identifiers, strict=True)
    )


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

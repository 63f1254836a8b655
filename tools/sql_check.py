"""Checks a statement before any database sees it: one SELECT, known tables and columns.

Owns parsing and the messages that help a model repair its SQL. Knows nothing of connections: the
schema is passed in. It is the first of several walls (see ``sql_worker``), not the only one.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SqlglotError, TokenError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from tools.base import ToolArgumentError
from tools.semantic import Semantic
from tools.sql_days import whole_days
from tools.sql_grouping import complete_groups
from tools.sql_literals import Resolve, correct
from tools.sql_origins import Origins
from tools.sql_rules import FORBIDDEN, MayRead, make_real, refuse_unreadable
from tools.sql_scope import LastDay, Now, describe
from tools.sql_text import clean
from tools.sql_words import Words

SQL_LIMIT_CHARS = 8_000
MOST_LEVELS = 200
"""Above twice what SQLite takes; a sum of a hundred terms still fits."""
READ_AS = "sqlite"
_START = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(select|with)\b", re.I | re.S)
_NOW: tuple[type[exp.Expr], ...] = (exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime)
_SYSTEM = ("sqlite_", "pragma_", "pg_", "information_schema", "mysql")
_UNRESOLVED = re.compile(r"[Cc]olumn:? ['\"]?(?P<name>.+?)['\"]?(?: could|\.? ?Line|$)")


Write = Callable[[exp.Query], str]
"""A checked query, its columns qualified and its types known, in a server's own dialect."""


@dataclass(frozen=True)
class CheckedQuery:
    """A statement that passed. ``sql`` is what to run, with a row limit."""

    sql: str
    tables: tuple[str, ...]
    cte_names: tuple[str, ...]
    scope: str
    tree: exp.Query


def _depth(tree: exp.Query) -> int:
    """Levels of the tree, without recursion: later steps take time by its square."""
    deepest = 0
    waiting: list[tuple[exp.Expr, int]] = [(tree, 1)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        waiting += [(child, level + 1) for child in node.iter_expressions()]
    return deepest


class SqlChecker:
    """Checks statements, written in SQLite's dialect, against one schema.

    ``schema``: table name to its column names, only what may be read; ``types`` their types.
    ``reserved``: every other name in the database, which a WITH clause must not take. ``write``
    puts a statement into another dialect.
    """

    def __init__(
        self,
        schema: Mapping[str, tuple[str, ...]],
        semantic: Semantic,
        *,
        types: Mapping[str, Mapping[str, str]] | None = None,
        reserved: frozenset[str] = frozenset(),
        write: Write | None = None,
    ) -> None:
        self._schema = {
            table.lower(): tuple(column.lower() for column in columns)
            for table, columns in schema.items()
        }
        self._semantic = semantic
        self._reserved = frozenset(name.lower() for name in reserved)
        self._write = write
        known = {
            (table.lower(), column.lower()): kind
            for table, columns in (types or {}).items()
            for column, kind in columns.items()
        }
        self._mapping = MappingSchema(
            {t: {c: known.get((t, c), "TEXT") for c in cs} for t, cs in self._schema.items()},
            dialect=READ_AS,
        )
        self.words = Words(semantic)

    def check(
        self,
        text: str,
        *,
        max_rows: int,
        today: datetime.date,
        resolve: Resolve | None = None,
        last_day: LastDay | None = None,
        may_read: MayRead | None = None,
    ) -> CheckedQuery:
        """Parse and check ``text``. Raises ``ToolArgumentError`` that says what to change, and
        ``ToolForbiddenError`` for what ``may_read`` refuses.

        ``resolve`` names the value in the data that a text in the statement means; ``last_day``
        the last day with data in a table, for the scope.
        """
        sql = clean(text)
        if len(sql) > SQL_LIMIT_CHARS:
            raise ToolArgumentError(f"SQL太长，最多{SQL_LIMIT_CHARS}个字符")
        tree = self._parse(sql)
        changed = self._repair_literals(tree)
        self._refuse_now(tree, today)
        cte_names = self._cte_names(tree)
        tables = self._tables(tree, cte_names)
        origins = Origins(tree)
        qualified = self._qualify(tree)
        if may_read is not None:
            refuse_unreadable(qualified, self._schema, may_read)
        if resolve is not None:
            changed = correct(origins, qualified, resolve) or changed
        annotate_types(qualified, schema=self._mapping, dialect=READ_AS)
        changed = make_real(origins, qualified) or changed
        changed = complete_groups(origins, qualified) or changed
        changed = whole_days(origins, qualified) or changed
        if self._write is not None:
            sql = self._write(qualified)
        elif changed:
            sql = tree.sql(dialect=READ_AS)
        if self._write is None and tree.args.get("limit") is None:
            # On a line of its own, so that a trailing comment cannot swallow it.
            sql = f"{sql}\nLIMIT {max_rows + 1}"
        return CheckedQuery(
            sql=sql,
            tables=tables,
            cte_names=cte_names,
            scope=describe(qualified, self.words, Now(today, last_day) if last_day else None),
            tree=tree,
        )

    def _parse(self, sql: str) -> exp.Query:
        if not _START.match(sql):
            raise ToolArgumentError("只能执行一条SELECT语句，以SELECT或WITH开头")
        try:
            trees = [tree for tree in sqlglot.parse(sql, read=READ_AS) if tree is not None]
        except ParseError as error:
            detail = error.errors[0] if error.errors else {}
            near = f"{detail.get('start_context', '')}{detail.get('highlight', '')}"[-24:]
            raise ToolArgumentError(f"SQL语法错误，在“{near.strip()}”附近") from error
        except (TokenError, SqlglotError) as error:
            raise ToolArgumentError("SQL语法错误：引号或括号没有配对") from error
        except RecursionError as error:
            raise ToolArgumentError("SQL嵌套太深") from error
        if len(trees) != 1:
            raise ToolArgumentError(f"只能执行一条SELECT语句，收到{len(trees)}条")
        tree = trees[0]
        if not isinstance(tree, exp.Query) or tree.find(*FORBIDDEN):
            raise ToolArgumentError("只能执行只读的SELECT语句")
        if isinstance(tree, exp.Subquery):
            raise ToolArgumentError("请去掉最外层的括号")
        if _depth(tree) > MOST_LEVELS:
            raise ToolArgumentError("SQL嵌套太深")
        return tree

    def _cte_names(self, tree: exp.Query) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(cte.alias.lower() for cte in tree.find_all(exp.CTE)))
        for name in names:
            taken = name in self._schema or name in self._reserved
            if taken or name.startswith(_SYSTEM):
                raise ToolArgumentError(f"WITH里的名字“{name}”已被占用，请换一个")
        return names

    def _tables(self, tree: exp.Query, cte_names: tuple[str, ...]) -> tuple[str, ...]:
        used: dict[str, None] = {}
        for table in tree.find_all(exp.Table):
            name = table.name.lower() if isinstance(table.this, exp.Identifier) else ""
            if name in cte_names and not table.db:
                continue
            if name not in self._schema or table.db or table.catalog:
                raise ToolArgumentError(self._no_table(table.sql(dialect=READ_AS)))
            used[name] = None
        return tuple(used)

    def _no_table(self, name: str) -> str:
        plain = name.split(".")[-1].strip('"').lower()
        titles = {
            word: table.name
            for table in self._semantic.tables
            for word in (table.title, *table.synonyms)
        }
        near = difflib.get_close_matches(plain, [*self._schema, *titles], n=1, cutoff=0.5)
        hint = f"，是不是{titles.get(near[0], near[0])}" if near else ""
        return f"没有表“{name[:40]}”{hint}？可用的表：{'、'.join(self._schema)}"

    def _qualify(self, tree: exp.Query) -> exp.Query:
        try:
            qualified = qualify(
                tree.copy(),
                schema=self._mapping,
                dialect=READ_AS,
                quote_identifiers=False,
                identify=False,
            )
        except OptimizeError as error:
            raise ToolArgumentError(self._no_column(str(error), tree)) from error
        except SqlglotError as error:
            raise ToolArgumentError(f"SQL有误：{str(error)[:120]}") from error
        except RecursionError as error:
            raise ToolArgumentError("SQL嵌套太深") from error
        assert isinstance(qualified, exp.Query)
        return qualified

    def _no_column(self, message: str, tree: exp.Query) -> str:
        match = _UNRESOLVED.search(message)
        if not match:
            return f"SQL有误：{message[:120]}"
        name = match.group("name").split(".")[-1].strip("\"'")
        tables = [
            t.name.lower() for t in tree.find_all(exp.Table) if t.name.lower() in self._schema
        ]
        columns = {c: None for t in dict.fromkeys(tables) for c in self._schema[t]}
        if name.lower() in columns:
            owners = [t for t in dict.fromkeys(tables) if name.lower() in self._schema[t]]
            if len(owners) > 1:
                return f"列“{name}”在{'、'.join(owners)}里都有，请写成 表名.{name}"
            return f"列“{name}”属于表{owners[0]}，请检查它前面的表名或别名"
        hint = self._near(name, tuple(columns))
        return f"没有列“{name}”{hint}"

    def _near(self, name: str, columns: tuple[str, ...]) -> str:
        for metric in self._semantic.metrics:
            if name in (metric.name, *metric.synonyms):
                return f"，{name}要写成{metric.sql}"
        titled = {
            word: card.name.lower()
            for table in self._semantic.tables
            for card in table.columns
            for word in (card.title, *card.synonyms)
            if card.name.lower() in columns
        }
        inside = [column for title, column in titled.items() if title in name or name in title]
        near = inside or [
            titled.get(match, match)
            for match in difflib.get_close_matches(
                name.lower(), [*columns, *titled], n=2, cutoff=0.5
            )
        ]
        if near:
            return f"，是不是{'或'.join(dict.fromkeys(near[:2]))}？"
        return f"。可用的列：{'、'.join(columns)}" if columns else ""

    def _repair_literals(self, tree: exp.Query) -> bool:
        """Turn ``region = "华东"`` and ``strftime("%Y", date)`` into literals.

        SQLite would do so silently for any typo.
        """
        known = {column for columns in self._schema.values() for column in columns}
        known |= {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
        changed = False
        for column in list(tree.find_all(exp.Column)):
            if column.table or not isinstance(column.this, exp.Identifier):
                continue
            if not column.this.quoted or column.name.lower() in known:
                continue
            parent = column.parent
            compared = isinstance(parent, exp.EQ | exp.NEQ | exp.Like | exp.Between | exp.In)
            beside = compared and parent is not None and parent.this is not column
            if beside or "%" in column.name:
                column.replace(exp.Literal.string(column.name))
                changed = True
        return changed

    def _refuse_now(self, tree: exp.Query, today: datetime.date) -> None:
        is_now = tree.find(*_NOW) is not None or any(
            literal.is_string and literal.name.lower() in {"now", "localtime"}
            for literal in tree.find_all(exp.Literal)
        )
        if is_now:
            raise ToolArgumentError(f"不要用当前时间函数，请直接写日期；今天是{today.isoformat()}")

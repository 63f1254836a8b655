"""Rules on a parsed statement that hold for every database.

Owns what a statement must not contain, who may read what, and divisions of whole numbers. Knows
nothing of dialects or connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from tools.base import ToolForbiddenError
from tools.sql_origins import Origins

MayRead = Callable[[str], bool]
"""``table`` or ``table.column`` to whether it may be read."""
FORBIDDEN: tuple[type[exp.Expr], ...] = (
    exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter,
    exp.TruncateTable, exp.Command, exp.Pragma, exp.Attach, exp.Detach, exp.Into, exp.Set,
    exp.Copy, exp.Transaction, exp.Commit, exp.Rollback, exp.Analyze, exp.Placeholder,
    exp.Parameter, exp.SessionParameter, exp.Lock, exp.Hint,
)  # fmt: skip
_CALENDAR = frozenset({"month", "quarter", "year"})
_DATE_PARTS: tuple[type[exp.Expr], ...] = (exp.Month, exp.Quarter, exp.Year, exp.TimeToStr)


def reads(qualified: exp.Query, schema: Iterable[str]) -> frozenset[str]:
    """``table`` and ``table.column`` for all that a qualified query may touch.

    In doubt a column counts for every table that its alias stands for anywhere in the query.
    """
    tables = frozenset(schema)
    aliases: dict[str, set[str]] = {}
    for scope in traverse_scope(qualified):
        for alias, source in scope.sources.items():
            if isinstance(source, exp.Table):
                aliases.setdefault(alias, set()).add(source.name.lower())
    used = {t.name.lower() for t in qualified.find_all(exp.Table)} & tables
    columns = {
        f"{table}.{column.name.lower()}"
        for column in qualified.find_all(exp.Column)
        for table in aliases.get(column.table, used if not column.table else ())
    }
    return frozenset(used | columns)


def refuse_unreadable(
    qualified: exp.Query, schema: dict[str, tuple[str, ...]], may_read: MayRead
) -> None:
    """Raises ``ToolForbiddenError`` naming what this user has no right to.

    A NATURAL join compares columns that it does not name: they count as read.
    """
    touched = set(reads(qualified, schema))
    if any(str(join.args.get("method") or "") for join in qualified.find_all(exp.Join)):
        touched |= {f"{t}.{c}" for t in set(touched) & set(schema) for c in schema[t]}
    refused = sorted(name for name in touched if not may_read(name))
    if refused:
        raise ToolForbiddenError(
            f"您没有查看{'、'.join(refused[:3])}的权限；需要的话请联系管理员，不要换写法再试"
        )


def make_real(origins: Origins, annotated: exp.Query) -> bool:
    """Let 1/3 be a third in both trees; whether anything changed.

    SQLite and PostgreSQL divide whole numbers without a rest, so that a rate of 37 out of 50 would
    be 0. Left alone: parts of a calendar, as in ``(month + 2) / 3``.
    """
    changed = False
    for division in list(annotated.find_all(exp.Div)):
        if not (_is_whole(division.this) and _is_whole(division.expression)):
            continue
        if _counts_calendar(division):
            continue
        for node in (division, origins.of(division)):
            if node is not None:
                left = exp.Mul(this=node.this.copy(), expression=exp.Literal.number("1.0"))
                node.set("this", left)
        changed = True
    return changed


def _is_whole(node: exp.Expr) -> bool:
    while isinstance(node, exp.Paren):
        node = node.this
    return node.type is not None and node.type.this in exp.DataType.INTEGER_TYPES


def _counts_calendar(division: exp.Div) -> bool:
    if not isinstance(division.expression, exp.Literal) or division.this.find(exp.AggFunc):
        return False
    columns = [column.name.lower() for column in division.this.find_all(exp.Column)]
    named = bool(columns) and all(name in _CALENDAR for name in columns)
    return named or division.this.find(*_DATE_PARTS) is not None

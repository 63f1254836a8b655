"""Columns beside an aggregate: SQLite would show the value of any row, servers refuse.

Owns the rule. A column that is missing in a GROUP BY is added to it, so that every row is true;
without any GROUP BY the statement is refused. Knows nothing of databases.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from tools.base import ToolArgumentError
from tools.sql_origins import Origins

_CLOSED = (exp.Query, exp.Window, exp.AggFunc, exp.Filter, exp.WithinGroup)
"""Columns in here are not shown as they are."""


def complete_groups(origins: Origins, qualified: exp.Query) -> bool:
    """Add what is missing to both trees; whether anything changed.

    Raises ``ToolArgumentError`` where there is no GROUP BY to add to. Left alone: a column beside
    one MIN or MAX, which SQLite takes from the row of that value.
    """
    changed = False
    for select in list(qualified.find_all(exp.Select)):
        group = select.args.get("group")
        aggregates = [node for part in select.expressions for node in _own(part, exp.AggFunc)]
        if not aggregates or (
            len(aggregates) == 1 and isinstance(aggregates[0], exp.Max | exp.Min)
        ):
            continue
        grouped = {node.sql() for node in group.expressions} if group else set()
        for column in [c for part in select.expressions for c in _bare(part, grouped)]:
            if column.table not in _sources(select) or column.sql() in grouped:
                continue
            written = origins.of(column)
            holder = written.find_ancestor(exp.Select) if written is not None else None
            if group is None or not group.expressions or holder is None or written is None:
                raise ToolArgumentError(
                    f"{column.name}不在聚合函数里，会是任意一行的值；"
                    f"请加上GROUP BY {column.name}，或去掉它"
                )
            grouped.add(column.sql())
            group.append("expressions", column.copy())
            holder.args["group"].append("expressions", written.copy())
            changed = True
    return changed


def _sources(select: exp.Select) -> set[str]:
    clauses = [select.args.get("from_"), *(select.args.get("joins") or ())]
    return {clause.this.alias_or_name for clause in clauses if clause is not None}


def _own(node: exp.Expr, kind: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Nodes of ``kind`` that belong to this SELECT: not in a subquery, not over a window."""
    if isinstance(node, exp.Query | exp.Window):
        return
    if isinstance(node, kind):
        yield node
        return
    for child in node.iter_expressions():
        yield from _own(child, kind)


def _bare(node: exp.Expr, grouped: set[str]) -> Iterator[exp.Column]:
    """Columns outside of aggregates, windows, subqueries and of what is grouped by."""
    if isinstance(node, _CLOSED) or node.sql() in grouped:
        return
    if isinstance(node, exp.Column):
        yield node
        return
    for child in node.iter_expressions():
        yield from _bare(child, grouped)

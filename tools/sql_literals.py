"""Finds the texts a query compares columns with, and puts the values in the data in their place.

Owns the walk over ``=``, ``<>`` and ``IN``, through aliases and subqueries down to the column of a
table. Knows nothing of what the data holds: a function says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

from tools.sql_origins import Origins

Resolve = Callable[[str, str, str], str]
"""(table, column, text) to the value that is meant; raises when there is none."""


def correct(origins: Origins, qualified: exp.Query, resolve: Resolve) -> bool:
    """Put what ``resolve`` returns into both trees; whether anything changed."""
    changed = False
    for scope in traverse_scope(qualified):
        for node in scope.find_all(exp.EQ, exp.NEQ, exp.In):
            for column, literal in _compared(node):
                origin = _origin(column, scope)
                text = str(literal.this)
                value = resolve(*origin, text) if origin and text.strip() else text
                if value != text:
                    literal.set("this", value)
                    written = origins.of(literal)
                    if written is not None:
                        written.set("this", value)
                        changed = True
    return changed


def _compared(node: exp.Expr) -> Iterator[tuple[exp.Column, exp.Literal]]:
    if isinstance(node, exp.In):
        pairs = [(node.this, value) for value in node.expressions]
    else:
        left, right = node.args["this"], node.args["expression"]
        pairs = [(left, right), (right, left)]
    for column, value in pairs:
        if isinstance(column, exp.Column) and isinstance(value, exp.Literal) and value.is_string:
            yield column, value


def _origin(column: exp.Column, scope: Scope) -> tuple[str, str] | None:
    """The table and column that a column really is; None for anything computed."""
    holder: Scope | None = scope
    while holder is not None and column.table not in holder.sources:
        holder = holder.parent
    if holder is None:
        return None
    source = holder.sources[column.table]
    if isinstance(source, exp.Table):
        return source.name, column.name
    select = source.expression
    if not isinstance(select, exp.Select):
        return None
    for projection in select.expressions:
        inner = projection.this if isinstance(projection, exp.Alias) else projection
        if projection.alias_or_name == column.name and isinstance(inner, exp.Column):
            return _origin(inner, source)
    return None

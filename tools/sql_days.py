"""A day as the end of a range over a column that holds times means that whole day.

``BETWEEN '2024-07-01' AND '2024-09-30'`` would leave out 30 September after midnight. Owns the
rewriting to half-open ranges. Knows nothing of databases.
"""

from __future__ import annotations

import datetime
import re

from sqlglot import exp

from tools.sql_origins import Origins

_KINDS: tuple[type[exp.Expr], ...] = (exp.LTE, exp.GT, exp.LT, exp.GTE, exp.EQ, exp.Between)
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LTE: exp.GTE, exp.GTE: exp.LTE, exp.GT: exp.LT, exp.LT: exp.GT, exp.EQ: exp.EQ,
}  # fmt: skip
_TYPE = exp.DataType.Type
_WITH_TIME = frozenset((_TYPE.TIMESTAMP, _TYPE.DATETIME, _TYPE.TIMESTAMPTZ))
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def whole_days(origins: Origins, annotated: exp.Query) -> bool:
    """Rewrite such ranges in both trees; whether anything changed."""
    changed = False
    for node in list(annotated.find_all(*_KINDS)):
        written = origins.of(node)
        if written is None or not _has_time(node):
            continue
        new, new_written = _half_open(node), _half_open(written)
        if new is not None and new_written is not None:
            node.replace(new)
            written.replace(new_written)
            changed = True
    return changed


def _has_time(node: exp.Expr) -> bool:
    sides = (node.this, node.args.get("expression"))
    return any(
        isinstance(side, exp.Column) and side.type is not None and side.type.this in _WITH_TIME
        for side in sides
    )


def _half_open(node: exp.Expr) -> exp.Expr | None:
    """``node`` with its days as half-open ranges; None when there is nothing to change."""
    if isinstance(node, exp.Between):
        after = _day_after(node.args["high"])
        if after is None or node.args.get("symmetric"):
            return None
        low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
        return exp.paren(exp.and_(low, exp.LT(this=node.this.copy(), expression=after)))
    kind, column, day = type(node), node.this, node.args["expression"]
    if not isinstance(column, exp.Column):
        kind, column, day = _MIRRORED[kind], day, column
    after = _day_after(day)
    if after is None:
        return None
    if kind is exp.LTE:
        return exp.LT(this=column.copy(), expression=after)
    if kind is exp.GT:
        return exp.GTE(this=column.copy(), expression=after)
    if kind is exp.EQ:
        low = exp.GTE(this=column.copy(), expression=day.copy())
        return exp.paren(exp.and_(low, exp.LT(this=column.copy(), expression=after)))
    return None


def _day_after(node: exp.Expr) -> exp.Literal | None:
    text = str(node.this) if isinstance(node, exp.Literal) and node.is_string else ""
    if not _DAY.fullmatch(text):
        return None
    try:
        after = datetime.date.fromisoformat(text) + datetime.timedelta(days=1)
    except (ValueError, OverflowError):
        return None
    return exp.Literal.string(after.isoformat())

"""Chinese names for what a SELECT returns: aliases, column titles, metrics.

Owns the mapping from a parsed expression to words. Knows nothing of filters or databases.
"""

from __future__ import annotations

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tools.semantic import Semantic

_AGGREGATES: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Sum, "{}合计"),
    (exp.Avg, "平均{}"),
    (exp.Max, "最高{}"),
    (exp.Min, "最低{}"),
)


class Words:
    """Names in words for one semantic file."""

    def __init__(self, semantic: Semantic) -> None:
        self._titles = {table.name: semantic.column_titles(table.name) for table in semantic.tables}
        self._table_titles = {table.name: table.title for table in semantic.tables}
        self._times = {table.name: semantic.time_column(table.name) for table in semantic.tables}
        self._metrics: dict[str, str] = {}
        for metric in semantic.metrics:
            try:
                tree = parse_one(metric.sql, read="sqlite")
            except SqlglotError:
                continue
            if tree.find(exp.Column):
                self._metrics[_canonical(tree)] = metric.name

    def column(self, name: str, table: str = "") -> str:
        """The title of a column; of any table that has it when ``table`` is not known."""
        if table in self._titles:
            return self._titles[table].get(name, name)
        return next((titles[name] for titles in self._titles.values() if name in titles), name)

    def has_column(self, table: str, name: str) -> bool:
        """Whether the semantic file shows this column of this table."""
        return name in self._titles.get(table, {})

    def time_column(self, table: str) -> str:
        """The column that a period of this table means, "" when there is none."""
        return self._times.get(table, "")

    def expression(self, node: exp.Expr, tables: tuple[str, ...]) -> str:
        """Words for an expression over ``tables``; its SQL where there are none."""
        node = _core(node)
        metric = self._metrics.get(_canonical(node))
        if metric:
            return metric
        if isinstance(node, exp.Column):
            known = [table for table in tables if node.name in self._titles.get(table, {})]
            return self.column(node.name, known[0] if known else "")
        if isinstance(node, exp.Count):
            return self._count(node, tables)
        for kind, pattern in _AGGREGATES:
            if isinstance(node, kind) and isinstance(_core(node.this), exp.Column):
                return pattern.format(self.expression(node.this, tables))
        text = node.sql(dialect="sqlite", comments=False)
        return text if len(text) <= 24 else text[:23] + "…"

    def headers(self, query: exp.Query, names: tuple[str, ...]) -> tuple[str, ...]:
        """Titles for the result columns ``names`` that the database reported for ``query``."""
        select = query
        while isinstance(select, exp.SetOperation):
            select = select.left
        tables = _sources(select)
        projections = select.expressions if isinstance(select, exp.Select) else []
        if len(projections) != len(names) or any(p.is_star for p in projections):
            return tuple(self._plain(name, tables) for name in names)
        return tuple(
            projection.alias
            if isinstance(projection, exp.Alias)
            else self.expression(projection, tables)
            for projection in projections
        )

    def _plain(self, name: str, tables: tuple[str, ...]) -> str:
        for table in tables:
            if name in self._titles.get(table, {}):
                return self._titles[table][name]
        return name

    def _count(self, node: exp.Count, tables: tuple[str, ...]) -> str:
        inner = node.this
        if isinstance(inner, exp.Distinct) and inner.expressions:
            return f"{self.expression(inner.expressions[0], tables)}数"
        known = [self._table_titles[table] for table in tables if table in self._table_titles]
        return f"{known[0]}数" if len(known) == 1 else "数量"


def ordered_by(query: exp.Query, headers: tuple[str, ...]) -> str:
    """The header of the column that ``query`` orders by first; "" when it orders by no column."""
    order = query.args.get("order")
    if not isinstance(order, exp.Order) or len(query.selects) != len(headers):
        return ""
    key = order.expressions[0].this
    if isinstance(key, exp.Literal) and not key.is_string and str(key.this).isdecimal():
        place = int(key.this) - 1
        return headers[place] if place < len(headers) else ""
    wanted = _canonical(key)
    for projection, header in zip(query.selects, headers, strict=True):
        inner = projection.this if isinstance(projection, exp.Alias) else projection
        if wanted in (projection.alias_or_name.lower(), _canonical(inner)):
            return header
    return ""


def _sources(select: exp.Query) -> tuple[str, ...]:
    """Names of the tables right after FROM and JOIN, not those inside subqueries."""
    clauses = [select.args.get("from_"), *(select.args.get("joins") or ())]
    found = [clause.this for clause in clauses if clause is not None]
    return tuple(dict.fromkeys(t.name for t in found if isinstance(t, exp.Table)))


def _core(node: exp.Expr) -> exp.Expr:
    """The expression inside ROUND, COALESCE, CAST, parentheses and aliases."""
    while isinstance(node, exp.Round | exp.Coalesce | exp.Paren | exp.Alias | exp.Cast):
        node = node.this
    return node


def _canonical(node: exp.Expr) -> str:
    """SQL without table names, factors in alphabetic order, lower case."""
    copy = node.copy()
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    for product in list(copy.find_all(exp.Mul)):
        left, right = product.left, product.right
        if left.sql() > right.sql():
            product.set("this", right)
            product.set("expression", left)
    return copy.sql(dialect="sqlite").lower().replace(" ", "")

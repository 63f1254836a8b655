"""Writes a checked query, read in SQLite's dialect, in the dialect of a server.

Owns which functions a server may be asked for and how each is written there. What has no safe
equivalent is refused with the function to use instead. The text that comes out is parsed again in
the server's dialect and must still be one SELECT over the same tables. Knows no connections.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.base import ToolArgumentError
from tools.sql_backend import Dialect
from tools.sql_dates import DATE_CALLS, rewritten_date
from tools.sql_rules import FORBIDDEN

MAX_ROW_BYTES = 1_000_000
_ALLOWED: tuple[type[exp.Expr], ...] = (
    exp.Abs, exp.And, exp.Avg, exp.Case, exp.Cast, exp.Ceil, exp.Coalesce, exp.Concat, exp.Count,
    exp.CumeDist, exp.Date, exp.DateTrunc, exp.Day, exp.DenseRank, exp.Exists, exp.Exp,
    exp.Extract, exp.FirstValue, exp.Floor, exp.Greatest, exp.GroupConcat, exp.If, exp.Lag,
    exp.LastValue, exp.Lead, exp.Least, exp.Length, exp.Ln, exp.Log, exp.Lower, exp.Max, exp.Min,
    exp.Month, exp.NthValue, exp.Ntile, exp.Nullif, exp.Or, exp.PercentRank, exp.Pow, exp.Quarter,
    exp.Rank, exp.Replace, exp.Round, exp.RowNumber, exp.Sign, exp.Sqrt, exp.StrPosition,
    exp.Substring, exp.Sum, exp.TimeToStr, exp.TimestampTrunc, exp.Trim, exp.TsOrDsToDate,
    exp.TsOrDsToTimestamp, exp.Upper, exp.Year, exp.Xor,
)  # fmt: skip
_TYPE = exp.DataType.Type
_CASTS = frozenset(
    (
        _TYPE.TEXT, _TYPE.VARCHAR, _TYPE.CHAR, _TYPE.NVARCHAR, _TYPE.INT, _TYPE.BIGINT,
        _TYPE.SMALLINT, _TYPE.TINYINT, _TYPE.FLOAT, _TYPE.DOUBLE, _TYPE.DECIMAL, _TYPE.DATE,
        _TYPE.TIMESTAMP, _TYPE.DATETIME, _TYPE.BOOLEAN,
    )
)  # fmt: skip
_WHOLE = frozenset((_TYPE.INT, _TYPE.BIGINT, _TYPE.SMALLINT, _TYPE.TINYINT))
_REAL = frozenset((_TYPE.FLOAT, _TYPE.DOUBLE))
_TRUTHS: tuple[type[exp.Expr], ...] = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.And, exp.Or, exp.Not, exp.In, exp.Like,
    exp.ILike, exp.Is, exp.Between,
)  # fmt: skip
_ON_TEXT: tuple[type[exp.Expr], ...] = (
    exp.Substring, exp.Length, exp.Lower, exp.Upper, exp.Trim, exp.Replace, exp.StrPosition,
    exp.Like, exp.DPipe,
)  # fmt: skip
_CALLS = DATE_CALLS | {"total", "log10"}


def written(
    qualified: exp.Query, dialect: Dialect, names: Mapping[str, str], *, max_rows: int
) -> str:
    """``qualified`` (columns qualified, types annotated) as text for a server.

    ``names``: lower case to the real spelling of tables and columns. At most ``max_rows`` rows can
    come back, and on PostgreSQL no row of more than 1 MB. Raises ``ToolArgumentError``.
    """
    tree = qualified.copy()
    refuse_functions(tree)
    for node in reversed(list(tree.walk(bfs=True))):
        new = _rewritten(node, dialect)
        if new is not node:
            node.replace(new)
    for identifier in tree.find_all(exp.Identifier):
        lower = str(identifier.this).lower()
        identifier.set("this", names.get(lower, lower))
        identifier.set("quoted", True)
    for node in tree.walk():
        node.type = None
    limit = tree.args.get("limit")
    wanted = _number(limit.expression) if isinstance(limit, exp.Limit) else None
    tree.limit(max_rows if wanted is None else min(wanted, max_rows), copy=False)
    # Without comments: MySQL runs what stands in /*! */.
    text = tree.sql(dialect=dialect, comments=False)
    _checked_again(text, dialect, {table.name.lower() for table in qualified.find_all(exp.Table)})
    if dialect == "postgres":
        text = _small_rows(text)
    return text


def laid_out(sql: str, dialect: Dialect, *, max_rows: int) -> str:
    """A statement that ran, for people to read: on several lines, without the row limit and what
    ``_small_rows`` put around it."""
    query = sqlglot.parse_one(sql, read=dialect)
    if dialect == "postgres":
        guarded = query.find(exp.Subquery)
        assert guarded is not None, "written puts one around every statement"
        query = guarded.this
    limit = query.args.get("limit")
    if isinstance(limit, exp.Limit) and _number(limit.expression) == max_rows:
        query.set("limit", None)
    return str(query.sql(dialect=dialect, pretty=True, comments=False))


def refuse_functions(tree: exp.Query) -> None:
    """Raises ``ToolArgumentError`` for a function, a cast or a star outside the lists above."""
    for function in tree.find_all(exp.Func):
        if isinstance(function, exp.Anonymous):
            name = function.name
            allowed = name.lower() in _CALLS
        else:
            name = function.sql_name()
            allowed = isinstance(function, _ALLOWED)
        if isinstance(function, exp.Cast) and function.to.this not in _CASTS:
            name, allowed = f"CAST AS {function.to.sql()}", False
        if not allowed:
            raise ToolArgumentError(f"不允许使用“{name[:40]}”；只能读已列出的表、列，用普通函数")
    if tree.find(exp.Glob) is not None:
        raise ToolArgumentError("不要用GLOB，请改用LIKE")
    for star in tree.find_all(exp.Star):
        if not isinstance(star.parent, exp.Count):
            raise ToolArgumentError("请不要用*，写出需要的列")


def _checked_again(text: str, dialect: Dialect, tables: set[str]) -> None:
    """What the server will read is one SELECT that names nothing new."""
    try:
        trees = sqlglot.parse(text, read=dialect)
    except SqlglotError as error:
        raise ToolArgumentError("这条SQL不能在公司的数据库里执行，请换一种写法") from error
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Query) or tree.find(*FORBIDDEN):
        raise ToolArgumentError("只能执行一条只读的SELECT语句")
    if {t.name.lower() for t in tree.find_all(exp.Table)} - tables:
        raise ToolArgumentError("这条SQL不能在公司的数据库里执行，请换一种写法")


def _small_rows(text: str) -> str:
    """Fails, with a division by zero of our own, at a row that would flood the client."""
    guard = f"OCTET_LENGTH(CAST(result AS TEXT)) > {MAX_ROW_BYTES}"
    return f"SELECT * FROM ({text}) AS result WHERE 1 / CASE WHEN {guard} THEN 0 ELSE 1 END = 1"


def _rewritten(node: exp.Expr, dialect: Dialect) -> exp.Expr:
    """``node`` for ``dialect``; its children were rewritten before."""
    date = rewritten_date(node, dialect)
    if date is not None:
        return date
    if isinstance(node, exp.Anonymous) and node.name.lower() in ("total", "log10"):
        (this,) = _arguments(node, 1)
        if node.name.lower() == "log10":
            return _log10(this, dialect)
        return exp.Coalesce(this=exp.Sum(this=this), expressions=[exp.Literal.number(0)])
    if isinstance(node, exp.Log) and node.args.get("expression") is None:
        return _log10(node.this, dialect)
    if isinstance(node, exp.Cast):
        return _cast(node, dialect)
    if isinstance(node, exp.Div) and _whole(node.this) and _whole(node.expression):
        # Kept as a division of whole numbers on purpose (see sql_rules.make_real).
        return (
            exp.IntDiv(this=node.this, expression=node.expression) if dialect == "mysql" else node
        )
    if isinstance(node, exp.Filter) and dialect == "mysql":
        return _by_case(node)
    return _for_postgres(node) if dialect == "postgres" else node


def _by_case(node: exp.Filter) -> exp.Expr:
    """``COUNT(*) FILTER (WHERE …)``, which MySQL lacks, as ``COUNT(CASE WHEN … END)``."""
    aggregate = node.this
    inner = aggregate.this
    distinct = isinstance(inner, exp.Distinct)
    value = inner.expressions[0] if distinct else inner
    if not isinstance(aggregate, exp.Count | exp.Sum | exp.Avg | exp.Min | exp.Max):
        raise ToolArgumentError("请不要用FILTER，把条件写成CASE WHEN")
    counted = exp.Literal.number(1) if isinstance(value, exp.Star) else value
    case = exp.Case(ifs=[exp.If(this=node.expression.this, true=counted)])
    aggregate.set("this", exp.Distinct(expressions=[case]) if distinct else case)
    return aggregate


def _for_postgres(node: exp.Expr) -> exp.Expr:
    """PostgreSQL converts nothing by itself."""
    if isinstance(node, _ON_TEXT):
        keys = ("this", "expression") if isinstance(node, exp.DPipe) else ("this",)
        for key in keys:
            node.set(key, _text(node.args[key]))
    if isinstance(node, exp.Concat):
        node.set("expressions", [_text(part) for part in node.expressions])
    if isinstance(node, exp.GroupConcat):
        inner = node.this
        if isinstance(inner, exp.Distinct):
            inner.set("expressions", [_text(part) for part in inner.expressions])
        else:
            node.set("this", _text(inner))
    if isinstance(node, exp.Like):
        # As SQLite and MySQL compare: without case.
        return exp.ILike(this=node.this, expression=node.expression)
    if isinstance(node, exp.Round) and node.args.get("decimals") is not None:
        node.set("this", exp.cast(node.this, "DECIMAL"))
    if isinstance(node, exp.Sum | exp.Avg) and isinstance(_bare(node.this), _TRUTHS):
        node.set("this", _one_or_zero(node.this))
    return node


def _cast(node: exp.Cast, dialect: Dialect) -> exp.Expr:
    """SQLite cuts decimals off where servers round; and REAL is a double there."""
    inner = _one_or_zero(node.this) if isinstance(_bare(node.this), _TRUTHS) else node.this
    kind = node.to.this
    if kind in _WHOLE and dialect == "mysql":
        return _parsed("CAST(TRUNCATE({}, 0) AS SIGNED)", dialect, inner)
    if kind in _WHOLE:
        return _parsed("CAST(TRUNC(CAST({} AS DECIMAL)) AS BIGINT)", dialect, inner)
    if kind in _REAL:
        mold = "({} + 0e0)" if dialect == "mysql" else "CAST({} AS DOUBLE PRECISION)"
        return _parsed(mold, dialect, inner)
    node.set("this", inner)
    return node


def _log10(this: exp.Expr, dialect: Dialect) -> exp.Expr:
    return _parsed("LOG10({})" if dialect == "mysql" else "LOG({})", dialect, this)


def _parsed(mold: str, dialect: Dialect, *parts: exp.Expr) -> exp.Expr:
    texts = [part.sql(dialect=dialect, comments=False) for part in parts]
    return sqlglot.parse_one(mold.format(*texts), read=dialect)


def _text(node: exp.Expr) -> exp.Expr:
    is_text = isinstance(node, exp.Literal) and node.is_string
    known = node.type is not None and node.type.this in exp.DataType.TEXT_TYPES
    return node if is_text or known else exp.cast(node, "TEXT")


def _one_or_zero(node: exp.Expr) -> exp.Expr:
    one, zero = exp.Literal.number(1), exp.Literal.number(0)
    return exp.Case(ifs=[exp.If(this=node.copy(), true=one)], default=zero)


def _whole(node: exp.Expr) -> bool:
    return node.type is not None and node.type.this in exp.DataType.INTEGER_TYPES


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _arguments(node: exp.Anonymous, count: int) -> list[exp.Expr]:
    if len(node.expressions) != count:
        raise ToolArgumentError(f"{node.name}应有{count}个参数")
    return list(node.expressions)


def _number(node: exp.Expr | None) -> int | None:
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
        return int(node.this)
    return None

"""The period and the filters of a parsed SELECT, in words: ``2024年第3季度；区域=华东``.

Owns reading WHERE and HAVING back. What it cannot put in words it names as 其他条件, so that the
line under an answer never claims less than was applied. Knows nothing of running a query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

from tools.sql_period import Period, time_part
from tools.sql_words import Words

ALL_TIME = "全部时间"
OTHER = "其他条件"
_COMPARISONS: dict[type[exp.Expr], tuple[str, str]] = {
    # the sign as written, and with the sides swapped
    exp.EQ: ("=", "="),
    exp.NEQ: ("≠", "≠"),
    exp.GT: (">", "<"),
    exp.GTE: ("≥", "≤"),
    exp.LT: ("<", ">"),
    exp.LTE: ("≤", "≥"),
}
_TIME_COLUMNS = frozenset({"date", "year", "quarter", "month", "quarter_label"})


@dataclass
class _Found:
    """What was read so far, in order, without repeats."""

    periods: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)

    def add_period(self, words: str) -> None:
        if words and words not in self.periods:
            self.periods.append(words)

    def add_filter(self, words: str) -> None:
        if words and words not in self.filters:
            self.filters.append(words)


def describe(qualified: exp.Query, words: Words) -> str:
    """The scope of a query whose columns were qualified; "" when nothing was restricted."""
    found = _Found()
    for scope in reversed(traverse_scope(qualified)):
        select = scope.expression
        if isinstance(select, exp.Select):
            reader = _Reader(scope, words, found)
            for clause in ("where", "having"):
                if select.args.get(clause):
                    reader.read(select.args[clause].this)
            reader.finish()
    if not found.periods and _has_calendar(qualified, words) and not _names_time(qualified):
        found.periods.append(ALL_TIME)
    if OTHER in found.filters:
        found.filters.remove(OTHER)
        found.filters.append(OTHER)
    parts = ["、".join(found.periods), *found.filters]
    return "；".join(part for part in parts if part)


def _has_calendar(query: exp.Query, words: Words) -> bool:
    return any(words.has_column(table.name, "year") for table in query.find_all(exp.Table))


def _names_time(query: exp.Query) -> bool:
    return any(column.name in _TIME_COLUMNS for column in query.find_all(exp.Column))


class _Reader:
    """Reads the conditions of one SELECT."""

    def __init__(self, scope: Scope, words: Words, found: _Found) -> None:
        self._words = words
        self._found = found
        self._tables: dict[str, str] = {}
        for alias, source in scope.sources.items():
            if isinstance(source, exp.Table):
                self._tables[alias] = source.name
        self._period = Period()
        self._dated: dict[str, Period] = {}

    def read(self, condition: exp.Expr) -> None:
        """Read one condition, AND by AND."""
        for part in _flatten(condition, exp.And):
            if not self._time(part, self._period):
                self._filter(part)

    def finish(self) -> None:
        """Put the collected period into words, once the whole SELECT was read."""
        self._found.add_period(self._period.words())
        for title, period in self._dated.items():
            self._found.add_filter(f"{title}={period.words()}")

    def _time(self, part: exp.Expr, period: Period) -> bool:
        """Take ``part`` into the period when it restricts time; False otherwise."""
        read = time_part(part)
        if read is None:
            return False
        column, narrow = read
        if column.name in _TIME_COLUMNS:
            return narrow(period)
        return narrow(self._dated.setdefault(self._title(column), Period()))

    def _title(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Column):
            return self._words.column(node.name, self._tables.get(node.table, ""))
        return self._words.expression(node, tuple(self._tables.values()))

    def _filter(self, part: exp.Expr) -> None:
        negated = isinstance(part, exp.Not)
        inner = part.this if negated else part
        if isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.Or) and not negated:
            self._found.add_filter(self._either(inner))
        elif isinstance(inner, exp.EQ) and _is_join(inner):
            return
        else:
            self._found.add_filter(self._comparison(inner, negated) or OTHER)

    def _either(self, node: exp.Or) -> str:
        """``a=1 OR a=2`` as one list; periods joined; anything else by its parts."""
        branches = [_unwrapped(branch) for branch in _flatten(node, exp.Or)]
        periods = [self._branch_period(branch) for branch in branches]
        if all(periods):
            for words in periods:
                self._found.add_period(words)
            return ""
        texts = [self._comparison(branch, False) for branch in branches]
        if not all(texts):
            return OTHER
        heads = {text.split("=")[0] for text in texts}
        if len(heads) == 1 and all("=" in text for text in texts):
            return f"{heads.pop()}={'、'.join(text.split('=', 1)[1] for text in texts)}"
        return "或".join(texts)

    def _branch_period(self, branch: exp.Expr) -> str:
        period = Period()
        parts = list(_flatten(branch, exp.And))
        for part in parts:
            read = time_part(part)
            if read is None or read[0].name not in _TIME_COLUMNS or not read[1](period):
                return ""
        return period.words()

    def _comparison(self, node: exp.Expr, negated: bool) -> str:
        """Words of one comparison, "" when there are none."""
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            values = [_value(value) for value in node.expressions]
            if all(values):
                sign = "≠" if negated else "="
                return f"{self._title(node.this)}{sign}{'、'.join(values)}"
        if isinstance(node, exp.Between):
            low, high = _value(node.args["low"]), _value(node.args["high"])
            if low and high:
                return f"{self._title(node.this)}{'不在' if negated else '='}{low}至{high}"
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return f"{self._title(node.this)}{'不为空' if negated else '为空'}"
        if isinstance(node, exp.Like):
            return self._like(node, negated)
        if type(node) in _COMPARISONS and not negated:
            return self._sides(node)
        return ""

    def _sides(self, node: exp.Expr) -> str:
        left, right = node.args["this"], node.args["expression"]
        sign, swapped = _COMPARISONS[type(node)]
        if _value(left) and not _value(right):
            left, right, sign = right, left, swapped
        value = _value(right)
        if not value:
            if right.find(exp.Query) or not right.find(exp.Column):
                return ""
            value = self._title(right)
        if left.find(exp.Query):
            return ""
        return f"{self._title(left)}{sign}{value}"

    def _like(self, node: exp.Like, negated: bool) -> str:
        pattern = _value(node.expression)
        core = pattern.strip("%")
        if not core or "%" in core or "_" in core:
            return ""
        title, no = self._title(node.this), "不" if negated else ""
        if pattern.startswith("%") and pattern.endswith("%"):
            return f"{title}{no}含“{core}”"
        if pattern.endswith("%"):
            return f"{title}{no}以“{core}”开头"
        if pattern.startswith("%"):
            return f"{title}{no}以“{core}”结尾"
        return f"{title}{'≠' if negated else '='}{core}"


def _flatten(node: exp.Expr, kind: type[exp.Expr]) -> Iterable[exp.Expr]:
    node = _unwrapped(node)
    if isinstance(node, kind):
        yield from _flatten(node.args["this"], kind)
        yield from _flatten(node.args["expression"], kind)
    else:
        yield node


def _unwrapped(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _is_join(node: exp.EQ) -> bool:
    return isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Column)


def _value(node: exp.Expr) -> str:
    """The text of a literal, "" for anything else."""
    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal):
        return f"-{node.this.this}"
    return ""

"""The period and the filters of a parsed SELECT, in words: ``2024年第3季度；区域=华东``.

Owns reading WHERE and HAVING back. What it cannot put in words it names as 其他条件, so that the
line under an answer never claims less than was applied. Knows nothing of running a query.
"""

from __future__ import annotations

import copy
import datetime
import decimal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

from tools.numbers import format_number
from tools.sql_period import Period, named_like_a_day, time_part
from tools.sql_words import Words

ALL_TIME = "全部时间"
OTHER = "其他条件"
ONE_DAY = datetime.timedelta(days=1)
LastDay = Callable[[str], datetime.date | None]
_COMPARISONS: dict[type[exp.Expr], tuple[str, str]] = {
    # the sign as written, and with the sides swapped
    exp.EQ: ("=", "="),
    exp.NEQ: ("≠", "≠"),
    exp.GT: (">", "<"),
    exp.GTE: ("≥", "≤"),
    exp.LT: ("<", ">"),
    exp.LTE: ("≤", "≥"),
}
_OPPOSITES = {"=": "≠", "≠": "=", ">": "≤", "≥": "<", "<": "≥", "≤": ">"}
_TIME_COLUMNS = frozenset({"date", "year", "quarter", "month", "quarter_label"})


@dataclass(frozen=True)
class Now:
    """What the end of a period is compared with: today, and each table's last day with data."""

    today: datetime.date
    last_day: LastDay


@dataclass
class _Found:
    """What was read so far, in order, without repeats."""

    now: Now | None = None
    periods: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)

    def add_period(self, words: str) -> None:
        if words and words not in self.periods:
            self.periods.append(words)

    def add(self, period: Period, table: str) -> None:
        """Add a period; one that goes on to today says where the data of ``table`` ends."""
        words = period.words()
        if words:
            self.add_period(words + self.data_end(period, table))

    def data_end(self, period: Period, table: str) -> str:
        if self.now is None or not table or not period.reaches(self.now.today):
            return ""
        last = self.now.last_day(table)
        if last is None or not period.reaches(last + ONE_DAY):
            return ""
        return f"（截至{last.isoformat()}）"

    def add_filter(self, words: str) -> None:
        if words and words not in self.filters:
            self.filters.append(words)


def describe(qualified: exp.Query, words: Words, now: Now | None = None) -> str:
    """The scope of a query whose columns were qualified; "" when nothing was restricted.

    A query on a table with dates always has one. With ``now``, a period that reaches today says
    up to which day there is data.
    """
    found = _Found(now)
    for scope in reversed(traverse_scope(qualified)):
        select = scope.expression
        if isinstance(select, exp.Select):
            reader = _Reader(scope, words, found)
            for clause in ("where", "having"):
                if select.args.get(clause):
                    reader.read(select.args[clause].this)
            reader.finish(select)
    dated = [
        t.name
        for t in qualified.find_all(exp.Table)
        if words.has_column(t.name, "year") or words.time_column(t.name)
    ]
    named = OTHER in found.filters and _names_time(qualified, {words.time_column(t) for t in dated})
    if not found.periods and dated and not named:
        day = next((name for name in dated if words.time_column(name)), "")
        found.periods.append(ALL_TIME + found.data_end(Period(), day))
    if OTHER in found.filters:
        found.filters.remove(OTHER)
        found.filters.append(OTHER)
    parts = ["、".join(found.periods), *found.filters]
    return "；".join(part for part in parts if part)


def _names_time(query: exp.Query, declared: set[str]) -> bool:
    return any(
        column.name in _TIME_COLUMNS | declared
        for clause in query.find_all(exp.Where, exp.Having)
        for column in clause.find_all(exp.Column)
    )


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
        # The table whose last day tells where the data of a period ends.
        self._calendar = next(
            (name for name in self._tables.values() if words.time_column(name)), ""
        )

    def read(self, condition: exp.Expr) -> None:
        """Read one condition, AND by AND."""
        for part in _flatten(condition, exp.And):
            if not self._time(part, self._period):
                self._filter(part)

    def finish(self, select: exp.Select) -> None:
        """Put the collected period into words, once the conditions of ``select`` were read."""
        cases, all_in_cases = self._cases(select)
        if not (cases and all_in_cases):
            self._found.add(self._period, self._calendar)
        if cases and not all_in_cases and not self._period.words():
            self._found.add_period(ALL_TIME)
        for period in cases:
            self._found.add(period, self._calendar)
        for title, period in self._dated.items():
            self._found.add_filter(f"{title}={period.words()}")

    def _cases(self, select: exp.Select) -> tuple[list[Period], bool]:
        """Periods of ``SUM(CASE WHEN year=2024 …)``; whether every aggregate has one."""
        periods: list[Period] = []
        complete = True
        for projection in select.expressions:
            for aggregate in projection.find_all(exp.AggFunc):
                read = [
                    period
                    for condition in _conditions(aggregate)
                    if (period := self._narrowed(condition)) is not None
                ]
                complete = complete and bool(read)
                periods.extend(read)
        return periods, complete

    def _narrowed(self, condition: exp.Expr) -> Period | None:
        """The period of this SELECT, narrowed by the time parts of ``condition``, if any."""
        period = copy.deepcopy(self._period)
        narrowed = False
        for part in _flatten(condition, exp.And):
            read = time_part(part, self._is_day)
            if read is not None and self._is_time(read[0]):
                narrowed = read[1](period) or narrowed
        return period if narrowed else None

    def _time(self, part: exp.Expr, period: Period) -> bool:
        """Take ``part`` into the period when it restricts time; False otherwise."""
        read = time_part(part, self._is_day)
        if read is None:
            return False
        column, narrow = read
        if self._is_time(column):
            return narrow(period)
        return narrow(self._dated.setdefault(self._title(column), Period()))

    def _is_time(self, column: exp.Column) -> bool:
        return column.name in _TIME_COLUMNS or self._is_declared(column)

    def _is_day(self, column: exp.Column) -> bool:
        return named_like_a_day(column) or self._is_declared(column)

    def _is_declared(self, column: exp.Column) -> bool:
        return column.name == self._words.time_column(self._tables.get(column.table, ""))

    def _title(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Column):
            return self._words.column(node.name, self._tables.get(node.table, ""))
        return self._words.expression(node, tuple(self._tables.values()))

    def _filter(self, part: exp.Expr) -> None:
        negated = isinstance(part, exp.Not)
        inner = _unwrapped(part.this) if negated else part
        if isinstance(inner, exp.Or):
            self._found.add_filter(self._either(inner, negated))
        elif isinstance(inner, exp.EQ) and _is_join(inner) and not negated:
            return
        elif isinstance(inner, exp.In) and inner.args.get("query") and not negated:
            # What the subquery selects is read as a SELECT of its own.
            if not inner.args["query"].find(exp.Where, exp.Having):
                self._found.add_filter(OTHER)
        else:
            self._found.add_filter(self._comparison(inner, negated) or OTHER)

    def _either(self, node: exp.Or, negated: bool) -> str:
        """``a=1 OR a=2`` as one list; periods joined; anything else by its parts."""
        branches = [_unwrapped(branch) for branch in _flatten(node, exp.Or)]
        periods = [] if negated else [self._branch_period(branch) for branch in branches]
        if periods and all(periods):
            for period in periods:
                if period is not None:
                    self._found.add(period, self._calendar)
            return ""
        texts = [self._comparison(branch, negated) for branch in branches]
        if not all(texts):
            return OTHER
        sign = "≠" if negated else "="
        heads = {text.split(sign)[0] for text in texts}
        if len(heads) == 1 and all(sign in text for text in texts):
            return f"{heads.pop()}{sign}{'、'.join(text.split(sign, 1)[1] for text in texts)}"
        return ("且" if negated else "或").join(texts)

    def _branch_period(self, branch: exp.Expr) -> Period | None:
        period = Period()
        for part in _flatten(branch, exp.And):
            read = time_part(part, self._is_day)
            if read is None or not self._is_time(read[0]) or not read[1](period):
                return None
        return period if period.words() else None

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
        if type(node) in _COMPARISONS:
            return self._sides(node, negated)
        return ""

    def _sides(self, node: exp.Expr, negated: bool) -> str:
        left, right = node.args["this"], node.args["expression"]
        sign, swapped = _COMPARISONS[type(node)]
        if _value(left) and not _value(right):
            left, right, sign = right, left, swapped
        value = _figure(right) or self._single(right)
        if not value or left.find(exp.Query):
            return ""
        return f"{self._title(left)}{_OPPOSITES[sign] if negated else sign}{value}"

    def _single(self, node: exp.Expr) -> str:
        """Words of a column, an expression over columns or ``(SELECT AVG(price) FROM …)``."""
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Select):
            select = node.this
            tables = tuple(table.name for table in select.find_all(exp.Table))
            if len(select.expressions) == 1 and not select.args.get("group"):
                return self._words.expression(select.expressions[0], tables)
            return ""
        return "" if node.find(exp.Query) or not node.find(exp.Column) else self._title(node)

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


def _conditions(aggregate: exp.Expr) -> Iterable[exp.Expr]:
    """Conditions of CASE and IIF inside an aggregate, and of its FILTER."""
    yield from (branch.this for branch in aggregate.find_all(exp.If))
    if isinstance(aggregate.parent, exp.Filter):
        yield aggregate.parent.expression.this


def _is_join(node: exp.EQ) -> bool:
    return isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Column)


def _value(node: exp.Expr) -> str:
    """The text of a literal, "" for anything else."""
    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal):
        return f"-{node.this.this}"
    return ""


def _figure(node: exp.Expr) -> str:
    """The value of a threshold; in 万 or 亿 where that is no rounding: ``50万``."""
    text = _value(node)
    literal = node.this if isinstance(node, exp.Neg) else node
    if not text or literal.is_string:
        return text
    number = decimal.Decimal(text)
    unit = 1_000_000 if abs(number) >= 100_000_000 else 100
    return format_number(number) if abs(number) >= 10_000 and number % unit == 0 else text

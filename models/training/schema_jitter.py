"""Schemas other than the demo's: renamed and added columns and tables, other values.

Owns ``Schema``: what one prompt shows, and how canonical SQL is put into its names. Knows
nothing of questions. The model learns to read names from the prompt because of this.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from models.training import lexicon, schema_made, schema_words
from models.training.lexicon import Dim, Metric, Vocabulary
from models.training.schema_names import INVENTED_SHARE, allowed, invented_name
from models.training.sql_parts import Query
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.semantic import Metric as MetricCard

_TOKEN = re.compile(r"'(?:[^']|'')*'|[A-Za-z_]+\.[A-Za-z_]+|[A-Za-z_]\w*|[^\W\d_]+|[()]")
_AMOUNT = "quantity*price"
SALES = "sales_data"
MADE_SHARE = 0.5
"""Part of the added columns, values and tables that are made up on the spot, in training."""
NEEDED = ("returns", "targets", "inventory", "staff", "customers")


@dataclass(frozen=True)
class Schema:
    """The semantic a prompt shows, and the names it gives to canonical tables and columns."""

    semantic: Semantic
    tables: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Canonical table -> canonical column -> name."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Chinese result column of the demo -> this prompt's title."""
    amount: str = ""
    """Column that holds quantity*price, if there is one."""
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    dropped: frozenset[str] = frozenset()
    """Canonical tables this prompt lacks."""

    def adapt(self, sql: str) -> str:
        """Canonical SQL in this schema's names."""
        if not self.columns:
            return sql
        if self.amount:
            sql = sql.replace(f"{_AMOUNT} AS 金额", f"{self.amount} AS 金额")
            sql = sql.replace(_AMOUNT, self.amount)
        return _Renamer(self, sql).text()


class _Renamer:
    """Renames identifiers, each by the table that the SELECT around it reads."""

    def __init__(self, schema: Schema, sql: str) -> None:
        self._schema = schema
        self._sql = sql
        self._tokens = list(_TOKEN.finditer(sql))

    def text(self) -> str:
        tables, scope_of = self._scopes()
        out: list[str] = []
        at = 0
        for token, scope in zip(self._tokens, scope_of, strict=True):
            out += (self._sql[at : token.start()], self._word(token[0], tables[scope]))
            at = token.end()
        return "".join(out) + self._sql[at:]

    def _scopes(self) -> tuple[list[str], list[int]]:
        """The table of each SELECT, and the SELECT that each token belongs to."""
        tables, scope_of, stack, previous = [""], [], [0], ""
        for token in self._tokens:
            word = token[0]
            if word == "(":
                if self._sql.startswith("SELECT", token.end()):
                    tables.append("")
                    stack.append(len(tables) - 1)
                else:
                    stack.append(stack[-1])
            elif word == ")":
                stack.pop()
            elif previous == "FROM":
                tables[stack[-1]] = word
            scope_of.append(stack[-1])
            previous = word
        return tables, scope_of

    def _word(self, word: str, table: str) -> str:
        schema = self._schema
        if word[0] == "'":
            return word
        if "." in word:
            owner, column = word.split(".")
            return f"{schema.tables[owner]}.{schema.columns[owner][column]}"
        if word in schema.aliases:
            return schema.aliases[word]
        if word == table:
            return schema.tables[word]
        return schema.columns.get(table, {}).get(word, word)


def plain(rng: random.Random, demo: Semantic) -> Schema:
    """The demo's schema, now and then with tables or columns in another order or left out."""
    cards = list(demo.tables)
    dropped: frozenset[str] = frozenset()
    if rng.random() < 0.15:
        dropped = frozenset(rng.sample(NEEDED, rng.randint(1, 4)))
        cards = [card for card in cards if card.name not in dropped]
    if rng.random() < 0.35:
        rng.shuffle(cards)
    if rng.random() < 0.25:
        cards = [_shuffled(rng, card) for card in cards]
    return Schema(Semantic(tuple(cards), demo.metrics), dropped=dropped)


def _shuffled(rng: random.Random, card: TableCard) -> TableCard:
    columns = list(card.columns)
    rng.shuffle(columns)
    return replace(card, columns=tuple(columns))


class _Builder:
    """Draws one schema."""

    def __init__(self, rng: random.Random, demo: Semantic, unseen: bool) -> None:
        self._rng = rng
        self._unseen = unseen
        self._demo = demo
        self._renamed = rng.choice((0.4, 0.7, 1.0) if unseen else (0.3, 0.6, 0.85, 1.0))
        self._shared: dict[str, tuple[str, str]] = {}
        self._values: dict[str, tuple[str, ...]] = {}
        self._dims: dict[str, Dim] = {}
        self._metrics: dict[str, Metric] = {}
        self._taken: set[str] = set()

    def build(self) -> Schema:
        rng = self._rng
        for column, lists in schema_words.VALUES.items():
            if rng.random() < 0.55:
                chosen = list(rng.choice(lists))
                rng.shuffle(chosen)
                self._values[column] = tuple(chosen[: rng.randint(3, 8)])
                if self._made(MADE_SHARE / 2):
                    self._values[column] = schema_made.values(rng)
        amount = (
            rng.choice(allowed(schema_words.AMOUNTS, self._unseen))
            if rng.random() < 0.3
            else ("", "")
        )
        self._taken.add(amount[0])
        dropped = frozenset(
            rng.sample(NEEDED, rng.choices((0, 1, 2, 3, 4, 5), (2, 2, 2, 2, 1, 1))[0])
        )
        tables: dict[str, str] = {}
        columns: dict[str, dict[str, str]] = {}
        cards: list[TableCard] = []
        for card in self._demo.tables:
            if card.name in dropped:
                continue
            name, title = self._name(schema_words.TABLES[card.name], card.name, card.title)
            tables[card.name] = name
            columns[card.name], shown = self._columns(card, amount)
            cards.append(TableCard(name, title, tuple(shown)))
        self._dimension_words()
        metrics = self._metric_cards(columns[SALES], amount[0])
        for other, title, others in rng.sample(
            schema_words.OTHER_TABLES, rng.choice((0, 0, 1, 1, 2, 3))
        ):
            if self._made(MADE_SHARE):
                other, title, others = schema_made.other_table(rng)
            if other not in tables.values() and all(other != card.name for card in cards):
                cards.append(TableCard(other, title, tuple(ColumnCard(*pair) for pair in others)))
        rng.shuffle(cards)
        aliases = {
            alias: self._shared[column][1]
            for column, alias in _ALIASES.items()
            if column in self._shared
        }
        vocabulary = Vocabulary(self._dims, self._metrics, {
            column: {value: ((value,), (value,)) for value in values}
            for column, values in self._values.items()
        })  # fmt: skip
        return Schema(
            Semantic(tuple(cards), metrics),
            tables,
            columns,
            aliases,
            amount[0],
            vocabulary,
            dropped,
        )

    def _made(self, share: float) -> bool:
        """Whether to make something up; never for evaluation, whose names are real words."""
        return not self._unseen and self._rng.random() < share

    def _name(self, options: tuple[tuple[str, str], ...], name: str, title: str) -> tuple[str, str]:
        if self._rng.random() > self._renamed:
            return name, title
        chosen = self._rng.choice(allowed(options, self._unseen))
        if not self._unseen and self._rng.random() < INVENTED_SHARE:
            said = self._rng.choice((title, chosen[1], chosen[1]))
            if self._rng.random() < 0.15:
                said = schema_made.title(self._rng, said)
            return invented_name(self._rng, chosen[0]), said
        if self._rng.random() < 0.2:
            return chosen[0], title
        return chosen

    def _columns(
        self, card: TableCard, amount: tuple[str, str]
    ) -> tuple[dict[str, str], list[ColumnCard]]:
        rng = self._rng
        names: dict[str, str] = {}
        cards: list[ColumnCard] = []
        used: set[str] = {amount[0]} if card.name == SALES else set()
        for column in card.columns:
            if column.name in ("order_id", "product_id") and rng.random() < 0.5:
                continue
            name, title = self._column(column, used)
            if card.name == "returns" and column.name == "quantity":
                title = rng.choice(("退货数量", "退货件数", "退回数量"))
            used.add(name)
            names[column.name] = name
            values = self._values.get(column.name, column.values) if column.values else ()
            if values and column.name not in self._values and rng.random() < 0.3:
                chosen = list(values)
                rng.shuffle(chosen)
                values = tuple(chosen)
            cards.append(ColumnCard(name, title, column.unit, values))
        if card.name == SALES:
            cards += self._added(names, used, amount)
        elif rng.random() < 0.3:
            cards += [ColumnCard(*pair) for pair in rng.sample(schema_words.DISTRACTORS, 1)
                      if pair[0] not in used]  # fmt: skip
        if rng.random() < 0.6:
            rng.shuffle(cards)
        return names, cards

    def _column(self, column: ColumnCard, used: set[str]) -> tuple[str, str]:
        """A name and title; most often the same in every table."""
        key = column.name
        if key in self._shared and self._rng.random() < 0.8 and key not in ("name", "quantity"):
            found = self._shared[key]
            if found[0] not in used:
                return found
        for _ in range(20):
            found = self._name(schema_words.COLUMNS[key], key, column.title)
            if found[0] not in used:
                break
        else:
            found = (key, column.title)
        self._shared.setdefault(key, found)
        return found[0], found[1]

    def _added(
        self, names: dict[str, str], used: set[str], amount: tuple[str, str]
    ) -> list[ColumnCard]:
        rng = self._rng
        cards: list[ColumnCard] = []
        if amount[0]:
            cards.append(ColumnCard(amount[0], amount[1], rng.choice(("元", "元", ""))))
        for name, title, words, values in rng.sample(
            allowed(schema_words.DIMENSIONS, self._unseen), rng.choice((0, 1, 1, 2, 2, 3))
        ):
            chosen = tuple(rng.sample(values, rng.randint(min(3, len(values)), len(values))))
            if rng.random() < 0.2:
                chosen = tuple(
                    rng.choice(lexicon.HANZI) + rng.choice(lexicon.HANZI) for _ in range(4)
                )
            if self._made(MADE_SHARE):
                name, title, words, chosen = schema_made.dimension(rng)
            elif self._made(MADE_SHARE):
                name = invented_name(rng, name)
            if name in used or title in self._titles(cards):
                continue
            used.add(name)
            names[name] = name
            self._dims[name] = Dim(name, title, (title,), (words,))
            self._values[name] = chosen
            cards.append(ColumnCard(name, title, "", chosen))
        for name, title, word, unit in rng.sample(
            allowed(schema_words.FIGURES, self._unseen), rng.choice((0, 1, 1, 2, 3))
        ):
            if self._made(MADE_SHARE):
                name, title, word, unit = schema_made.figure(rng)
            elif self._made(MADE_SHARE):
                name = invented_name(rng, name)
            if name in used or title in self._titles(cards):
                continue
            used.add(name)
            names[name] = name
            self._metrics[title] = Metric(
                title, f"SUM({name})", name, (title, title, f"总{title}"), (word, f"total {word}")
            )
            cards.append(ColumnCard(name, title, unit))
        if rng.random() < 0.25:
            names["cost"] = rng.choice(("cost", "cost_price", "purchase_price", "jinjia"))
            row = "quantity*(price-cost)"
            self._metrics["毛利"] = Metric(
                "毛利", f"SUM({row})", row, ("毛利", "毛利额"), ("gross profit", "margin")
            )
            cards.append(ColumnCard(names["cost"], rng.choice(("成本价", "进价", "成本")), "元"))
        for name, title in rng.sample(schema_words.DISTRACTORS, rng.choice((0, 0, 1, 2, 3))):
            if name not in used:
                cards.append(ColumnCard(name, title))
        return cards

    def _titles(self, cards: list[ColumnCard]) -> set[str]:
        """Titles of sales columns so far, the demo's own among them."""
        known = {found[1] for found in self._shared.values()}
        return (
            known | {card.title for card in cards} | {d.alias for d in lexicon.BASE_DIMS.values()}
        )

    def _dimension_words(self) -> None:
        """Dimensions are called by this prompt's titles, too."""
        for column, dim in lexicon.BASE_DIMS.items():
            title = self._shared[column][1]
            if title != dim.alias:
                en = self._shared[column][0].replace("_", " ")
                english = dim.en
                if en in _ENGLISH:
                    english = ((en, _ENGLISH[en]),) * 2 + dim.en
                self._dims[column] = Dim(column, title, (title, title, title, *dim.zh), english)

    def _metric_cards(self, names: Mapping[str, str], amount: str) -> tuple[MetricCard, ...]:
        rng = self._rng
        cards = []
        for card in self._demo.metrics:
            sql = card.sql.replace(_AMOUNT, amount) if amount else card.sql
            sql = _TOKEN.sub(lambda m: names.get(m[0], m[0]), sql)
            cards.append(MetricCard(card.name, sql, card.unit))
        for metric in self._metrics.values():
            if metric.alias == "毛利" or rng.random() < 0.35:
                sql = _TOKEN.sub(lambda m: names.get(m[0], m[0]), metric.sql)
                cards.append(MetricCard(metric.alias, sql))
        return tuple(cards)


_ENGLISH = {
    "area": "areas", "zone": "zones", "district": "districts", "territory": "territories",
    "province": "provinces", "market": "markets", "kind": "kinds", "type": "types",
    "class": "classes", "product line": "product lines", "platform": "platforms",
    "source": "sources", "goods": "goods", "item": "items", "model": "models", "buyer": "buyers",
    "client": "clients", "seller": "sellers", "rep": "reps", "agent": "agents",
    "country": "countries", "company": "companies",
}  # fmt: skip
_ALIASES = {
    "region": "区域", "category": "品类", "channel": "渠道", "product_name": "产品",
    "customer": "客户", "salesperson": "销售员", "warehouse": "仓库", "reason": "原因",
    "department": "部门", "level": "等级", "city": "城市",
}  # fmt: skip


def varied(rng: random.Random, demo: Semantic, *, unseen: bool = False) -> Schema:
    """A schema with other names, other values, and columns and tables added and left out.

    With ``unseen`` names come from those that training never shows, wherever there are any.
    """
    return _Builder(rng, demo, unseen).build()


_current: list[Schema] = []


@contextlib.contextmanager
def using(schema: Schema) -> Iterator[None]:
    """Within the block, questions use this schema's words and SQL its names."""
    _current.append(schema)
    try:
        with lexicon.speaking(schema.vocabulary):
            yield
    finally:
        _current.pop()


def adapt(query: Query) -> Query:
    """A canonical query in the names of the schema in use."""
    if not _current or not _current[-1].columns:
        return query
    schema = _current[-1]
    columns = tuple(
        replace(column, alias=schema.aliases.get(column.alias, column.alias))
        for column in query.columns
    )
    return replace(query, sql=schema.adapt(query.sql), columns=columns)

"""Which tables a question is about, where not all of them fit into the prompt.

Owns the choice, by words that the question shares with titles, synonyms, values and metrics.
Knows nothing of models: room is counted in characters.
"""

from __future__ import annotations

import math
from collections import Counter

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tools.keywords import tokens
from tools.semantic import Metric, Semantic, TableCard

_CHARACTER_WEIGHT = 0.35
"""A single Chinese character says less than a pair of them."""


def linked(semantic: Semantic, asked: str, limit_chars: int) -> Semantic:
    """``semantic`` itself where its schema block fits; else the tables that ``asked`` points to.

    Tables are taken best first for as long as they fit, at least one, and stay in the order of the
    file; of the metrics, those over a table that was taken.
    """
    if len(semantic.render()) <= limit_chars:
        return semantic
    columns = {metric.name: _columns(metric) for metric in semantic.metrics}
    words = [set(tokens(_text(table, semantic.metrics, columns))) for table in semantic.tables]
    spread = Counter(word for own in words for word in own)
    wanted = set(tokens(asked))
    scores = [sum(_worth(word, spread[word], len(words)) for word in wanted & own) for own in words]
    best_first = sorted(range(len(words)), key=lambda number: -scores[number])
    kept: set[int] = set()
    for number in best_first:
        if not kept or len(_part(semantic, kept | {number}, columns).render()) <= limit_chars:
            kept.add(number)
    return _part(semantic, kept, columns)


def _part(semantic: Semantic, kept: set[int], columns: dict[str, set[str]]) -> Semantic:
    tables = tuple(semantic.tables[number] for number in sorted(kept))
    metrics = tuple(
        metric
        for metric in semantic.metrics
        if any(_is_over(columns[metric.name], table) for table in tables)
    )
    return Semantic(tables, metrics, semantic.fiscal_year_start)


def _text(table: TableCard, metrics: tuple[Metric, ...], columns: dict[str, set[str]]) -> str:
    """All words that lead to a table."""
    parts = [table.name, table.title, *table.synonyms]
    for column in table.columns:
        parts += [column.name, column.title, *column.synonyms, *column.values]
    for metric in metrics:
        if columns[metric.name] and _is_over(columns[metric.name], table):
            parts += [metric.name, *metric.synonyms]
    return "\n".join(parts)


def _is_over(columns: set[str], table: TableCard) -> bool:
    return columns <= {column.name.lower() for column in table.columns}


def _columns(metric: Metric) -> set[str]:
    try:
        tree = parse_one(metric.sql, read="sqlite")
    except SqlglotError:
        return set()
    return {column.name.lower() for column in tree.find_all(exp.Column)}


def _worth(word: str, tables: int, of_all: int) -> float:
    rarity = math.log(1 + of_all / tables)
    return rarity * (_CHARACTER_WEIGHT if len(word) == 1 and not word.isascii() else 1.0)

"""What counts as right: equal rows, equal output, the right kind of words, facts in a summary.

Owns the rules of judgement and the Wilson interval. Knows nothing of how answers are made.
"""

from __future__ import annotations

import math
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from models.training import turns
from models.training.templates import load
from models.training.turns import plain

Rows = list[tuple[Any, ...]]
MAX_ROWS = 5000
_lock = threading.Lock()
NUMBER = re.compile(r"\d+(?:\.\d+)?[万亿]?")
_DECLINES = ("out_of_scope", "refuse_write", "refuse_injection")
_FAMILY = {
    **dict.fromkeys(_DECLINES, "decline"), "greet": "talk", "help": "talk", "thanks": "talk",
    "clarify": "clarify",
}  # fmt: skip


def wilson(right: int, total: int) -> tuple[float, float]:
    """95 % Wilson interval of a share, in percent."""
    if total == 0:
        return 0.0, 100.0
    z, share = 1.96, right / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    spread = (
        z * math.sqrt(share * (1 - share) / total + z * z / (4 * total**2)) / (1 + z**2 / total)
    )
    return max(0.0, 100 * (centre - spread)), min(100.0, 100 * (centre + spread))


def rows_of(database: sqlite3.Connection, sql: str) -> Rows | None:
    """What a query finds, floats to nine digits; None when it fails."""
    with _lock:
        try:
            found = database.execute(sql).fetchmany(MAX_ROWS)
        except (sqlite3.Error, sqlite3.Warning):
            return None
    return [tuple(_cell(value) for value in row) for row in found]


def _cell(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, int | float) else value


def same_rows(database: sqlite3.Connection, wanted: str, given: str) -> bool:
    """Whether two queries find the same rows, in the same order where the right one orders."""
    left, right = rows_of(database, wanted), rows_of(database, given)
    if left is None or right is None:
        return False
    if "ORDER BY" in wanted.upper():
        return left == right
    return Counter(left) == Counter(right)


def covers(database: sqlite3.Connection, wanted: str, given: str, *, ordered: bool) -> bool:
    """Whether every right row lies in a given row of its own (more columns do no harm)."""
    left, right = rows_of(database, wanted), rows_of(database, given)
    if left is None or right is None or len(left) != len(right):
        return False
    wants = [Counter(row) for row in left]
    gives = [Counter(row) for row in right]
    if ordered:
        return all(want <= give for want, give in zip(wants, gives, strict=True))
    return _matched(wants, gives)


def _matched(wants: list[Counter[Any]], gives: list[Counter[Any]]) -> bool:
    """A perfect matching of wanted to given rows, found by augmenting paths."""
    owner: dict[int, int] = {}

    def place(index: int, tried: set[int]) -> bool:
        for other, give in enumerate(gives):
            if other not in tried and wants[index] <= give:
                tried.add(other)
                if other not in owner or place(owner[other], tried):
                    owner[other] = index
                    return True
        return False

    return all(place(index, set()) for index in range(len(wants)))


def facts_right(facts: Sequence[str], sources: Sequence[str], text: str) -> bool:
    """Whether ``text`` names every fact and no figure that stands in none of the sources."""
    known = {number for source in sources for number in NUMBER.findall(source)}
    said = set(NUMBER.findall(text))
    return all(fact in text for fact in facts) and not {n for n in said - known if not _small(n)}


def _small(number: str) -> bool:
    """Counts of shown rows and parts of dates: the model counts up to a page of rows."""
    return number.isdigit() and int(number) <= 31


@cache
def _known_answers() -> Mapping[str, tuple[str, ...]]:
    """Answers of every kind of talk: the written ones and the general ones."""
    found: dict[str, list[str]] = {intent: [] for intent in _FAMILY}
    for template in load():
        if template.intent in found and "=>" in template.text:
            found[template.intent].append(template.text.partition("=>")[2].strip())
    for by_intent in turns.GENERAL_ANSWERS.values():
        for intent, answers in by_intent.items():
            found[intent] += answers
    return {intent: tuple(answers) for intent, answers in found.items()}


def talk_right(intent: str, text: str) -> bool:
    """Whether words of the model are nearest to answers of the asked family: decline, ask back,
    or small talk. Nearness: shared pairs of characters."""
    if not text.strip():
        return False
    mine = _pairs(text)
    best = {"decline": 0.0, "clarify": 0.0, "talk": 0.0}
    for other, answers in _known_answers().items():
        for answer in answers:
            theirs = _pairs(answer)
            near = len(mine & theirs) / max(1, len(mine | theirs))
            best[_FAMILY[other]] = max(best[_FAMILY[other]], near)
    return best[_FAMILY[intent]] == max(best.values())


def _pairs(text: str) -> frozenset[str]:
    text = plain(text)
    return frozenset(text[i : i + 2] for i in range(len(text) - 1))

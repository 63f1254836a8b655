"""Keyword search for Chinese without a dictionary: BM25 over characters, bigrams and words.

Owns tokens and scores. Knows nothing of documents; passages are numbered texts.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

_RUNS = re.compile(r"[\u3400-\u9fff]+|[a-z0-9][a-z0-9.\-]*")
RARE_SHARE = 0.03
_K1, _B = 1.2, 0.4


def tokens(text: str) -> list[str]:
    """CJK characters and bigrams, and lower-cased words and numbers.

    >>> tokens("年假5天")
    ['年', '假', '年假', '5', '天']
    """
    found: list[str] = []
    for run in _RUNS.findall(unicodedata.normalize("NFKC", text).lower()):
        if "\u3400" <= run[0] <= "\u9fff":
            found.extend(run)
            found.extend(run[i : i + 2] for i in range(len(run) - 1))
        else:
            found.append(run.rstrip(".-"))
    return found


@dataclass(frozen=True)
class Hit:
    """A text that shares tokens with the query."""

    number: int
    score: float
    code: bool
    """A rare token with a Latin letter matched: E5, HDMI, P1001."""
    figure: bool
    """A rare number matched: 8110, 400-820-1515."""


class KeywordIndex:
    """BM25 scores of a query against every text that shares a token with it."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        counts = [Counter(tokens(text)) for text in texts]
        sizes = [sum(count.values()) for count in counts]
        mean = max(1.0, sum(sizes) / max(1, len(sizes)))
        for number, count in enumerate(counts):
            norm = _K1 * (1 - _B + _B * sizes[number] / mean)
            for token, times in count.items():
                self._postings[token].append((number, times * (_K1 + 1) / (times + norm)))
        self._size = len(texts)

    def search(self, query: str, limit: int) -> list[Hit]:
        """Best first.

        A text counts only with two distinct bigrams of the query in it, or one rare token: a
        bigram of common characters alone matches half of a Chinese corpus.
        """
        scores: dict[int, float] = defaultdict(float)
        strong: dict[int, int] = defaultdict(int)
        codes: set[int] = set()
        figures: set[int] = set()
        for token in dict.fromkeys(tokens(query)):
            postings = self._postings.get(token, ())
            if not postings:
                continue
            rare = len(postings) <= max(2, RARE_SHARE * self._size)
            idf = math.log(1 + (self._size - len(postings) + 0.5) / (len(postings) + 0.5))
            is_character = len(token) == 1 and not token.isascii()
            worth = 0 if is_character else 2 if rare else 1
            for number, score in postings:
                scores[number] += idf * score * (0.35 if is_character else 1.0)
                strong[number] += worth
            if rare and token.isascii():
                is_code = any(character.isalpha() for character in token)
                (codes if is_code else figures).update(number for number, _ in postings)
        hits = (
            Hit(number, score, number in codes, number in figures)
            for number, score in scores.items()
            if strong[number] >= 2
        )
        return sorted(hits, key=lambda hit: (-hit.score, hit.number))[:limit]

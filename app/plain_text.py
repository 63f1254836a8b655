"""What a message's text says, apart from how it was typed.

Owns the folding of full-width forms and the question whether a text has words. Knows nothing of
commands or of what answers a text.
"""

from __future__ import annotations

import re
import unicodedata

_FOLDED = re.compile("[\uff01-\uff5e]")
_CHINESE_PUNCTUATION = frozenset("！（），：；？～")
"""Full-width by right in Chinese text, so they stay."""


def fold_full_width(text: str) -> str:
    """Full-width letters, digits and signs as their ASCII forms: ``１２＋Ａ`` is ``12+A``."""
    return _FOLDED.sub(_fold, text)


def has_words(text: str) -> bool:
    """Whether there is a letter, a digit or a Chinese character in ``text``."""
    return any(char.isalnum() for char in text)


def _fold(match: re.Match[str]) -> str:
    char = match[0]
    return char if char in _CHINESE_PUNCTUATION else unicodedata.normalize("NFKC", char)

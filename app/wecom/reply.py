"""Reply text cut into parts that WeCom shows whole.

Owns byte limits (text beyond 2048 bytes is cut silently by the service). Knows nothing of what
the text says.
"""

from __future__ import annotations

import unicodedata
from typing import Final

TEXT_LIMIT_BYTES: Final = 2048
_ZWJ: Final = "\u200d"
_SENTENCE_ENDS: Final = "。！？；.!?; ，,"


def split_text(text: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> list[str]:
    """Cut ``text`` into parts of at most ``limit_bytes`` UTF-8 bytes; ``"".join(parts) == text``.

    Cuts at line ends; a line longer than a part is cut after a sentence or a space, and failing
    that anywhere but inside a code point or (where it fits) an emoji sequence. "" gives no part.
    Raises ``ValueError`` for a limit below 4, the size of the longest code point.
    """
    if limit_bytes < 4:
        raise ValueError("limit_bytes must be at least 4")
    parts: list[str] = []
    start = 0
    while start < len(text):
        end = _fitting_end(text, start, limit_bytes)
        if end < len(text):
            end = _cut(text, start, end)
        parts.append(text[start:end])
        start = end
    return parts


def _fitting_end(text: str, start: int, limit_bytes: int) -> int:
    """The largest ``end`` such that ``text[start:end]`` fits."""
    size = 0
    for index in range(start, len(text)):
        size += _size_bytes(text[index])
        if size > limit_bytes:
            return index
    return len(text)


def _size_bytes(character: str) -> int:
    code = ord(character)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def _cut(text: str, start: int, end: int) -> int:
    """The best place to cut in ``(start, end]``."""
    newline = text.rfind("\n", start, end)
    if newline >= start:
        return newline + 1
    middle = start + (end - start) // 2
    for index in range(end, middle, -1):
        if text[index - 1] in _SENTENCE_ENDS:
            return index
    for index in range(end, start, -1):
        if not _joins(text[index - 1], text[index]):
            return index
    return end


def _joins(before: str, after: str) -> bool:
    """True when ``before`` and ``after`` make up one visible sign."""
    return (
        _ZWJ in (before, after)
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or ("\U0001f1e6" <= before <= "\U0001f1ff" and "\U0001f1e6" <= after <= "\U0001f1ff")
    )

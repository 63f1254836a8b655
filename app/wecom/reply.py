"""Reply text cut into parts that WeCom shows whole.

Owns byte limits (text beyond 2048 bytes is cut silently by the service), the places where a text
may be cut, and the ``(1/3)`` marks. Knows nothing of what the text says.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from typing import Final

TEXT_LIMIT_BYTES: Final = 2048
_ZWJ: Final = "\u200d"
_SENTENCE_ENDS: Final = "。！？；.!?; ，,"
_LINK: Final = re.compile(r"https?://[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_BAR: Final = re.compile(r"[▁▂▃▄▅▆▇█▒]")
_BAR_AT_MARGIN: Final = re.compile(r"[▁▂▃▄▅▆▇█▒]+\s*\n?$")
_MARK: Final = re.compile(r"\((\d+)/(\d+)\)\n")

_Spans = list[tuple[int, int]]


def marked_parts(text: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> list[str]:
    """``text`` as the messages to send: one as it is, several with a first line ``(1/3)``.

    Every message, its mark included, has at most ``limit_bytes`` UTF-8 bytes, and without the
    marks (``without_mark``) they join to ``text``. The mark tells the reader the order, and makes
    two equal parts different requests for WeCom's duplicate check.
    """
    if len(text.encode()) <= limit_bytes:
        return [text] if text else []
    digits = 1
    while True:
        room = limit_bytes - len(f"({'9' * digits}/{'9' * digits})\n")
        parts = split_text(text, room)
        if len(str(len(parts))) <= digits:
            return [f"({n}/{len(parts)})\n{part}" for n, part in enumerate(parts, 1)]
        digits += 1


def without_mark(part: str) -> str:
    """A message of ``marked_parts`` without its mark."""
    found = _MARK.match(part)
    return part[found.end() :] if found else part


def split_text(text: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> list[str]:
    """Cut ``text`` into parts of at most ``limit_bytes`` UTF-8 bytes; ``"".join(parts) == text``.

    Cuts at line ends, and not inside a chart where it fits into one part; a line longer than a
    part is cut after a sentence or a space, and failing that anywhere but inside a link, an emoji
    sequence or (always) a code point. "" gives no part. Raises ``ValueError`` for a limit below
    4, the size of the longest code point.
    """
    if limit_bytes < 4:
        raise ValueError("limit_bytes must be at least 4")
    charts, rows = _charts(text)
    links = [found.span() for found in _LINK.finditer(text)]
    levels = [_Walls(charts, rows, links), _Walls(rows, links), _Walls(links)]
    parts: list[str] = []
    start = 0
    while start < len(text):
        end = _fitting_end(text, start, limit_bytes)
        if end < len(text):
            end = _cut(text, start, end, levels)
        parts.append(text[start:end])
        start = end
    return parts


class _Walls:
    """Stretches of a text that a cut must not fall into; those of one kind do not overlap."""

    def __init__(self, *kinds: _Spans) -> None:
        self._kinds = [([begin for begin, _ in spans], spans) for spans in kinds]

    def stand_at(self, index: int) -> bool:
        """True when ``index`` lies strictly inside a stretch."""
        for begins, spans in self._kinds:
            found = bisect_right(begins, index) - 1
            if found >= 0 and spans[found][0] < index < spans[found][1]:
                return True
        return False


def _charts(text: str) -> tuple[_Spans, _Spans]:
    """Whole charts, and the rows of charts that take two lines (label, then its bar)."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    charts: _Spans = []
    rows: _Spans = []
    for number, line in enumerate(lines):
        if not _BAR.search(line):
            continue
        first = number
        label = lines[number - 1].strip() if number else ""
        if label and _BAR_AT_MARGIN.match(line) and not _BAR.search(label):
            first = number - 1
            rows.append((starts[first], starts[number + 1]))
        if charts and charts[-1][1] == starts[first]:
            charts[-1] = (charts[-1][0], starts[number + 1])
        else:
            charts.append((starts[first], starts[number + 1]))
    return charts, rows


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


def _cut(text: str, start: int, end: int, levels: list[_Walls]) -> int:
    """The best place to cut in ``(start, end]``: line ends first, then sentences, then any."""
    for walls in levels[:2]:
        newline = text.rfind("\n", start, end)
        while newline >= start:
            if not walls.stand_at(newline + 1):
                return newline + 1
            newline = text.rfind("\n", start, newline)
    middle = start + (end - start) // 2
    links = levels[2]
    for index in range(end, middle, -1):
        if text[index - 1] in _SENTENCE_ENDS and not _tears(text, start, index, links):
            return index
    for index in range(end, start, -1):
        if not _tears(text, start, index, links):
            return index
    return end


def _tears(text: str, start: int, index: int, links: _Walls) -> bool:
    """True when a cut at ``index`` would tear a link or one visible sign."""
    before, after = text[index - 1], text[index]
    if _ZWJ in (before, after) or unicodedata.category(after) in ("Mn", "Me", "Mc"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True  # a skin tone, or the tag of a regional flag
    if _is_flag_half(after):
        halves = 0
        while index - halves > start and _is_flag_half(text[index - halves - 1]):
            halves += 1
        return halves % 2 == 1
    return links.stand_at(index)


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"

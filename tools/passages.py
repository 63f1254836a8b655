"""Cuts Markdown and text files into passages: one section, one passage.

Owns reading and cutting. Knows nothing of search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = frozenset({".md", ".txt"})
PASSAGE_CHARS = 240
FILE_LIMIT_BYTES = 5_000_000
_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*")
_SENTENCE_END = re.compile(r"(?<=[。！？；.!?;])")


@dataclass(frozen=True)
class Passage:
    """A piece of a document that answers by itself."""

    title: str
    section: str
    text: str

    @property
    def embedded(self) -> str:
        """The text that is embedded and searched: with its headings, for context."""
        return f"{self.title} {self.section}：{self.text}"


def files_of(folder: Path) -> tuple[Path, ...]:
    """Documents below ``folder``, by path; hidden and oversized files are left out."""
    found = (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
        and path.stat().st_size <= FILE_LIMIT_BYTES
    )
    return tuple(sorted(found))


def passages_of(path: Path) -> list[Passage]:
    """The passages of one file, in order. Bytes that are not UTF-8 are read as GB18030."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("gb18030", errors="replace")
    title, section = path.stem, ""
    paragraphs: list[str] = []
    found: list[Passage] = []
    for line in [*text.splitlines(), "## "]:
        heading = _HEADING.fullmatch(line.strip()) if path.suffix.lower() == ".md" else None
        if heading is None and line != "## ":
            paragraphs.append(line.strip())
            continue
        found.extend(Passage(title, section, piece) for piece in _pieces(paragraphs))
        paragraphs = []
        if heading and len(heading.group(1)) == 1:
            title, section = heading.group(2), ""
        elif heading:
            section = heading.group(2)
    return found


def _pieces(paragraphs: list[str]) -> list[str]:
    """Lines joined into pieces of at most 240 characters, cut at sentence ends."""
    sentences = [
        part for line in paragraphs if line for part in _SENTENCE_END.split(line) if part.strip()
    ]
    pieces: list[str] = []
    for sentence in sentences:
        for start in range(0, len(sentence), PASSAGE_CHARS):
            part = sentence[start : start + PASSAGE_CHARS]
            if pieces and len(pieces[-1]) + len(part) <= PASSAGE_CHARS:
                pieces[-1] += part
            else:
                pieces.append(part)
    return pieces

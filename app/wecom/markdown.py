"""Markdown, as models write it, turned into what WeCom shows.

Owns two targets: plain text (shown everywhere, also in the WeChat plugin) and the small Markdown
of app messages (headings, bold, links, inline code, quotes; no tables, no fenced code, no
images). Knows nothing of sizes or sending.

In a text message WeCom interprets ``<a href>``: a model, or a document it read, could hide a
target behind harmless words. No tag survives here; the address is written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})\s*[\w+.#-]*\s*$")
_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)[ \t]*#*[ \t]*$")
_BULLET: Final = re.compile(r"^([ \t]*)[-*+][ \t]+(?=\S)")
_RULE: Final = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")
_DELIMITER: Final = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_CELL: Final = re.compile(r"(?<!\\)\|")
_CODE: Final = re.compile(r"(?<!`)(`{1,3})(?!`)([^`\n]+)\1(?!`)")
_ANCHOR: Final = re.compile(
    r"<a\b[^<>]*?href\s*=\s*[\"']?([^\"'\s<>]+)[\"']?[^<>]*>([^<>]*)</a\s*>", re.IGNORECASE
)
_LEFT_ANCHOR: Final = re.compile(r"<(?=\s*/?\s*a(?![A-Za-z0-9]))", re.IGNORECASE)
_BREAK: Final = re.compile(r"<br\s*/?>", re.IGNORECASE)
_LINK: Final = re.compile(
    r"!?\[([^\[\]\n]*)\]\((?:<([^<>\n]+)>|([^\s()<>]+))(?:[ \t]+\"[^\"\n]*\")?\)"
)
_AUTOLINK: Final = re.compile(r"<((?:https?://|mailto:)[^\s<>]+)>")
_ESCAPE: Final = re.compile(r"\\([!#()*+\-.<>\[\]_`{|}~\\])")
# Emphasis marks that stand between a letter or digit on both sides are arithmetic (2**3).
_STRONG: Final = re.compile(
    r"(?<!\*)(?:(?<![0-9A-Za-z)])\*\*(?=[^\s*])|\*\*(?=[^\s*0-9A-Za-z(]))([^\n]*?[^\s*])\*\*(?!\*)"
)
_STRONG_WIDE: Final = re.compile(r"＊＊([^\n＊]+)＊＊")
_EM: Final = re.compile(r"(?<![0-9A-Za-z*)])\*(?=[^\s*])([^\n*]*?[^\s*])\*(?![0-9A-Za-z*(])")
_STRIKE: Final = re.compile(r"~~(?=[^\s~])([^\n~]*?[^\s~])~~")
_HELD: Final = re.compile("\x00(\\d+)\x00")


def to_text(markdown: str) -> str:
    """Plain text: headings in 【】, tables as ``name：value`` lines, marks removed, links written
    out, code as it is. Text without Markdown comes back unchanged, apart from NUL characters."""
    return _convert(markdown, _inline_text, lambda level, title: f"【{title}】", "· ")


def to_wecom_markdown(markdown: str) -> str:
    """The subset of app messages of type markdown: what it lacks is written as text."""
    return _convert(
        markdown, _inline_markdown, lambda level, title: f"{level} {title}", bullet="- "
    )


def _convert(
    markdown: str,
    inline: Callable[[str], str],
    heading: Callable[[str, str], str],
    bullet: str,
) -> str:
    lines = markdown.replace("\x00", "").replace("\r\n", "\n").split("\n")
    out: list[str] = []
    fence = ""
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and line.strip() == found[1]:
                fence = ""
            else:
                out.append(_without_anchors(line))
        elif found:
            fence = found[1]
        elif "|" in line and index < len(lines) and _is_table(line, lines[index]):
            index, rows = _table_rows(lines, index + 1)
            out += _table(_cells(line), rows, inline)
        elif found_heading := _HEADING.match(line):
            out.append(heading(found_heading[1], inline(found_heading[2])))
        elif _RULE.match(line):
            out.append("")
        else:
            found_bullet = _BULLET.match(line)
            if found_bullet:
                out.append(found_bullet[1] + bullet + inline(line[found_bullet.end() :]))
            else:
                out.append(inline(line))
    return "\n".join(out)


def _is_table(header: str, delimiter: str) -> bool:
    return (
        "-" in delimiter
        and "|" in delimiter
        and _DELIMITER.match(delimiter) is not None
        and len(_cells(header)) == len(_cells(delimiter))
    )


def _table_rows(lines: list[str], index: int) -> tuple[int, list[list[str]]]:
    """The rows from ``index`` on, and the index of the first line after them."""
    rows = []
    while index < len(lines) and "|" in lines[index] and lines[index].strip():
        rows.append(_cells(lines[index]))
        index += 1
    return index, rows


def _cells(line: str) -> list[str]:
    inner = line.strip()
    inner = inner.removeprefix("|")
    if inner.endswith("|") and not inner.endswith("\\|"):
        inner = inner[:-1]
    return [cell.strip().replace("\\|", "|") for cell in _CELL.split(inner)]


def _table(header: list[str], rows: list[list[str]], inline: Callable[[str], str]) -> list[str]:
    """One line a row: ``name：value，name：value``. A table without rows keeps its header."""
    names = [inline(name) for name in header]
    if not rows:
        return ["，".join(names)]
    lines = []
    for row in rows:
        cells = [inline(cell) for cell in row]
        pairs = [f"{name}：{cell}" if name else cell for name, cell in zip(names, cells)]  # noqa: B905
        lines.append("，".join([*pairs, *cells[len(names) :]]))
    return lines


class _Held:
    """Pieces of a line that later steps must not touch."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def hold(self, piece: str) -> str:
        self._pieces.append(piece)
        return f"\x00{len(self._pieces) - 1}\x00"

    def release(self, line: str) -> str:
        while "\x00" in line:
            line = _HELD.sub(lambda found: self._pieces[int(found[1])], line)
        return line


def _inline_text(line: str) -> str:
    held = _Held()
    line = _CODE.sub(lambda m: held.hold(_without_anchors(m[2])), line)
    line = _ESCAPE.sub(lambda m: held.hold(m[1]), line)
    line = _addresses(line, held)
    for pattern in (_STRONG, _STRONG_WIDE, _EM, _STRIKE):
        line = pattern.sub(r"\1", line)
    return _without_anchors(held.release(line))


def _inline_markdown(line: str) -> str:
    held = _Held()
    line = _CODE.sub(lambda m: held.hold(_without_anchors(m[0])), line)
    line = _STRONG_WIDE.sub(r"**\1**", line)
    line = _STRIKE.sub(r"\1", line)
    line = _ANCHOR.sub(lambda m: held.hold(f"[{m[2]}]({m[1]})"), line)
    line = re.sub(r"!(?=\[)", "", line)
    return _without_anchors(held.release(line))


def _addresses(line: str, held: _Held) -> str:
    """Every kind of link as its words and its address, which stays clickable."""

    def written(words: str, address: str, rest: str) -> str:
        words = words.strip()
        shown = address if words in ("", address) else f"{words} {address}"
        return held.hold(shown + (" " if rest and not rest[0].isspace() else ""))

    line = _ANCHOR.sub(lambda m: written(m[2], m[1], m.string[m.end() :]), line)
    line = _LINK.sub(lambda m: written(m[1], m[2] or m[3], m.string[m.end() :]), line)
    line = _AUTOLINK.sub(lambda m: written("", m[1], m.string[m.end() :]), line)
    return _BREAK.sub("\n", line)


def _without_anchors(text: str) -> str:
    return _LEFT_ANCHOR.sub("＜", text)

"""A picture (PNG) of a table that is too wide for chat text.

Owns when a table is too wide, the layout, the size in bytes and the search for a font with Chinese
characters. Figures are written as everywhere else, from the exact table. Knows nothing of WeCom.
``python -m tools.table_image [FONT]`` says as JSON which font would be used.
"""

from __future__ import annotations

import bisect
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools.base import Table, Value
from tools.numbers import format_number, is_number

LEAST_COLUMNS, LEAST_ROWS = 4, 13
"""A chart draws one figure of each row and at most 12 rows; text names no columns."""
MOST_COLUMNS, MOST_ROWS = 12, 60
MAX_BYTES = 256 * 1024
FONT_SIZE, SMALL_SIZE = 24, 20
"""Pixels; a phone shows about half of them as points."""
CELL_WIDTH = 13 * FONT_SIZE
"""Pixels of the longest text in a cell: 13 Chinese characters, the rest is cut."""
PAD_X, PAD_Y, MARGIN = 16, 10, 20
GREYS = [grey * 17 for grey in range(16)]
WHITE, STRIPE, HEAD, RULE, GREY, BLACK = (GREYS[i] for i in (15, 14, 13, 12, 7, 2))
FONTS = (
    "/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc",
    "/usr/share/fonts/truetype/wqy/wqy-microhei.ttc",
    "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/noto-cjk/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/google-noto-cjk/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/google-noto-sans-cjk-fonts/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/wqy-zenhei/wqy-zenhei.ttc",
    "/usr/share/fonts/wqy-zenhei-fonts/wqy-zenhei.ttc",
    "/System/Library/Fonts/Hiragino Sans GB.ttc",
    "/System/Library/Fonts/STHeiti Light.ttc",
    "C:/Windows/Fonts/msyh.ttc",
    "C:/Windows/Fonts/simhei.ttf",
)
"""Where Debian, Ubuntu, Arch, Fedora, macOS and Windows keep fonts with Chinese characters."""


class FontError(Exception):
    """No usable font; the text says what to do."""


def find_font(chosen: Path | None = None, known: Sequence[str] = FONTS) -> Path:
    """``chosen``, or the first of the ``known`` ones that is there. Raises ``FontError`` when there
    is none or it lacks Chinese characters."""
    if chosen is not None:
        if not _has_chinese(chosen):
            raise FontError(f"字体 {chosen} 读不了，或者没有汉字；请换一个中文字体文件")
        return chosen
    for path in map(Path, known):
        if path.exists() and _has_chinese(path):
            return path
    raise FontError(
        "没有找到中文字体；请安装 fonts-wqy-zenhei，或把 HUTONG_TABLE_IMAGES 设为字体文件"
    )


def is_wide(table: Table) -> bool:
    """Whether chat text shows less of the table than it holds."""
    return len(table.rows) > 1 and (
        len(table.columns) >= LEAST_COLUMNS or len(table.rows) >= LEAST_ROWS
    )


class TableImage:
    """Draws tables in one font; safe to call from many threads."""

    def __init__(self, font: Path) -> None:
        self._font = font

    def __call__(self, table: Table) -> bytes:
        """A PNG of at most ``MAX_BYTES``; b"" for a table that is not wide, or that does not fit
        with a single row. Rows and columns that are left out are counted in the last line.

        Raises ``OSError`` when the font has gone.
        """
        if not is_wide(table):
            return b""
        shown = min(len(table.rows), MOST_ROWS)
        while shown:
            png = _Sheet(self._font, table, shown).png()
            if len(png) <= MAX_BYTES:
                return png
            # Bytes grow with the rows; a little less than would fit, for rows are not alike.
            shown = min(shown - 1, int(shown * 0.9 * MAX_BYTES / len(png)))
        return b""


class _Sheet:
    """One drawing of the first ``shown`` rows."""

    def __init__(self, font: Path, table: Table, shown: int) -> None:
        # Loaded for each drawing: FreeType's faces must not be shared by threads.
        self._font = _load(font, FONT_SIZE)
        self._small = _load(font, SMALL_SIZE)
        columns = min(len(table.columns), MOST_COLUMNS)
        values = [row[:columns] for row in table.rows[:shown]]
        self._right = [
            any(is_number(row[i]) for row in values)
            and all(row[i] is None or _is_figure(row[i]) for row in values)
            for i in range(columns)
        ]
        head = [self._cut(name) for name in table.columns[:columns]]
        body = [[self._cut(format_number(value)) for value in row] for row in values]
        self._rows = [head, *body]
        self._widths = [
            max(round(self._font.getlength(row[i])) for row in self._rows) + 2 * PAD_X
            for i in range(columns)
        ]
        self._note = _note(table, shown, columns)

    def png(self) -> bytes:
        line = FONT_SIZE + 2 * PAD_Y + 6
        note = round(self._small.getlength(self._note)) + 2 * PAD_X
        inner = max(sum(self._widths), note if self._note else 0)
        height = line * (len(self._rows) + bool(self._note))
        image = Image.new("L", (inner + 2 * MARGIN, height + 2 * MARGIN), WHITE)
        draw = ImageDraw.Draw(image)
        right = MARGIN + sum(self._widths)
        for number, row in enumerate(self._rows):
            top = MARGIN + number * line
            fill = HEAD if number == 0 else STRIPE if number % 2 == 0 else WHITE
            draw.rectangle((MARGIN, top, right - 1, top + line - 1), fill=fill)
            draw.line((MARGIN, top + line - 1, right - 1, top + line - 1), fill=RULE)
            left = MARGIN
            for text, width, to_right in zip(row, self._widths, self._right, strict=True):
                x = left + width - PAD_X if to_right else left + PAD_X
                anchor = "rm" if to_right else "lm"
                draw.text((x, top + line // 2), text, fill=BLACK, font=self._font, anchor=anchor)
                left += width
        if self._note:
            middle = MARGIN + len(self._rows) * line + line // 2
            draw.text((MARGIN + PAD_X, middle), self._note, GREY, self._small, anchor="lm")
        # Four bits a pixel. The nearest of 16 greys is found by a shift; quantize() takes ten times
        # as long.
        nearest = image.point([value >> 4 for value in range(256)])
        greys = Image.frombytes("P", image.size, nearest.tobytes())
        greys.putpalette([grey for grey in GREYS for _ in "RGB"])
        file = io.BytesIO()
        greys.save(file, "PNG", bits=4)
        return file.getvalue()

    def _cut(self, text: str) -> str:
        """The text on one line, cut where a cell ends."""
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        if self._font.getlength(text) <= CELL_WIDTH:
            return text
        fits = bisect.bisect_right(
            range(min(len(text), CELL_WIDTH)),
            CELL_WIDTH,
            key=lambda length: round(self._font.getlength(text[:length] + "…")),
        )
        return text[: fits - 1] + "…"


def _note(table: Table, shown: int, columns: int) -> str:
    parts = []
    if shown < len(table.rows) or table.truncated:
        more = "以上" if table.truncated else ""
        parts.append(f"共{len(table.rows)}行{more}，图上是前{shown}行")
    if columns < len(table.columns):
        parts.append(f"另有{len(table.columns) - columns}列没有画出")
    return "；".join(parts)


def _is_figure(value: Value) -> bool:
    return is_number(value) or isinstance(value, float)


def _load(font: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(font), size, layout_engine=ImageFont.Layout.BASIC)


def _has_chinese(path: Path) -> bool:
    """Whether the font draws three characters as three; one that lacks them draws three boxes."""
    try:
        font = _load(path, FONT_SIZE)
    except (OSError, ValueError):
        return False
    return len({bytes(font.getmask(character)) for character in "中文表"}) == 3


def main(arguments: Sequence[str]) -> int:
    """Print ``{"font", "problem"}``; 0 when there is a font."""
    try:
        found = {"font": str(find_font(Path(arguments[0]) if arguments else None)), "problem": ""}
    except FontError as error:
        found = {"font": "", "problem": str(error)}
    print(json.dumps(found, ensure_ascii=False))
    return int(bool(found["problem"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Pictures of wide tables: when, how large, and what they show."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from tools import table_image
from tools.base import Table, Value
from tools.table_image import (
    FONT_SIZE,
    HEAD,
    MARGIN,
    MAX_BYTES,
    MOST_ROWS,
    PAD_Y,
    STRIPE,
    WHITE,
    FontError,
    TableImage,
    find_font,
    is_wide,
)

LINE = FONT_SIZE + 2 * PAD_Y + 6
COLUMNS = ("产品", "区域", "销售额", "利润")


def rows(count: int) -> tuple[tuple[Value, ...], ...]:
    return tuple(
        (f"星云X{n}手机", "华东", decimal.Decimal("1234.5") * n, None if n % 3 else -n)
        for n in range(count)
    )


def drawn(table: Table) -> Image.Image:
    """The picture as grey levels."""
    png = TableImage(find_font())(table)
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        return image.convert("L")


def ink(image: Image.Image, row: int, left: int, right: int) -> tuple[int, int] | None:
    """The first and last column with dark pixels in a row (0: the header)."""
    top = MARGIN + row * LINE
    dark = image.crop((left, top, right, top + LINE - 1)).point([255] * 150 + [0] * 106).getbbox()
    return (left + dark[0], left + dark[2]) if dark else None


@pytest.mark.parametrize(
    ("columns", "count", "wide"),
    [(2, 12, False), (2, 13, True), (3, 12, False), (4, 2, True), (4, 1, False), (9, 0, False)],
)
def test_wide_is_what_text_and_bars_do_not_show(columns: int, count: int, wide: bool) -> None:
    table = Table(tuple(f"列{n}" for n in range(columns)), ((1,) * columns,) * count)
    assert is_wide(table) is wide
    assert bool(TableImage(find_font())(table)) is wide


def test_every_row_is_drawn_on_its_line_with_figures_to_the_right() -> None:
    image = drawn(Table(COLUMNS, rows(5)))
    assert image.height == 2 * MARGIN + 6 * LINE
    grounds = [image.getpixel((MARGIN + 2, MARGIN + n * LINE + 2)) for n in range(6)]
    assert grounds == [HEAD, WHITE, STRIPE, WHITE, STRIPE, WHITE]
    found = [ink(image, n, MARGIN, image.width - MARGIN) for n in range(6)]
    assert None not in found
    starts = {span[0] for span in found[1:] if span}
    ends = [span[1] for span in found if span]
    assert max(starts) - min(starts) <= 2, "names start in one column"
    assert max(ends) - min(ends) <= 3, "figures end in one column"


def test_other_data_is_another_picture_and_the_same_is_the_same() -> None:
    draw = TableImage(find_font())
    table = Table(COLUMNS, rows(5))
    changed = Table(COLUMNS, (*rows(4), ("星云X4手机", "华东", decimal.Decimal("4939"), 4)))
    assert draw(table) == draw(Table(COLUMNS, rows(5)))
    assert draw(table) != draw(changed)


def test_what_does_not_fit_is_counted_in_the_last_line() -> None:
    whole = drawn(Table(COLUMNS, rows(MOST_ROWS)))
    cut = drawn(Table(COLUMNS, rows(MOST_ROWS + 1)))
    assert cut.height == whole.height + LINE
    assert ink(cut, MOST_ROWS + 1, MARGIN, cut.width) is not None
    note = table_image._note(Table(COLUMNS * 4, rows(70), truncated=True), 60, 12)
    assert note == "共70行以上，图上是前60行；另有4列没有画出"
    assert table_image._note(Table(COLUMNS, rows(70)), 70, 4) == ""


def test_long_and_strange_cells_stay_on_one_line_in_their_cell() -> None:
    strange: tuple[Value, ...] = (
        *("很长" * 500, "两\n行\x00\u202e", "", None, float("nan"), True, 10**30),
        *(datetime.date(2024, 1, 3), datetime.datetime(2024, 1, 3, 4, 5), "𠀀😀|"),
    )
    image = drawn(Table(tuple(f"列{n}" for n in range(10)), (strange, strange)))
    assert image.height == 2 * MARGIN + 3 * LINE
    assert image.width < 10 * (table_image.CELL_WIDTH + 2 * table_image.PAD_X)


def test_any_table_stays_below_the_limit_of_bytes() -> None:
    some = random.Random(1)

    def word() -> str:
        return "".join(chr(some.randrange(0x4E00, 0x9FA5)) for _ in range(12))

    worst = Table(
        tuple(word() for _ in range(20)),
        tuple(tuple(word() for _ in range(20)) for _ in range(200)),
        truncated=True,
    )
    png = TableImage(find_font())(worst)
    assert 0 < len(png) <= MAX_BYTES


def test_many_threads_draw_what_one_draws() -> None:
    draw = TableImage(find_font())
    tables = [Table(COLUMNS, rows(n)) for n in range(2, 10)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(draw, tables)) == [draw(table) for table in tables]


def test_a_machine_without_a_font_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(FontError, match="fonts-wqy-zenhei"):
        find_font(known=(str(tmp_path / "none.ttc"),))


@pytest.mark.parametrize("name", ["missing.ttf", "text.ttf", "latin.ttf"])
def test_a_font_that_cannot_write_chinese_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.ttf").write_text("not a font")
    if name == "latin.ttf":
        # Pillow brings a Latin font for its own use.
        (tmp_path / name).write_bytes(_latin())
    with pytest.raises(FontError, match=name):
        find_font(tmp_path / name)


def _latin() -> bytes:
    from PIL import ImageFont

    font = ImageFont.load_default(FONT_SIZE)
    assert isinstance(font, ImageFont.FreeTypeFont)
    assert isinstance(font.path, io.BytesIO)
    return font.path.getvalue()


def test_the_command_names_the_font(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert table_image.main([]) == 0
    assert Path(json.loads(capsys.readouterr().out)["font"]).exists()
    assert table_image.main([str(tmp_path / "none.ttf")]) == 1
    assert "none.ttf" in json.loads(capsys.readouterr().out)["problem"]

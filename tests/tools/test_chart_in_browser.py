"""Charts as eyes see them: in a proportional and in a monospace font, measured on the screen.

Both renderings must keep the lengths of the bars in proportion and their starts in one column.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import chromium
from tools import chart
from tools.base import Table

pytestmark = pytest.mark.browser

FONTS = ("WenQuanYi Zen Hei, sans-serif", "WenQuanYi Zen Hei Mono, monospace")
BLUE = "#0000ff"
MANY = Table(("产品", "销售额"), (("星云X1手机", 160), ("墨舟轻薄本", 80), ("U盘", 40)))
SAME = Table(("编号", "销售额"), (("P1001", 160), ("P1002", 80), ("P1003", 40)))

_BLUE_RUNS = """async ([url, rows]) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return rows.map(y => {
        const d = context.getImageData(0, y, image.width, 1).data;
        const blue = [...Array(image.width).keys()]
            .filter(x => d[4*x+2] > 200 && d[4*x] < 120 && d[4*x+1] < 120);
        return blue.length ? [blue[0], blue[blue.length - 1] + 1] : [0, 0];
    });
}"""
"""Reads the screenshot's pixels: the first and last blue one in each of the given rows."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def bars(browser: Browser, text: str, font: str) -> list[tuple[int, int]]:
    """(left, right) in pixels of each bar, top to bottom; bars are painted blue and read back."""
    lines = "".join(
        "<div>" + "".join(f"<b>{c}</b>" if c == "█" else c for c in line) + "</div>"
        for line in text.split("\n")
    )
    style = f"body{{font:16px {font};white-space:pre;margin:8px}}b{{color:{BLUE};font-weight:400}}"
    page = browser.new_page(viewport={"width": 700, "height": 400})
    page.set_content(f"<meta charset=utf-8><style>{style}</style>{lines}")
    boxes = page.evaluate(
        "[...document.querySelectorAll('div')].map(d => d.getBoundingClientRect())"
        ".map(r => [r.top, r.bottom])"
    )
    shot = base64.b64encode(page.screenshot()).decode()
    rows = [int((top + bottom) / 2) for top, bottom in boxes]
    found = page.evaluate(_BLUE_RUNS, [f"data:image/png;base64,{shot}", rows])
    page.close()
    return [(left, right) for left, right in found if right > left]


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize("table", [MANY, SAME], ids=["two lines an item", "beside the label"])
def test_bars_start_in_one_column_and_are_in_proportion(
    browser: Browser, table: Table, font: str
) -> None:
    drawn = bars(browser, chart.render(table, "bar", limit_bytes=2048), font)
    assert len(drawn) == 3
    lefts = [left for left, _ in drawn]
    assert max(lefts) - min(lefts) <= 1, drawn
    lengths = [right - left for left, right in drawn]
    assert lengths[1] == pytest.approx(lengths[0] / 2, abs=2)
    assert lengths[2] == pytest.approx(lengths[0] / 4, abs=2)

"""A newcomer's first minute: the page of the demo in a browser, with the shipped model.

``PAGE_SCREENSHOT`` names the PNG to write (the README's picture); a temporary file otherwise.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import chromium
from tests.e2e.demo_run import serving

QUESTION = "分析华东区Q3销售TOP5产品"
ANSWER_LIMIT_MS = 150_000


@pytest.mark.browser
@pytest.mark.model
def test_a_question_typed_on_the_page_is_answered_there(tmp_path: Path) -> None:
    picture = Path(os.environ.get("PAGE_SCREENSHOT", tmp_path / "page.png"))
    with serving(tmp_path) as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1180, "height": 860}, device_scale_factor=2)
        page.goto(url)
        page.fill("#input", QUESTION)
        page.keyboard.press("Enter")
        expect(page.locator(".row.mine .bubble")).to_have_text(QUESTION)
        answer = page.locator(".row.theirs .bubble", has_text="█")
        expect(answer).to_be_visible(timeout=ANSWER_LIMIT_MS)
        expect(page.locator(".row.typing")).to_have_count(0)
        text = answer.inner_text()
        page.screenshot(path=picture)
    with sqlite3.connect(tmp_path / "company.db") as database:
        best = database.execute(
            "SELECT product_name FROM sales_data WHERE region = '华东' AND year = 2024 "
            "AND quarter = 3 GROUP BY 1 ORDER BY SUM(quantity * price) DESC LIMIT 5"
        ).fetchall()
    database.close()
    places = [text.find(name) for (name,) in best]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert picture.stat().st_size > 10_000

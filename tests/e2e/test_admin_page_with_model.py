"""An administrator's test message in a browser, with the shipped model behind it.

``ADMIN_SCREENSHOT`` names the PNG to write (the README's picture); a temporary file otherwise.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import chromium
from tests.e2e.demo_run import serving

QUESTION = "分析华东区Q3销售TOP5产品"
ANSWER_LIMIT_MS = 150_000


@pytest.mark.browser
@pytest.mark.model
def test_a_test_message_shows_the_query_and_its_rows(tmp_path: Path) -> None:
    picture = Path(os.environ.get("ADMIN_SCREENSHOT", tmp_path / "admin.png"))
    with serving(tmp_path), chromium() as browser:
        said = re.search(
            r"管理页：(http://[\d.:]+/admin)（令牌 (\S+)）", (tmp_path / "terminal.txt").read_text()
        )
        assert said, "the demo names its admin page"
        page = browser.new_page(viewport={"width": 1180, "height": 1000}, device_scale_factor=2)
        page.goto(said[1])
        page.get_by_label("管理令牌").fill(said[2])
        page.get_by_role("button", name="登录").click()
        page.get_by_role("link", name="测试", exact=True).click()
        page.get_by_label("成员 UserID").fill("WangFang")
        page.get_by_label("问题").fill(QUESTION)
        page.get_by_role("button", name="发送", exact=True).click()
        expect(page.locator("#status")).to_have_text("完成", timeout=ANSWER_LIMIT_MS)
        expect(page.locator(".step.model").first).to_contain_text("SELECT")
        expect(page.locator(".step.tool").first).to_contain_text("sql_query")
        expect(page.locator("#answer pre")).to_contain_text("█")
        page.screenshot(path=picture, full_page=True)
        page.get_by_role("link", name="引擎").click()
        expect(page.locator("main")).to_contain_text("demo-moe")
        expect(page.locator("main")).to_contain_text("专家命中率")
    assert picture.stat().st_size > 10_000

"""The admin page in a real browser, with a real worker process around a fake agent behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from flask import Flask
from playwright.sync_api import Browser, Page, expect
from werkzeug.serving import make_server

from app.panel.panel import TABS
from app.store.app_state import AppState
from app.store.outbox import Outcome
from app.store.presence import alive
from tests.app.conftest import ADMIN_TOKEN
from tests.app.panel.conftest import HOSTILE, ask, end, settle
from tests.app.wecom.sealing import AGENT, CORP
from tests.browser import chromium
from tests.workers.fakes import wait_for

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[3]
FACTS = {
    "model": "qwen-35b",
    "num_running": 1,
    "num_waiting": 0,
    "decode_tokens_per_s": 31.2,
    "expert_hit_rate": 0.934,
    "expert_recall_on_misses": 0.71,
    "stall_share": 0.12,
    "gpu_memory_bytes": 5_812_000_000,
    "memory_plan": [["骨干权重", 2_900_000_000], ["专家槽位（900 个）", 3_391_000_000]],
    "activation": {
        "layers": 40,
        "experts": 256,
        "loads": [[(row * column % 7) / 3 for column in range(32)] for row in range(40)],
    },
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def url(web: Flask) -> Iterator[str]:
    """The gateway, served from a thread."""
    server = make_server("127.0.0.1", 0, web, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def worker(redis_url: str, redis_client: redis.Redis) -> Iterator[None]:
    """A turn worker that answers without a model."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.workers.fake_turn_worker"],
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": redis_url, "TEST_ENGINE_FACTS": json.dumps(FACTS)},
    )
    try:
        wait_for(lambda: alive(redis_client))
        yield
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A page that is signed in; nothing may have gone wrong in it at the end."""
    page = browser.new_page(viewport={"width": 1180, "height": 800})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.goto(f"{url}/admin")
    page.get_by_label("管理令牌").fill(ADMIN_TOKEN)
    page.get_by_role("button", name="登录").click()
    expect(page.locator(".findings li")).to_have_count(2)
    yield page
    page.close()
    assert problems == []


def test_a_test_message_is_followed_and_sending_is_held_and_released(
    page: Page, worker: None, redis_client: redis.Redis
) -> None:
    page.get_by_role("link", name="测试", exact=True).click()
    page.get_by_label("成员 UserID").fill("zhangsan")
    page.get_by_label("问题").fill("slow:4")
    page.get_by_label("试运行").check()
    page.get_by_role("button", name="发送", exact=True).click()
    # The page follows the turn by itself, from the queue to its end.
    expect(page.locator("#status")).to_have_text("处理中", timeout=20_000)
    expect(page.locator("#status")).to_have_text("完成", timeout=20_000)
    page.get_by_role("link", name="测试", exact=True).click()
    page.get_by_label("成员 UserID").fill("zhangsan")
    page.get_by_label("问题").fill(f"你好 {HOSTILE}")
    page.get_by_role("button", name="发送", exact=True).click()
    expect(page.locator("#status")).to_have_text("完成", timeout=20_000)
    expect(page.locator(".step.model")).to_contain_text("想一想")
    expect(page.locator("#answer pre")).to_have_text(f"答:你好 {HOSTILE}")
    expect(page.locator("#answer")).to_contain_text("没有放进发件箱")
    page.get_by_role("link", name="回合", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(2)

    page.get_by_role("link", name="发件箱").click()
    expect(page.locator("#sending")).to_have_text("正常发送。")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="暂停发送").click()
    expect(page.locator("#sending")).to_have_text("正常发送。")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="暂停发送").click()
    expect(page.locator("#sending")).to_contain_text("管理员已暂停发送")
    assert AppState(redis_client).held_since_ms(CORP, AGENT)
    page.get_by_role("button", name="恢复发送").click()
    expect(page.locator("#sending")).to_have_text("正常发送。")
    assert not AppState(redis_client).held_since_ms(CORP, AGENT)

    page.get_by_role("link", name="引擎").click()
    expect(page.locator("svg.heat rect")).to_have_count(40 * 32)
    expect(page.locator("main")).to_contain_text("31.2 token/秒")
    page.get_by_role("button", name="退出").click()
    expect(page.get_by_label("管理令牌")).to_be_visible()


def test_a_double_click_replays_a_part_once(page: Page, redis_client: redis.Redis) -> None:
    ask(redis_client, "t1")
    end(redis_client, "t1", f"甲 {HOSTILE}")
    settle(redis_client, Outcome("refused", errcode=81013, errmsg=HOSTILE))
    page.get_by_role("link", name="发件箱").click()
    expect(page.locator("#problems tbody tr")).to_contain_text(f"甲 {HOSTILE}")
    page.get_by_role("button", name="重发", exact=True).dblclick(no_wait_after=True)
    expect(page.get_by_role("status")).to_be_visible()
    expect(page.locator("#refused")).to_have_text("0")
    expect(page.locator("#pending")).to_have_text("1")


def test_every_tab_fits_a_phone(
    browser: Browser, url: str, worker: None, redis_client: redis.Redis
) -> None:
    ask(redis_client, "t1", "很长的问题" * 60 + "x" * 300)
    ask(redis_client, "t2", "y" * 200, user="lisi")
    end(redis_client, "t2", "答" * 300, "z" * 200, user="lisi")
    settle(redis_client, Outcome("refused", errcode=81013, errmsg="w" * 200), user="lisi")
    page = browser.new_page(viewport={"width": 360, "height": 640})
    page.goto(f"{url}/admin")
    page.get_by_label("管理令牌").fill(ADMIN_TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator(".findings li")).to_have_count(2)
    for name in [*(name for name, _ in TABS), "turns/t1", "turns/t2"]:
        page.goto(f"{url}/admin/ui/{name}")
        expect(page.locator("nav a[aria-current]")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.close()

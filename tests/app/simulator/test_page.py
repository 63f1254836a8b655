"""The chat page in a real browser, against a real simulator and a recording app."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import requests
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from app.simulator import callback_xml
from app.simulator.corp import EXAMPLES
from app.simulator.service import Simulator
from app.wecom.crypto import WeComCrypto
from tests.app.simulator.conftest import Received, RecordingApp
from tests.browser import chromium

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, base_url: str) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1180, "height": 760})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.goto(base_url)
    expect(page.locator(".person")).to_have_count(6)
    yield page
    page.close()
    assert problems == []


def answer(simulator: Simulator, content: str, user: str = "WangFang") -> None:
    """The app sends ``content``."""
    request = {
        "touser": user,
        "msgtype": "text",
        "agentid": simulator.corp.agent_id,
        "text": {"content": content},
    }
    assert simulator.message_send.send(json.dumps(request).encode()).errcode == 0


def picture(width: int, height: int) -> bytes:
    """A PNG of that size."""
    file = io.BytesIO()
    Image.new("L", (width, height), 100).save(file, "PNG")
    return file.getvalue()


def messages_received(simulator: Simulator, app: RecordingApp) -> list[str]:
    corp = simulator.corp
    crypto = WeComCrypto(corp.token, corp.encoding_aes_key, corp.corp_id)

    def content(received: Received) -> str:
        query = received.query
        plain = crypto.decrypt(
            received.body, query["msg_signature"], query["timestamp"], query["nonce"]
        )
        return callback_xml.field(plain.decode(), "Content")

    return [text for text in map(content, app.received) if text]


def test_a_typed_message_is_sent_and_the_answer_appears(
    page: Page, simulator: Simulator, recording_app: RecordingApp
) -> None:
    page.fill("#input", "  两行\n文字 😀")
    page.keyboard.press("Enter")
    expect(page.locator(".row.mine .bubble")).to_have_text("  两行\n文字 😀")
    expect(page.locator(".row.typing")).to_be_visible()
    expect(page.locator("#input")).to_have_value("")
    assert messages_received(simulator, recording_app) == ["  两行\n文字 😀"]

    answer(simulator, "收到，正在查询，请稍候。")
    expect(page.locator(".row.theirs .bubble").first).to_have_text("收到，正在查询，请稍候。")
    expect(page.locator(".row.typing")).to_be_visible()

    answer(simulator, "手机 3万\n████\n  缩进")
    bubble = page.locator(".row.theirs .bubble").nth(1)
    expect(bubble).to_have_text("手机 3万\n████\n  缩进", use_inner_text=True)
    expect(bubble).to_have_css("white-space", "pre-wrap")
    expect(page.locator(".row.typing")).to_have_count(0)


def test_a_chip_asks_its_question(
    page: Page, simulator: Simulator, recording_app: RecordingApp
) -> None:
    expect(page.locator(".chip")).to_have_count(len(EXAMPLES))
    page.locator(".chip").first.click()
    expect(page.locator(".row.mine .bubble")).to_have_text(EXAMPLES[0])
    expect(page.locator("#log-lines li", has_text="文本消息")).to_have_count(1)
    assert messages_received(simulator, recording_app) == [EXAMPLES[0]]


def test_entering_a_conversation_is_an_event(page: Page, recording_app: RecordingApp) -> None:
    page.locator(".person", has_text="李雷").click()
    expect(page.locator("#log-lines li", has_text="LiLei 的事件 enter_agent")).to_have_count(1)


def test_text_is_shown_as_text_and_a_link_as_a_link(page: Page, simulator: Simulator) -> None:
    hostile = (
        '<img src=x onerror="document.title=1"> <script>document.title=1</script> '
        '<a href="javascript:alert(1)">no</a> <a href="https://example.com/x">看这里</a>'
    )
    answer(simulator, hostile)
    bubble = page.locator(".row.theirs .bubble")
    expect(bubble).to_contain_text("<img src=x")
    expect(bubble).to_contain_text('<a href="javascript:alert(1)">no</a>')
    expect(bubble.locator("a")).to_have_count(1)
    expect(bubble.locator("a")).to_have_attribute("href", "https://example.com/x")
    assert bubble.locator("img, script").count() == 0


def test_an_uploaded_picture_is_shown_and_opens_in_full(
    page: Page, simulator: Simulator, base_url: str
) -> None:
    media = simulator.media.upload("image", "table.png", picture(1400, 2600))
    request = {
        "touser": "WangFang",
        "msgtype": "image",
        "agentid": simulator.corp.agent_id,
        "image": {"media_id": media.media_id},
    }
    assert simulator.message_send.send(json.dumps(request).encode()).errcode == 0
    shown = page.locator(".row.theirs .bubble img")
    expect(shown).to_be_visible()
    page.wait_for_function("document.querySelector('.bubble img').naturalWidth === 1400")
    box = shown.bounding_box()
    assert box is not None
    assert abs(box["height"] / box["width"] - 2600 / 1400) < 0.05, "not distorted"
    assert box["height"] <= 461
    expect(page.locator(".person").first.locator(".preview")).to_have_text("[图片] table.png")
    with page.expect_popup() as opened:
        shown.click()
    assert opened.value.url == f"{base_url}/sim/media/{media.media_id}"
    answer = requests.get(opened.value.url, timeout=5)
    assert (answer.headers["Content-Type"], answer.content) == ("image/png", media.content)
    opened.value.close()


def test_only_images_that_are_there_are_served(base_url: str, simulator: Simulator) -> None:
    page = simulator.media.upload("file", "x.html", b"<script>alert(1)</script>")
    for media_id in (page.media_id, "unknown"):
        assert requests.get(f"{base_url}/sim/media/{media_id}", timeout=5).status_code == 404


def test_employees_have_conversations_of_their_own(page: Page, simulator: Simulator) -> None:
    answer(simulator, "给李雷的", "LiLei")
    person = page.locator(".person", has_text="李雷")
    expect(person.locator(".badge")).to_have_text("1")
    expect(person.locator(".preview")).to_have_text("给李雷的")
    expect(page.locator(".bubble")).to_have_count(0)
    person.click()
    expect(page.locator(".bubble")).to_have_text("给李雷的")
    expect(page.locator(".person", has_text="李雷").locator(".badge")).to_have_count(0)
    expect(page.locator("#identity")).to_contain_text("李雷（市场部）")


def test_a_cut_text_shows_what_a_user_would_see(page: Page, simulator: Simulator) -> None:
    answer(simulator, "汉" * 700)
    expect(page.locator(".row.theirs .bubble")).to_have_text("汉" * 682 + "\ufffd")
    expect(page.locator(".note")).to_contain_text("52 字节")


def test_a_message_the_app_did_not_take_is_marked(page: Page, recording_app: RecordingApp) -> None:
    recording_app.answer = lambda _: (500, b"")
    page.fill("#input", "有人吗")
    page.click("#send")
    expect(page.locator(".row.mine .state.failed")).to_be_visible()
    expect(page.locator(".row.typing")).to_have_count(0)
    page.click("#log-toggle")
    expect(page.locator("#log-lines li.bad", has_text="WangFang 的文本消息")).to_have_count(4)


def send(simulator: Simulator, msgtype: str, part: dict[str, object]) -> str:
    """The app sends one message of another kind; its msgid."""
    request = {
        "touser": "WangFang",
        "msgtype": msgtype,
        "agentid": simulator.corp.agent_id,
        msgtype: part,
    }
    answer = simulator.message_send.send(json.dumps(request).encode())
    assert answer.errcode == 0
    return answer.msgid


def test_markdown_is_drawn_in_wecom_and_hidden_in_the_wechat_plugin(
    page: Page, simulator: Simulator
) -> None:
    text = (
        '## 标题\n**粗** `码` <font color="info">绿</font> [链](https://example.com/)\n'
        "> 引用<b>x</b>"
    )
    send(simulator, "markdown", {"content": text})
    answer(simulator, "文字")
    bubble = page.locator('.bubble[data-kind="markdown"]')
    expect(bubble.locator(".md-heading")).to_have_text("标题")
    expect(bubble.locator("strong")).to_have_text("粗")
    expect(bubble.locator(".md-info")).to_have_text("绿")
    expect(bubble.locator("a")).to_have_attribute("href", "https://example.com/")
    expect(bubble.locator(".md-quote")).to_have_text("引用<b>x</b>")
    page.get_by_role("radio", name="微信插件").click()
    expect(bubble).to_have_text("暂不支持此消息类型，请在企业微信中查看")
    expect(page.locator('.bubble[data-kind="text"]')).to_have_text("文字")
    page.get_by_role("radio", name="企业微信").click()
    expect(bubble.locator("strong")).to_have_text("粗")


def test_a_card_is_pressed_and_updated_and_a_message_recalled(
    page: Page, simulator: Simulator, recording_app: RecordingApp
) -> None:
    card = {
        "card_type": "button_interaction",
        "main_title": {"title": "审批"},
        "task_id": "t",
        "button_list": [{"text": "同意", "key": "yes"}],
    }
    msgid = send(simulator, "template_card", card)
    page.get_by_role("button", name="同意").click()
    expect(page.locator("#log-lines li", has_text="template_card_event")).to_have_count(1)
    simulator.conversations.update_card(msgid, "已同意")
    expect(page.get_by_role("button", name="已同意")).to_be_disabled()
    simulator.conversations.recall(msgid)
    expect(page.locator(".messages .card")).to_have_count(0)
    expect(page.locator(".messages")).to_contain_text("应用撤回了一条消息")


def test_other_kinds_are_sent_from_the_page(page: Page, recording_app: RecordingApp) -> None:
    page.select_option("#kind", "voice")
    expect(page.locator(".row.mine .bubble")).to_have_text("[语音]")
    expect(page.locator("#log-lines li", has_text="语音消息")).to_have_count(1)


def test_the_fault_switches(page: Page, simulator: Simulator, recording_app: RecordingApp) -> None:
    page.click("#log-toggle")
    page.get_by_role("tab", name="故障").click()
    page.get_by_role("button", name="下一次发送：收到后断开").click()
    expect(page.locator("#rules li")).to_have_text("message/send：收到后断开（还有 1 次）")
    page.fill("#errcode", "60011")
    page.get_by_role("button", name="加上").click()
    expect(page.locator("#rules li")).to_have_count(2)
    assert [rule.value for rule in simulator.faults.rules] == [0, 60011]
    page.get_by_role("button", name="全部清除").click()
    expect(page.locator("#rules li")).to_have_count(0)
    page.check("#untrusted")
    page.wait_for_function("fetch('/sim/trusted-ips').then(r => r.json()).then(a => a.ips)")
    assert simulator.trusted_ips == frozenset()
    page.get_by_role("button", name="同一秒两个审批事件").click()
    expect(page.locator("#log-lines li", has_text="sys_approval_change")).to_have_count(2)
    page.get_by_role("tab", name="记录").click()
    expect(page.locator("#log-lines")).to_be_visible()


def test_a_reload_shows_the_same_conversation(page: Page, simulator: Simulator) -> None:
    answer(simulator, "一")
    answer(simulator, "二")
    expect(page.locator(".bubble")).to_have_text(["一", "二"])
    page.reload()
    expect(page.locator(".bubble")).to_have_text(["一", "二"])


def test_a_phone_shows_one_thing_at_a_time(browser: Browser, base_url: str) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 640})
    page.goto(base_url)
    expect(page.locator(".chat")).to_be_visible()
    expect(page.locator(".people")).to_be_hidden()
    page.click("#back")
    expect(page.locator(".people")).to_be_visible()
    page.locator(".person", has_text="张伟").click()
    expect(page.locator("#identity")).to_contain_text("张伟")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()

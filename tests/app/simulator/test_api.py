"""The APIs beside text messages: media, cards, recall, members, addresses."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from app.simulator.conversations import Change
from app.simulator.corp import Corp
from app.simulator.service import Simulator
from app.wecom import message as wecom_message
from tests.app.simulator.calls import Api
from tests.app.simulator.conftest import Clock, RecordingApp
from tests.app.simulator.test_caller import opened

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
CARD: dict[str, Any] = {
    "card_type": "button_interaction",
    "main_title": {"title": "审批", "desc": "张伟的报销"},
    "task_id": "task-7",
    "button_list": [{"text": "同意", "key": "yes"}, {"text": "拒绝", "key": "no"}],
}


@pytest.fixture
def api(base_url: str, simulator: Simulator) -> Api:
    return Api(base_url, simulator)


def test_media_go_up_come_back_and_expire(api: Api, clock: Clock, simulator: Simulator) -> None:
    uploaded = api.upload("file", "报表.xlsx", b"PK\x03\x04 hello")
    assert (uploaded["errcode"], uploaded["type"]) == (0, "file")
    found = api.download(uploaded["media_id"])
    assert found.content == b"PK\x03\x04 hello"
    assert "attachment" in found.headers["Content-Disposition"]
    assert api.send("file", {"media_id": uploaded["media_id"]})["errcode"] == 0
    (message,) = simulator.conversations.messages("WangFang", 0)
    assert (message.kind, message.text) == ("file", "[文件] 报表.xlsx")
    assert api.send("image", {"media_id": uploaded["media_id"]})["errcode"] == 40007
    clock.now_s += 3 * 86_400
    simulator.tokens.lifetime_s = 10**9
    api.token = simulator.tokens.issue().access_token
    assert api.download(uploaded["media_id"]).json()["errcode"] == 40007
    assert api.send("file", {"media_id": uploaded["media_id"]})["errcode"] == 40007


@pytest.mark.parametrize(
    ("kind", "content", "errcode"),
    [
        ("image", PNG, 0),
        ("image", b"\xff\xd8\xff\xe0 jpeg", 0),
        ("image", b"GIF89a......", 40009),
        ("voice", b"#!AMR\n12345", 0),
        ("voice", b"ID3 mp3 data", 40010),
        ("voice", b"#!AMR" + b"x" * 2 * 1024 * 1024, 45001),
        ("file", b"12345", 40006),
        ("hologram", b"123456789", 40004),
    ],
)
def test_media_rules(api: Api, kind: str, content: bytes, errcode: int) -> None:
    assert api.upload(kind, "a", content)["errcode"] == errcode


@pytest.mark.parametrize(
    ("msgtype", "part", "errcode"),
    [
        ("markdown", {"content": "**好**"}, 0),
        ("markdown", {"content": ""}, 44004),
        ("textcard", {"title": "一", "description": "二", "url": "http://127.0.0.1/"}, 0),
        ("textcard", {"title": "一", "description": "二"}, 40058),
        ("news", {"articles": [{"title": "一"}]}, 0),
        ("news", {"articles": []}, 40058),
        ("news", {"articles": [{"title": "一"}] * 9}, 40058),
        ("template_card", CARD, 0),
        ("template_card", {**CARD, "card_type": "x"}, 40058),
        ("template_card", {**CARD, "task_id": None}, 40058),
        ("template_card", {**CARD, "card_type": "text_notice"}, 42045),
        ("template_card", {**CARD, "card_type": "text_notice", "card_action": {"type": 1}}, 0),
    ],
)
def test_message_types(api: Api, msgtype: str, part: dict[str, Any], errcode: int) -> None:
    answer = api.send(msgtype, part)
    assert answer["errcode"] == errcode
    assert ("response_code" in answer) == (part == CARD)


def test_a_long_markdown_is_cut_as_text_is(api: Api, simulator: Simulator) -> None:
    assert api.send("markdown", {"content": "汉" * 700})["errcode"] == 0
    (message,) = simulator.conversations.messages("WangFang", 0)
    assert (message.kind, message.cut_bytes) == ("markdown", 52)


def test_a_card_is_updated_once(api: Api, simulator: Simulator, clock: Clock) -> None:
    code = api.send("template_card", CARD)["response_code"]
    body = {
        "agentid": simulator.corp.agent_id,
        "response_code": code,
        "button": {"replace_name": "已同意"},
    }
    assert api.post("message/update_template_card", body | {"response_code": "x"})["errcode"]
    assert api.post("message/update_template_card", body)["errcode"] == 0
    assert api.post("message/update_template_card", body)["errcode"] == 72023, "one use"
    changes = [e for e in simulator.conversations.since(0) if isinstance(e, Change)]
    assert [(c.user_id, c.change, c.text) for c in changes] == [("WangFang", "updated", "已同意")]
    late = api.send("template_card", CARD)["response_code"]
    clock.now_s += 72 * 3600
    api.token = simulator.tokens.issue().access_token
    answer = api.post("message/update_template_card", body | {"response_code": late})
    assert answer["errcode"] == 72023


def test_a_pressed_button_is_an_event_with_a_response_code(
    api: Api, base_url: str, simulator: Simulator, corp: Corp, recording_app: RecordingApp
) -> None:
    api.send("template_card", CARD)
    (card,) = simulator.conversations.messages("WangFang", 0)
    pressed = {"user": "WangFang", "msg_id": card.msg_id, "card": card.card, "key": "yes"}
    assert requests.post(f"{base_url}/sim/press", json=pressed, timeout=10).status_code == 202
    plain = opened(corp, recording_app.received[0])
    inbound = wecom_message.parse(plain)
    assert (inbound.event, inbound.event_key) == ("template_card_event", "yes")
    code = plain.decode().partition("<ResponseCode><![CDATA[")[2].partition("]]>")[0]
    update = {
        "agentid": corp.agent_id,
        "response_code": code,
        "template_card": {**CARD, "main_title": {"title": "办好了"}},
    }
    assert api.post("message/update_template_card", update)["errcode"] == 0
    nobody = pressed | {"user": "Nobody"}
    assert requests.post(f"{base_url}/sim/press", json=nobody, timeout=10).status_code == 404
    broken = pressed | {"card": "{"}
    assert requests.post(f"{base_url}/sim/press", json=broken, timeout=10).status_code == 400


def test_a_recalled_message_is_gone(api: Api, simulator: Simulator, clock: Clock) -> None:
    kept, recalled, old = (api.send("text", {"content": c})["msgid"] for c in "留收旧")
    assert api.post("message/recall", {"msgid": recalled})["errcode"] == 0
    assert api.post("message/recall", {"msgid": recalled})["errcode"] == 40058
    assert api.post("message/recall", {})["errcode"] == 40058
    assert [m.text for m in simulator.conversations.messages("WangFang", 0)] == ["留", "旧"]
    clock.now_s += 86_400
    api.token = simulator.tokens.issue().access_token
    assert api.post("message/recall", {"msgid": old})["errcode"] == 40058
    assert kept


def test_members_departments_and_addresses(api: Api) -> None:
    user = api.get("user/get", userid="wangfang")
    departments = {d["id"]: d["name"] for d in api.get("department/list")["department"]}
    assert (user["userid"], user["name"]) == ("WangFang", "王芳")
    assert [departments[number] for number in user["department"]] == ["销售部"]
    assert departments[1] == "胡同演示公司"
    assert api.get("user/get", userid="Nobody")["errcode"] == 60111
    assert api.get("getcallbackip")["ip_list"] == ["127.0.0.1"]
    assert api.get("get_api_domain_ip")["ip_list"] == ["127.0.0.1"]
    api.token = "invented"
    assert api.get("user/get", userid="wangfang")["errcode"] == 40014


def test_approvals_of_one_second_differ_in_their_number_only(
    base_url: str, corp: Corp, recording_app: RecordingApp
) -> None:
    url = f"{base_url}/sim/approvals"
    assert requests.post(url, json={"count": 3}, timeout=20).status_code == 200
    plains = {opened(corp, received) for received in recording_app.received}
    assert len(plains) == 3
    inbound = [wecom_message.parse(plain) for plain in plains]
    assert {m.event for m in inbound} == {"sys_approval_change"}
    assert {m.from_user_name for m in inbound} == {"sys"}
    assert len({m.create_time_s for m in inbound}) == 1
    assert len({m.dedupe_key for m in inbound}) == 3
    assert requests.post(url, json={"count": 0}, timeout=20).status_code == 400


def test_every_event_is_well_formed(
    base_url: str, simulator: Simulator, corp: Corp, recording_app: RecordingApp
) -> None:
    events = requests.get(f"{base_url}/sim/state", timeout=5).json()["events"]
    for event in events:
        simulator.event("WangFang", event).join(timeout=20)
    seen = [wecom_message.parse(opened(corp, r)).event for r in recording_app.received]
    # The gateway compares the names of events without case.
    assert sorted(seen) == sorted(event.lower() for event in events)
    assert {"enter_agent", "subscribe", "template_card_event", "sys_approval_change"} <= set(seen)

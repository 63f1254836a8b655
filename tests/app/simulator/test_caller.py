"""The caller side: retries, fresh envelopes, URL verification, passive replies, odd content."""

from __future__ import annotations

import threading
import time

import pytest

from app.simulator import callback_xml
from app.simulator.conversations import DeliveryState, LogLine
from app.simulator.corp import Corp
from app.simulator.crypto import new_encoding_aes_key
from app.simulator.service import Simulator, UnknownEmployeeError, UnknownKindError
from app.wecom import message as wecom_message
from app.wecom.crypto import WeComCrypto
from tests.app.simulator.conftest import Clock, Received, RecordingApp


def opened(corp: Corp, received: Received) -> bytes:
    """The plaintext, as the gateway's own crypto reads it."""
    query = received.query
    return WeComCrypto(corp.token, corp.encoding_aes_key, corp.corp_id).decrypt(
        received.body, query["msg_signature"], query["timestamp"], query["nonce"]
    )


def say(simulator: Simulator, text: str, **fields: str) -> str:
    bubble, delivering = simulator.say("WangFang", text, **fields)
    delivering.join(timeout=30)
    assert not delivering.is_alive()
    return bubble.msg_id


def delivery(simulator: Simulator, msg_id: str) -> tuple[str, int]:
    states = [
        e
        for e in simulator.conversations.since(0)
        if isinstance(e, DeliveryState) and e.msg_id == msg_id
    ]
    return states[-1].state, states[-1].attempts


def test_a_message_arrives_once_when_the_app_answers_200(
    simulator: Simulator, corp: Corp, recording_app: RecordingApp, clock: Clock
) -> None:
    msg_id = say(simulator, "分析华东区Q3销售TOP5产品")
    (received,) = recording_app.received
    inbound = wecom_message.parse(opened(corp, received))
    assert inbound.content == "分析华东区Q3销售TOP5产品"
    assert (inbound.corp_id, inbound.agent_id) == (corp.corp_id, str(corp.agent_id))
    assert (inbound.from_user_name, inbound.msg_id) == ("WangFang", msg_id)
    assert inbound.create_time_s == int(clock.now_s)
    assert delivery(simulator, msg_id) == ("delivered", 1)


@pytest.mark.parametrize("status", [500, 503, 302, 404, 204])
def test_anything_but_200_is_retried_three_times(
    simulator: Simulator, corp: Corp, recording_app: RecordingApp, status: int
) -> None:
    recording_app.answer = lambda _: (status, b"")
    msg_id = say(simulator, "你好")
    assert len(recording_app.received) == 4
    assert delivery(simulator, msg_id) == ("failed", 4)
    assert len({opened(corp, r) for r in recording_app.received}) == 1, "same MsgId and body"
    for varying in ("nonce", "msg_signature"):
        assert len({r.query[varying] for r in recording_app.received}) == 4
    assert len({r.body for r in recording_app.received}) == 4


def test_a_slow_app_is_cut_off_and_called_again(
    simulator: Simulator, corp: Corp, recording_app: RecordingApp
) -> None:
    release = threading.Event()

    def slow_once(_: Received) -> tuple[int, bytes]:
        if len(recording_app.received) == 1:
            release.wait(timeout=20)
        return 200, b""

    recording_app.answer = slow_once
    msg_id = say(simulator, "慢")
    release.set()
    assert delivery(simulator, msg_id) == ("delivered", 2)
    first, second = recording_app.received
    assert opened(corp, first) == opened(corp, second)


def test_an_app_that_is_down(corp: Corp) -> None:
    simulator = Simulator(corp, "http://127.0.0.1:9/wecom/callback", retry_pause_s=0.01)
    msg_id = say(simulator, "在吗")
    assert delivery(simulator, msg_id) == ("failed", 4)
    lines = [e for e in simulator.conversations.since(0) if isinstance(e, LogLine)]
    assert len(lines) == 4
    assert not any(line.ok for line in lines)
    assert not any("在吗" in line.title + line.detail for line in lines)


def test_msg_ids_grow_and_are_64_bit(simulator: Simulator) -> None:
    ids = [int(say(simulator, str(n))) for n in range(20)]
    assert ids == sorted(set(ids))
    assert all(2**53 < value < 2**63 for value in ids)


@pytest.mark.parametrize(
    "text",
    [
        "😀 emoji",
        "  spaces kept  ",
        "a\x08b\x00c",
        "<b>&amp;</b>",
        "x" * 10_000,
        "]]>",
        "",
        "换\n行",
    ],
)
def test_odd_content_arrives_untouched(
    simulator: Simulator, corp: Corp, recording_app: RecordingApp, text: str
) -> None:
    msg_id = say(simulator, text)
    plain = opened(corp, recording_app.received[0])
    assert delivery(simulator, msg_id) == ("delivered", 1)
    assert text.replace("]]>", "]]]]><![CDATA[>").encode() in plain
    if text.isprintable():
        assert wecom_message.parse(plain).content == text


@pytest.mark.parametrize("kind", sorted(callback_xml.KINDS))
def test_other_kinds(
    simulator: Simulator, corp: Corp, recording_app: RecordingApp, kind: str
) -> None:
    msg_id = say(simulator, "", kind=kind)
    inbound = wecom_message.parse(opened(corp, recording_app.received[0]))
    assert (inbound.msg_type, inbound.msg_id) == (kind, msg_id)
    assert bool(inbound.media_id) == (kind in {"image", "voice", "video", "file"})


def test_events_have_no_msg_id(
    simulator: Simulator, corp: Corp, recording_app: RecordingApp
) -> None:
    simulator.event("wangfang", "enter_agent").join(timeout=30)
    inbound = wecom_message.parse(opened(corp, recording_app.received[0]))
    assert (inbound.msg_type, inbound.event, inbound.msg_id) == ("event", "enter_agent", "")
    assert inbound.from_user_name == "WangFang"


def test_unknown_employee_and_kind(simulator: Simulator) -> None:
    with pytest.raises(UnknownEmployeeError):
        simulator.say("Nobody", "x")
    with pytest.raises(UnknownKindError):
        simulator.say("WangFang", "x", kind="hologram")


def passive(corp: Corp, text: str, key: str = "") -> bytes:
    crypto = WeComCrypto(corp.token, key or corp.encoding_aes_key, corp.corp_id)
    plain = callback_xml.document(
        {"ToUserName": "WangFang", "MsgType": "text", "Content": text, "CreateTime": 1}
    )
    return crypto.encrypt(plain.decode(), "n", str(int(time.time()))).encode()


def test_a_passive_reply_is_shown_and_a_foreign_one_is_not(
    simulator: Simulator, corp: Corp, recording_app: RecordingApp
) -> None:
    recording_app.answer = lambda _: (200, passive(corp, "收到\n谢谢"))
    say(simulator, "一")
    recording_app.answer = lambda _: (200, passive(corp, "假的", new_encoding_aes_key()))
    say(simulator, "二")
    recording_app.answer = lambda _: (200, b"<html>hello</html>")
    say(simulator, "三")
    shown = [m.text for m in simulator.conversations.messages("WangFang", 0) if m.sender == "app"]
    assert shown == ["收到\n谢谢"]


def test_url_verification(simulator: Simulator, corp: Corp, recording_app: RecordingApp) -> None:
    crypto = WeComCrypto(corp.token, corp.encoding_aes_key, corp.corp_id)

    def echo(received: Received) -> bytes:
        query = received.query
        return crypto.verify_url(
            query["msg_signature"], query["timestamp"], query["nonce"], query["echostr"]
        ).encode()

    recording_app.answer = lambda r: (200, echo(r))
    assert simulator.verify_url().ok
    assert recording_app.received[0].method == "GET"
    for status, dress in [
        (200, b"\xef\xbb\xbf%s"),
        (200, b'"%s"'),
        (200, b"%s\n"),
        (200, b"%.0s"),
        (201, b"%s"),
        (302, b"%s"),
    ]:
        recording_app.answer = lambda r, s=status, d=dress: (s, d % echo(r))
        assert not simulator.verify_url().ok

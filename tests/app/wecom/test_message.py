"""Parsing of decrypted bodies: every kind, every bad character, and the dedupe key."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wecom.errors import MalformedError
from app.wecom.message import InboundMessage, is_user_name, parse


def body(inner: str, *, user: str = "zhangsan", msg_type: str = "text") -> bytes:
    return (
        f"<xml><ToUserName><![CDATA[ww1]]></ToUserName><FromUserName><![CDATA[{user}]]>"
        f"</FromUserName><CreateTime>1736691927</CreateTime><MsgType><![CDATA[{msg_type}]]>"
        f"</MsgType>{inner}<AgentID>1000003</AgentID></xml>"
    ).encode()


def text(content: str, msg_id: str = "7459035031717794886") -> bytes:
    return body(f"<Content><![CDATA[{content}]]></Content><MsgId>{msg_id}</MsgId>")


def test_a_text_message() -> None:
    raw = text("你好")
    message = parse(raw)
    assert dataclasses.replace(message, body_sha256="") == InboundMessage(
        corp_id="ww1",
        agent_id="1000003",
        from_user_name="zhangsan",
        msg_type="text",
        msg_id="7459035031717794886",
        create_time_s=1736691927,
        content="你好",
    )
    assert len(message.body_sha256) == 64


@pytest.mark.parametrize(
    "content",
    [
        "  leading",
        "trailing \n",
        "a\tb\nc",
        "👨‍👩‍👧 🇨🇳 😀",
        "&lt; &amp; <a>",
        "<!DOCTYPE html>",
        "&#8;",
        "字" * 10_000,
    ],
)
def test_content_is_kept_as_it_is(content: str) -> None:
    assert parse(text(content)).content == content


@pytest.mark.parametrize("content", ["", " ", "　", "\n\n", "\t"])
def test_blank_content_is_empty(content: str) -> None:
    """wechatpy gives None for spaces."""
    assert parse(text(content)).content == ""


def test_a_message_without_content_is_empty() -> None:
    assert parse(body("<MsgId>1</MsgId>")).content == ""


@pytest.mark.parametrize("control", ["\x08", "\x00", "\x1f", "\x0b", "\ufffe", "\uffff"])
def test_control_characters_are_dropped_not_refused(control: str) -> None:
    """wechatpy: ExpatError, so 500, three retries and a lost message."""
    assert parse(text(f"查{control}一下")).content == "查一下"


@pytest.mark.parametrize("reference", ["&#8;", "&#x8;", "&#xFFFE;", "&#99999999999;", "&#xD800;"])
def test_references_to_forbidden_characters_are_dropped(reference: str) -> None:
    assert parse(body(f"<Content>查{reference}&#x4E00;下</Content>")).content == "查一下"


def test_broken_utf8_is_replaced_not_refused() -> None:
    assert parse(text("好X").replace(b"X", b"\xff")).content == "好\ufffd"


@given(st.text(max_size=200).filter(lambda t: "]]>" not in t))
def test_any_text_is_accepted(content: str) -> None:
    parse(text(content.encode("utf-8", "replace").decode()))


@given(st.binary(max_size=300))
def test_garbage_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        parse(raw)


@pytest.mark.parametrize(
    ("msg_type", "inner", "media_id"),
    [
        ("image", "<PicUrl>u</PicUrl><MediaId>m1</MediaId><MsgId>1</MsgId>", "m1"),
        ("voice", "<MediaId>m2</MediaId><Format>amr</Format><MsgId>1</MsgId>", "m2"),
        ("video", "<MediaId>m3</MediaId><ThumbMediaId>t</ThumbMediaId><MsgId>1</MsgId>", "m3"),
        ("location", "<Location_X>23.1</Location_X><Scale>20</Scale><MsgId>1</MsgId>", ""),
        ("link", "<Title>t</Title><Url>u</Url><MsgId>1</MsgId>", ""),
        ("file", "<MediaId>m4</MediaId><MsgId>1</MsgId>", "m4"),
        ("hologram", "<Anything><Deep>1</Deep></Anything><MsgId>1</MsgId>", ""),
    ],
)
def test_every_kind_of_message_is_typed(msg_type: str, inner: str, media_id: str) -> None:
    """wechatpy gives UnknownMessage with id 0 for files and kinds that it does not know."""
    message = parse(body(inner, msg_type=msg_type))
    assert (message.msg_type, message.media_id, message.msg_id) == (msg_type, media_id, "1")
    assert message.wants_answer


@pytest.mark.parametrize(
    ("event", "wants_answer"),
    [
        ("enter_agent", True),
        ("click", True),
        ("template_card_event", True),
        ("LOCATION", False),
        ("subscribe", False),
        ("unsubscribe", False),
        ("view", False),
        ("kf_msg_or_event", False),
        ("batch_job_result", False),
        ("sys_approval_change", False),
        ("change_contact", False),
        ("unheard_of", False),
    ],
)
def test_events_say_whether_somebody_waits(event: str, wants_answer: bool) -> None:
    raw = body(f"<Event>{event}</Event><EventKey>k</EventKey>", msg_type="event")
    message = parse(raw)
    assert (message.event, message.event_key, message.msg_id) == (event.lower(), "k", "")
    assert message.wants_answer is wants_answer


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"<xml><FromUserName>a</FromUserName></xml>", "MsgType"),
        (b"<xml><MsgType>text</MsgType></xml>", "FromUserName"),
        (text("x").replace(b"1736691927", b"soon"), "CreateTime"),
        (text("x").replace(b"1736691927", b"9" * 5000), "CreateTime"),
        (text("x").replace(b"<MsgType>", b"<MsgType>a</MsgType><MsgType>"), "MsgType"),
        (body("<Content><a>1</a></Content>"), "Content"),
        (body("", user="@all"), "FromUserName"),
        (b"", "empty"),
        (b"<xml/>", "xml"),
    ],
)
def test_what_is_missing_or_wrong_is_named(raw: bytes, named: str) -> None:
    with pytest.raises(MalformedError, match=named):
        parse(raw)


@pytest.mark.parametrize("name", ["zhangsan", "a_b-c@d.e", "wmO7sqEQAA", "张三"])
def test_a_member_name(name: str) -> None:
    assert is_user_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "@all", "@ALL", "a\ud800", "a|b", "a b", "a}b", "{a", "a:b", "a\n", "a\x00", "x" * 65],
)
def test_not_a_member_name(name: str) -> None:
    """``@all`` and ``a|b`` would send to others; braces and colons would change store keys."""
    assert not is_user_name(name)


def test_a_redelivery_has_the_same_key() -> None:
    assert parse(text("你好")).dedupe_key == parse(text("你好")).dedupe_key


def test_one_msg_id_of_two_users_gives_two_keys() -> None:
    """binarywang/WxJava#333: MsgId collides across users."""
    one, other = (parse(body("<MsgId>5</MsgId>", user=user)) for user in ("a", "b"))
    assert one.dedupe_key != other.dedupe_key


def test_events_of_one_user_in_one_second_differ_by_their_details() -> None:
    """binarywang/WxJava#3088: two approvals in one second differ in SpNo only."""
    raws = [
        body(
            f"<Event>sys_approval_change</Event><ApprovalInfo><SpNo>{number}</SpNo></ApprovalInfo>",
            user="sys",
            msg_type="event",
        )
        for number in ("202211150018", "202211150019", "202211150018")
    ]
    first, second, again = (parse(raw).dedupe_key for raw in raws)
    assert first != second
    assert first == again


def test_a_message_without_id_is_known_by_its_body() -> None:
    one, other = parse(body("<Content>a</Content>")), parse(body("<Content>b</Content>"))
    assert one.dedupe_key != other.dedupe_key

"""The callback over HTTP on a real Redis: what gets in, what stays out, and never a 500."""

from __future__ import annotations

import base64
import json
import logging
import time
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
import redis
from flask.testing import FlaskClient
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import MAX_BODY_BYTES, create_app
from app.callback import FRESH_S
from app.dispatch import TURNS_QUEUE, make_celery, queue_key
from app.settings import Settings
from app.store.app_state import AppState
from app.store.keys import user_tag
from app.store.server import RedisServer, connect
from tests.app.conftest import Queue
from tests.app.wecom import sealing
from tests.app.wecom.sealing import (
    AGENT,
    CORP,
    envelope,
    message_xml,
    query,
    seal,
    sign,
    text_xml,
)

PATH = "/wecom/callback"


def post(http: FlaskClient, encrypted: str, path: str = PATH) -> TestResponse:
    return http.post(path, query_string=query(encrypted), data=envelope(encrypted))


def deliver(http: FlaskClient, xml: bytes) -> TestResponse:
    return post(http, seal(xml))


def assert_accepted(response: TestResponse) -> None:
    assert (response.status_code, response.data) == (200, b"")


# --- accepted ---


@pytest.mark.parametrize("path", [PATH, PATH + "/"])
def test_a_text_message_is_queued_and_answered_empty(
    http: FlaskClient, queue: Queue, path: str
) -> None:
    assert_accepted(post(http, seal(text_xml("分析华东区Q3销售TOP5产品")), path))
    (turn,) = queue.of("zhangsan")
    assert (turn.text, turn.status, turn.msg_type) == ("分析华东区Q3销售TOP5产品", "queued", "text")


def test_a_worker_is_woken_for_the_user_once(http: FlaskClient, redis_client: redis.Redis) -> None:
    xml = text_xml("你好")
    for _ in range(3):
        assert_accepted(deliver(http, xml))
    tasks = [json.loads(task) for task in redis_client.lrange(queue_key(TURNS_QUEUE), 0, -1)]
    assert [task["headers"]["task"] for task in tasks] == ["hutong.wake"]
    arguments = json.loads(base64.b64decode(tasks[0]["body"]))[0]
    assert arguments == [user_tag(CORP, AGENT, "zhangsan")]


def test_three_deliveries_of_one_message_are_one_turn(http: FlaskClient, queue: Queue) -> None:
    """easy-wx/wecom-app-svr#1; each delivery has its own ciphertext."""
    for _ in range(3):
        assert_accepted(deliver(http, text_xml("你好")))
    assert len(queue.of("zhangsan")) == 1


def test_messages_of_one_user_keep_their_order(http: FlaskClient, queue: Queue) -> None:
    for number in range(10):
        deliver(http, text_xml(str(number), msg_id=f"id{number}"))
    assert [turn.text for turn in queue.of("zhangsan")] == [str(n) for n in range(10)]


def test_one_msg_id_of_two_users_is_two_turns(http: FlaskClient, queue: Queue) -> None:
    for user in ("zhangsan", "lisi"):
        deliver(http, text_xml("你好", user=user))
    assert len(queue.of("zhangsan")) == len(queue.of("lisi")) == 1


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("", ""),
        ("   ", ""),
        ("  两边  ", "  两边  "),
        ("😀👨‍👩‍👧🇨🇳", "😀👨‍👩‍👧🇨🇳"),
        ("查\x08一\x00下", "查一下"),
        ("<!DOCTYPE html>&lt;", "<!DOCTYPE html>&lt;"),
        ("长" * 10_000, "长" * 10_000),
    ],
)
def test_odd_texts_are_accepted(http: FlaskClient, queue: Queue, sent: str, kept: str) -> None:
    assert_accepted(deliver(http, text_xml(sent)))
    assert [turn.text for turn in queue.of("zhangsan")] == [kept]


@pytest.mark.parametrize("msg_type", ["image", "voice", "video", "file", "location", "hologram"])
def test_kinds_we_cannot_read_are_queued_for_a_polite_answer(
    http: FlaskClient, queue: Queue, msg_type: str
) -> None:
    """A file without any reaction is the commonest complaint about such gateways."""
    xml = message_xml("<MediaId>m1</MediaId><MsgId>1</MsgId>", msg_type=msg_type)
    assert_accepted(deliver(http, xml))
    assert [turn.msg_type for turn in queue.of("zhangsan")] == [msg_type]


@pytest.mark.parametrize("event", ["enter_agent", "click", "template_card_event"])
def test_events_of_a_person_are_queued(http: FlaskClient, queue: Queue, event: str) -> None:
    xml = message_xml(f"<Event>{event}</Event><EventKey>k</EventKey>", msg_type="event")
    assert_accepted(deliver(http, xml))
    assert [(turn.event, turn.event_key) for turn in queue.of("zhangsan")] == [(event, "k")]


@pytest.mark.parametrize(
    "event",
    ["LOCATION", "subscribe", "unsubscribe", "view", "kf_msg_or_event", "change_contact", "new"],
)
def test_events_nobody_waits_on_are_dropped_with_a_log_line(
    http: FlaskClient, queue: Queue, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    xml = message_xml(f"<Event>{event}</Event>", msg_type="event")
    assert_accepted(deliver(http, xml))
    assert queue.of("zhangsan") == []
    assert "event dropped" in caplog.messages


def test_a_message_without_agent_id_is_taken_for_our_app(http: FlaskClient, queue: Queue) -> None:
    assert_accepted(deliver(http, text_xml("你好").replace(b"AgentID>", b"Other>")))
    assert len(queue.of("zhangsan")) == 1


def test_complaint_3_a_send_failure_never_reaches_the_callback(
    http: FlaskClient, queue: Queue, redis_client: redis.Redis
) -> None:
    """mostlittlebee/chatgpt-on-wecom#9: 60020 in the handler -> 500 -> retries -> doubled work."""
    app = AppState(redis_client)
    app.raise_alert(f"{CORP}:{AGENT}:zhangsan", 60020, "x", "203.0.113.7")
    app.pause(f"{CORP}:{AGENT}:zhangsan", "errcode 60020", 60)
    for _ in range(3):
        assert_accepted(deliver(http, text_xml("你好")))
    assert len(queue.of("zhangsan")) == 1


def test_a_lost_wake_is_still_200(
    configured: Settings, redis_client: redis.Redis, queue: Queue, tmp_path: Path
) -> None:
    """Once stored the message is safe: the sweeper wakes a worker later."""
    with RedisServer(tmp_path / "gone") as broker:
        app = create_app(configured, redis_client, make_celery(broker.url))
    with app.test_client() as http:
        assert_accepted(deliver(http, text_xml("你好")))
    assert len(queue.of("zhangsan")) == 1


# --- refused ---


@pytest.mark.parametrize("away_s", [-FRESH_S - 60, FRESH_S + 60])
def test_a_recording_played_back_after_its_key_was_forgotten_is_403(
    http: FlaskClient, queue: Queue, away_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "TIMESTAMP", str(int(time.time() + away_s)))
    assert deliver(http, text_xml("你好")).status_code == 403
    assert queue.of("zhangsan") == []


@pytest.mark.parametrize("away_s", [-FRESH_S + 60, FRESH_S - 60])
def test_a_clock_that_is_hours_wrong_loses_nothing(
    http: FlaskClient, queue: Queue, away_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "TIMESTAMP", str(int(time.time() + away_s)))
    assert_accepted(deliver(http, text_xml("你好")))
    assert len(queue.of("zhangsan")) == 1


def test_a_timestamp_that_is_no_number_is_400(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "TIMESTAMP", "soon")
    assert deliver(http, text_xml("你好")).status_code == 400


def test_a_wrong_signature_is_403(http: FlaskClient, queue: Queue) -> None:
    encrypted = seal(text_xml("x"))
    wrong = {**query(encrypted), "msg_signature": "0" * 40}
    response = http.post(PATH, query_string=wrong, data=envelope(encrypted))
    assert response.status_code == 403
    assert queue.of("zhangsan") == []


def test_a_wrong_key_is_403_and_the_log_says_which(
    http: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert post(http, seal(text_xml("x"), key="B" * 42 + "A")).status_code == 403
    assert any("EncodingAESKey" in str(record.__dict__["fields"]) for record in caplog.records)


def test_another_corp_is_403(http: FlaskClient) -> None:
    assert post(http, seal(text_xml("x"), corp="wwOther")).status_code == 403


def test_another_agent_is_403(http: FlaskClient, queue: Queue) -> None:
    """Answering for another app of the corp would be refused by WeCom anyway (301002)."""
    xml = message_xml("<Content>x</Content><MsgId>1</MsgId>", agent="1000099")
    assert deliver(http, xml).status_code == 403
    assert queue.of("zhangsan") == []


@pytest.mark.parametrize("name", ["msg_signature", "timestamp", "nonce"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_missing_parameter_is_400_and_named(http: FlaskClient, name: str, method: str) -> None:
    encrypted = seal(b"1")
    parameters = {**query(encrypted), "echostr": encrypted}
    for broken in ({k: v for k, v in parameters.items() if k != name}, {**parameters, name: ""}):
        response = http.open(PATH, method=method, query_string=broken, data=envelope(encrypted))
        assert (response.status_code, name in response.text) == (400, True)


def test_signature_in_place_of_msg_signature_is_explained(http: FlaskClient) -> None:
    """wechatpy/wechatpy#739."""
    encrypted = seal(b"1")
    parameters = query(encrypted)
    parameters["signature"] = parameters.pop("msg_signature")
    response = http.post(PATH, query_string=parameters, data=envelope(encrypted))
    assert response.status_code == 400
    assert "missing parameter: msg_signature" in response.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"<xml>",
        b"<xml><ToUserName>x</ToUserName></xml>",
        b"\xff\xfe\x00",
        "<xml><Encrypt>中</Encrypt>".encode("gbk"),
        b'<!DOCTYPE x [<!ENTITY a "b">]><xml><Encrypt>&a;</Encrypt></xml>',
        b"{}",
    ],
)
def test_a_body_that_is_no_envelope_is_400(http: FlaskClient, body: bytes) -> None:
    assert http.post(PATH, query_string=query("x"), data=body).status_code == 400


@pytest.mark.parametrize(
    "xml",
    [b"", b"hello", b"<xml/>", b"<xml><MsgType>text</MsgType></xml>", text_xml("x", user="@all")],
)
def test_a_signed_body_that_is_no_message_is_400(http: FlaskClient, xml: bytes) -> None:
    assert deliver(http, xml).status_code == 400


def test_a_cut_ciphertext_is_400(http: FlaskClient) -> None:
    cut = base64.b64encode(base64.b64decode(seal(text_xml("x")))[:-5]).decode()
    assert post(http, cut).status_code == 400


def test_an_oversized_body_is_413(http: FlaskClient, queue: Queue) -> None:
    response = http.post(PATH, query_string=query("x"), data=b"x" * (MAX_BODY_BYTES + 1))
    assert response.status_code == 413
    assert_accepted(deliver(http, text_xml("长" * 40_000)))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_other_methods_are_405(http: FlaskClient, method: str) -> None:
    assert http.open(PATH, method=method).status_code == 405


def test_a_wrong_path_names_the_right_one(http: FlaskClient) -> None:
    response = http.get("/wecom/callbak?echostr=x")
    assert response.status_code == 404
    assert PATH in response.text


@hypothesis_settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.binary(max_size=300) | st.binary(max_size=300).map(lambda b: envelope(b.hex())),
    parameters=st.dictionaries(
        st.sampled_from(["msg_signature", "timestamp", "nonce", "echostr", "signature"]),
        st.text(max_size=50) | st.just(sign("")),
        max_size=5,
    ),
    method=st.sampled_from(["GET", "POST"]),
)
@example(body=b"\x00", parameters={"msg_signature": "é"}, method="POST")
def test_garbage_is_always_a_4xx(
    http: FlaskClient, body: bytes, parameters: dict[str, str], method: str
) -> None:
    encoded = urlencode(parameters, errors="replace")
    response = http.open(PATH, method=method, query_string=encoded, data=body)
    assert response.status_code in (400, 403)


@hypothesis_settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda t: text_xml_of(t)))
def test_anything_rightly_signed_is_accepted_or_a_4xx(http: FlaskClient, xml: bytes) -> None:
    assert deliver(http, xml).status_code in (200, 400)


def text_xml_of(content: str) -> bytes:
    return text_xml("").replace(b"<![CDATA[]]>", content.encode("utf-8", "replace"))


# --- Redis in trouble ---


def test_503_when_redis_is_gone_and_the_retry_gets_in(configured: Settings, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "own")
    server.start()
    xml = text_xml("你好")
    try:
        with connect(server.url, timeout_s=1) as client:
            http = create_app(configured, client).test_client()
            server.kill()
            assert deliver(http, xml).status_code == 503
            server.start()
            assert_accepted(deliver(http, xml))
            assert len(Queue(client).of("zhangsan")) == 1
    finally:
        server.stop()


def test_503_when_redis_is_full(configured: Settings, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "own") as server, connect(server.url) as client:
        http = create_app(configured, client).test_client()
        client.config_set("maxmemory", 1)
        assert deliver(http, text_xml("你好")).status_code == 503
        client.config_set("maxmemory", 0)
        assert_accepted(deliver(http, text_xml("你好")))
        assert len(Queue(client).of("zhangsan")) == 1


# --- URL verification ---


def verify(http: FlaskClient, echostr: str, raw: str) -> TestResponse:
    parameters = urlencode(query(echostr))
    return http.get(f"{PATH}?{parameters}&echostr={raw}")


def echostr_with_plus() -> str:
    while "+" not in (echostr := seal(b"1616140317555161061")):
        pass
    return echostr


@pytest.mark.parametrize("path", [PATH, PATH + "/"])
def test_url_verification_answers_the_bare_plaintext(http: FlaskClient, path: str) -> None:
    echostr = seal(b"1616140317555161061")
    response = http.get(path, query_string={**query(echostr), "echostr": echostr})
    assert (response.status_code, response.data) == (200, b"1616140317555161061")
    assert response.mimetype == "text/plain"


def test_a_literal_plus_in_echostr_verifies(http: FlaskClient) -> None:
    echostr = echostr_with_plus()
    assert verify(http, echostr, echostr).data == b"1616140317555161061"


def test_an_encoded_plus_in_echostr_verifies(http: FlaskClient) -> None:
    echostr = echostr_with_plus()
    assert verify(http, echostr, quote(echostr, safe="")).data == b"1616140317555161061"


def test_a_doubly_encoded_echostr_is_403_and_the_log_says_why(
    http: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    echostr = echostr_with_plus()
    assert verify(http, echostr, quote(quote(echostr, safe=""), safe="")).status_code == 403
    assert any("encodes the query twice" in str(r.__dict__["fields"]) for r in caplog.records)


def test_a_missing_echostr_is_400_and_named(http: FlaskClient) -> None:
    response = http.get(PATH, query_string={"msg_signature": "x", "timestamp": "1", "nonce": "2"})
    assert (response.status_code, "echostr" in response.text) == (400, True)


@pytest.mark.parametrize("echostr", ["x", "中", "AAAA", "%%"])
def test_a_garbage_echostr_rightly_signed_is_4xx(http: FlaskClient, echostr: str) -> None:
    response = http.get(PATH, query_string={**query(echostr), "echostr": echostr})
    assert response.status_code == 400

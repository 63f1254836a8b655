"""The client against real HTTP: each outcome is one typed result."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from app.wecom.access_token import AccessToken
from app.wecom.client import TokenFetcher, WeComClient
from app.wecom.errors import (
    Action,
    ApiError,
    SendUnknownError,
    TransportError,
    WeComError,
    action_for,
)
from tests.app.wecom.fake_api import (
    FakeApi,
    Outcome,
    answer,
    error,
    hang_up,
    raw,
    serve,
    silence,
)
from tests.app.wecom.test_access_token import MemoryCache

SECRET = "s3cr3t-of-the-app"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serve() as running:
        yield running


@pytest.fixture
def client(api: FakeApi) -> Iterator[WeComClient]:
    with make_client(api.url) as made:
        yield made


def make_client(url: str, timeout_s: float = 5.0) -> WeComClient:
    fetch = TokenFetcher(url, "ww1", SECRET, timeout_s)
    source = AccessToken("ww1", "1000003", fetch, MemoryCache())
    return WeComClient(url, "ww1", "1000003", SECRET, source, timeout_s)


def test_a_text_is_sent_as_real_utf8(api: FakeApi, client: WeComClient) -> None:
    """``requests(json=)`` escapes, and WeCom refuses some escapes (40033)."""
    result = client.send_text("zhangsan", "你好😀\n<a>")
    assert (result.errcode, result.msgid) == (0, "m1")
    token, body = api.sends[0]
    assert token == "token-1"
    assert "你好😀\\n<a>".encode() in body
    assert json.loads(body) == {
        "touser": "zhangsan",
        "msgtype": "text",
        "agentid": 1000003,
        "text": {"content": "你好😀\n<a>"},
        "safe": 0,
    }


def test_the_token_is_fetched_with_corp_and_secret_once(api: FakeApi, client: WeComClient) -> None:
    client.send_text("a", "1")
    client.send_text("a", "2")
    assert api.gettoken == [{"corpid": ["ww1"], "corpsecret": [SECRET]}]


def test_a_resend_with_duplicate_check_is_the_same_bytes(api: FakeApi, client: WeComClient) -> None:
    for _ in range(2):
        client.send_text("a", "1", duplicate_check=True)
    assert api.sends[0] == api.sends[1]
    assert json.loads(api.sends[0][1])["enable_duplicate_check"] == 1


def test_control_characters_and_lone_surrogates_are_dropped(
    api: FakeApi, client: WeComClient
) -> None:
    client.send_text("a", "x\x08\x00\ud800y")
    assert json.loads(api.sends[0][1])["text"]["content"] == "xy"


@pytest.mark.parametrize("errcode", [40014, 41001, 42001, 40001])
def test_a_dead_token_is_refreshed_once_and_the_message_sent(
    api: FakeApi, client: WeComClient, errcode: int
) -> None:
    api.outcomes = [error(errcode)]
    assert client.send_text("a", "1").msgid == "m1"
    assert [token for token, _ in api.sends] == ["token-1", "token-2"]
    assert api.sends[0][1] == api.sends[1][1]


def test_a_token_that_stays_dead_ends_after_one_refresh(api: FakeApi, client: WeComClient) -> None:
    """wechatpy: RecursionError after 487 gettoken and 486 sends."""
    api.default = error(42001)
    with pytest.raises(ApiError) as caught:
        client.send_text("a", "1")
    assert (caught.value.errcode, caught.value.action) == (42001, "retry")
    assert (len(api.gettoken), len(api.sends)) == (2, 2)


@pytest.mark.parametrize(
    ("errcode", "action"),
    [
        (-1, "retry"),
        (6000, "retry"),
        (45033, "retry"),
        (45009, "wait"),
        (60020, "pause"),
        (48002, "pause"),
        (301002, "pause"),
        (81013, "give_up"),
        (60111, "give_up"),
        (40033, "bug"),
        (44004, "bug"),
        (123456, "retry"),
    ],
)
def test_every_error_code_says_what_to_do(
    api: FakeApi, client: WeComClient, errcode: int, action: Action
) -> None:
    api.outcomes = [error(errcode, "because")]
    with pytest.raises(ApiError) as caught:
        client.send_text("a", "1")
    failure = caught.value
    assert (failure.errcode, failure.errmsg, failure.action) == (errcode, "because", action)
    assert failure.retryable is (action in ("retry", "wait"))


@pytest.mark.parametrize("field", ["invaliduser", "unlicenseduser"])
def test_a_refused_receiver_with_errcode_0_is_a_failure(
    api: FakeApi, client: WeComClient, field: str
) -> None:
    """wechatpy reports success."""
    api.outcomes = [answer({"errcode": 0, "errmsg": "ok", field: "zhangsan", "msgid": "m1"})]
    with pytest.raises(ApiError) as caught:
        client.send_text("ZhangSan", "1")
    assert (caught.value.errcode, caught.value.action) == (0, "give_up")


def test_an_empty_invaliduser_is_success(api: FakeApi, client: WeComClient) -> None:
    api.outcomes = [answer({"errcode": 0, "errmsg": "ok", "invaliduser": "", "msgid": "m9"})]
    assert client.send_text("a", "1").msgid == "m9"


def test_60020_names_the_address_to_allow() -> None:
    errmsg = "not allow to access from your ip, hint: [165], from ip: 203.0.113.7, more info at x"
    assert ApiError(60020, errmsg, "pause").egress_ip == "203.0.113.7"
    assert ApiError(60020, "no address", "pause").egress_ip == ""


def test_40001_on_gettoken_is_a_wrong_secret(api: FakeApi, client: WeComClient) -> None:
    api.gettoken_outcome = error(40001, "invalid credential")
    with pytest.raises(ApiError) as caught:
        client.send_text("a", "1")
    assert (caught.value.action, api.sends) == ("pause", [])
    assert action_for(40001) == "refresh_token"


def test_no_listener_is_retryable_and_surely_not_sent() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(TransportError) as caught:
        make_client(url).send_text("a", "1")
    assert caught.value.retryable


def test_a_refused_connection_on_send_is_surely_not_sent(api: FakeApi) -> None:
    client = WeComClient("http://127.0.0.1:9", "ww1", "1", SECRET, _Fixed())
    with pytest.raises(TransportError) as caught:
        client.send_text("a", "1")
    assert caught.value.retryable


class _Fixed:
    def get(self) -> str:
        return "token-secret"

    def discard(self, failed: str) -> None:
        raise AssertionError("nothing refused this token")


def test_a_name_that_does_not_resolve_is_surely_not_sent() -> None:
    client = WeComClient("http://host.invalid", "ww1", "1", SECRET, _Fixed())
    with pytest.raises(TransportError):
        client.send_text("a", "1")


def test_a_read_timeout_is_unknown(api: FakeApi) -> None:
    api.outcomes = [silence(1.0)]
    with make_client(api.url, timeout_s=0.2) as client, pytest.raises(SendUnknownError):
        client.send_text("a", "1")
    assert len(api.sends) == 1


def test_a_connection_broken_after_the_request_is_unknown(
    api: FakeApi, client: WeComClient
) -> None:
    api.outcomes = [hang_up]
    with pytest.raises(SendUnknownError):
        client.send_text("a", "1")
    assert len(api.sends) == 1


@pytest.mark.parametrize(
    "body", [b"<html>", b"", b"[]", b"\xff", b'{"errcode": "x"}', b'{"errcode": null}']
)
def test_a_200_that_is_no_answer_is_unknown(api: FakeApi, client: WeComClient, body: bytes) -> None:
    api.outcomes = [raw(body)]
    with pytest.raises(SendUnknownError):
        client.send_text("a", "1")


@pytest.mark.parametrize(
    ("status", "retryable"), [(500, True), (503, True), (429, True), (404, False)]
)
def test_other_statuses_are_transport_errors(
    api: FakeApi, client: WeComClient, status: int, retryable: bool
) -> None:
    api.outcomes = [raw(b"no", status)]
    with pytest.raises(TransportError, match=str(status)) as caught:
        client.send_text("a", "1")
    assert caught.value.retryable is retryable


def test_a_redirect_is_not_followed(api: FakeApi, client: WeComClient) -> None:
    api.outcomes = [raw(b"", 302, (("Location", f"{api.url}/cgi-bin/message/send"),))]
    with pytest.raises(TransportError, match="302"):
        client.send_text("a", "1")
    assert len(api.sends) == 1


@pytest.mark.parametrize(
    "body", [b"", b"nope", b'{"errcode": 0}', b'{"errcode": "0"}', b'{"access_token": ""}', b"[1]"]
)
def test_a_gettoken_answer_without_a_token_is_retryable(api: FakeApi, body: bytes) -> None:
    api.gettoken_outcome = raw(body)
    with pytest.raises(TransportError) as caught:
        TokenFetcher(api.url, "ww1", SECRET)()
    assert caught.value.retryable


def test_no_error_shows_a_secret_or_token(api: FakeApi) -> None:
    """requests puts the URL, and with it the secret, into its exceptions."""
    failures: list[WeComError] = []
    for outcome in (hang_up, silence(0.5), raw(b"", 500)):
        api.gettoken_outcome = outcome
        with pytest.raises(WeComError) as caught:
            TokenFetcher(api.url, "ww1", SECRET, timeout_s=0.1)()
        failures.append(caught.value)
        api.outcomes = [outcome]
        client = WeComClient(api.url, "ww1", "1", SECRET, _Fixed(), 0.1)
        with client, pytest.raises(WeComError) as caught:
            client.send_text("a", "1")
        failures.append(caught.value)
    for failure in failures:
        shown = f"{failure} {failure!r} {failure.__cause__!r}"
        assert SECRET not in shown
        assert "token-secret" not in shown
        assert failure.__suppress_context__ or failure.__context__ is None


def test_markdown_is_a_type_of_its_own(api: FakeApi, client: WeComClient) -> None:
    client.send_markdown("zhangsan", "**好**", duplicate_check=True)
    sent = json.loads(api.sends[0][1])
    assert (sent["msgtype"], sent["markdown"]) == ("markdown", {"content": "**好**"})
    assert sent["enable_duplicate_check"] == 1
    assert "text" not in sent


def test_departments_of_a_member(api: FakeApi, client: WeComClient) -> None:
    api.outcomes = [answer({"errcode": 0, "userid": "zhangsan", "department": [1, 22]})]
    assert client.departments_of("zhangsan") == {"1", "22"}
    assert api.user_gets == [{"access_token": ["token-1"], "userid": ["zhangsan"]}]


def test_departments_refresh_a_dead_token_once(api: FakeApi, client: WeComClient) -> None:
    api.outcomes = [error(42001), answer({"errcode": 0, "department": []})]
    assert client.departments_of("zhangsan") == frozenset()
    assert [query["access_token"] for query in api.user_gets] == [["token-1"], ["token-2"]]


def test_an_unknown_member_is_an_api_error(api: FakeApi, client: WeComClient) -> None:
    api.outcomes = [error(60111)]
    with pytest.raises(ApiError) as caught:
        client.departments_of("nobody")
    assert caught.value.action == "give_up"


@pytest.mark.parametrize("outcome", [hang_up, raw(b"x"), answer({"errcode": 0}), raw(b"", 502)])
def test_departments_without_an_answer_are_a_transport_error(
    api: FakeApi, client: WeComClient, outcome: Outcome
) -> None:
    api.outcomes = [outcome]
    with pytest.raises(TransportError):
        client.departments_of("zhangsan")


UPLOADED = answer({"errcode": 0, "errmsg": "ok", "type": "image", "media_id": "m-1"})


def test_an_image_is_uploaded_as_a_form_and_sent_by_its_id(
    api: FakeApi, client: WeComClient
) -> None:
    api.outcomes = [UPLOADED]
    media_id = client.upload_image("t1.png", b"\x89PNG\x00\xff")
    client.send_image("zhangsan", media_id, duplicate_check=True)
    client.send_image("zhangsan", media_id, duplicate_check=True)
    ((query, form),) = api.uploads
    assert query == {"access_token": ["token-1"], "type": ["image"]}
    assert b'name="media"; filename="t1.png"' in form
    assert b"\x89PNG\x00\xff" in form
    sent = [json.loads(body) for _, body in api.sends]
    assert (sent[0]["msgtype"], sent[0]["image"]) == ("image", {"media_id": "m-1"})
    assert sent[0]["enable_duplicate_check"] == 1
    assert api.sends[0] == api.sends[1], "the duplicate check compares every byte"


@pytest.mark.parametrize(
    ("outcome", "retryable"),
    [
        (hang_up, True),
        (raw(b"<html>"), True),
        (raw(b"", 502), True),
        (raw(b"", 404), False),
        (answer({"errcode": 0}), True),
        (answer({"errcode": "0"}), True),
    ],
)
def test_an_upload_without_a_usable_answer_may_be_repeated(
    api: FakeApi, client: WeComClient, outcome: Outcome, retryable: bool
) -> None:
    api.outcomes = [outcome]
    with pytest.raises(TransportError) as failed:
        client.upload_image("t1.png", b"png")
    assert failed.value.retryable is retryable
    assert "token-1" not in str(failed.value)


def test_a_silent_upload_ends_at_the_time_out(api: FakeApi) -> None:
    api.outcomes = [silence(2)]
    with make_client(api.url, timeout_s=0.2) as client, pytest.raises(TransportError):
        client.upload_image("t1.png", b"png")


def test_an_upload_renews_a_dead_token_and_gives_up_on_what_is_no_image(
    api: FakeApi, client: WeComClient
) -> None:
    api.outcomes = [error(42001), UPLOADED, error(40009)]
    assert client.upload_image("t1.png", b"png") == "m-1"
    assert [query["access_token"] for query, _ in api.uploads] == [["token-1"], ["token-2"]]
    with pytest.raises(ApiError) as refused:
        client.upload_image("t1.png", b"png")
    assert (refused.value.errcode, refused.value.action) == (40009, "bug")

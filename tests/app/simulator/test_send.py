"""message/send and gettoken over real HTTP, rule by rule."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from app.simulator.corp import Corp
from app.simulator.send import TEXT_LIMIT_BYTES, visible_text
from app.simulator.service import Simulator
from app.wecom.client import TokenFetcher, WeComClient
from app.wecom.errors import ApiError
from tests.app.simulator.conftest import Clock


def get_token(base_url: str, corp_id: str, corp_secret: str) -> dict[str, Any]:
    answer = requests.get(
        f"{base_url}/cgi-bin/gettoken",
        params={"corpid": corp_id, "corpsecret": corp_secret},
        timeout=5,
    )
    assert answer.status_code == 200
    return answer.json()


def send(base_url: str, access_token: str, **fields: Any) -> dict[str, Any]:
    body = {"touser": "WangFang", "msgtype": "text", "agentid": 1000002} | fields
    answer = requests.post(
        f"{base_url}/cgi-bin/message/send",
        params={"access_token": access_token},
        data=json.dumps(body, ensure_ascii=False).encode(),
        timeout=5,
    )
    assert answer.status_code == 200
    return answer.json()


@pytest.fixture
def access_token(base_url: str, corp: Corp) -> str:
    return get_token(base_url, corp.corp_id, corp.corp_secret)["access_token"]


def app_texts(simulator: Simulator, user_id: str = "WangFang") -> list[str]:
    return [m.text for m in simulator.conversations.messages(user_id, 0) if m.sender == "app"]


def test_gettoken_gives_the_same_token_until_it_expires(
    base_url: str, corp: Corp, clock: Clock
) -> None:
    first = get_token(base_url, corp.corp_id, corp.corp_secret)
    clock.now_s += 7000
    again = get_token(base_url, corp.corp_id, corp.corp_secret)
    assert again["access_token"] == first["access_token"]
    assert (first["expires_in"], again["expires_in"]) == (7200, 200)
    clock.now_s += 201
    renewed = get_token(base_url, corp.corp_id, corp.corp_secret)
    assert renewed["access_token"] != first["access_token"]
    assert send(base_url, first["access_token"], text={"content": "x"})["errcode"] == 42001
    assert send(base_url, renewed["access_token"], text={"content": "x"})["errcode"] == 0


@pytest.mark.parametrize(
    ("corp_id", "corp_secret", "errcode"),
    [
        ("wwcorp1234567890", "wrong", 40001),
        ("wwother", "the-secret", 40013),
        ("", "the-secret", 41002),
        ("wwcorp1234567890", "", 41004),
    ],
)
def test_gettoken_refuses(base_url: str, corp_id: str, corp_secret: str, errcode: int) -> None:
    answer = get_token(base_url, corp_id, corp_secret)
    assert answer["errcode"] == errcode
    assert "access_token" not in answer
    assert "from ip: 127.0.0.1" in answer["errmsg"]


def test_bad_tokens(base_url: str, simulator: Simulator, access_token: str) -> None:
    text = {"content": "你好"}
    assert send(base_url, "", text=text)["errcode"] == 41001
    assert send(base_url, "invented", text=text)["errcode"] == 40014
    simulator.tokens.expire_now()
    assert send(base_url, access_token, text=text)["errcode"] == 42001
    assert app_texts(simulator) == []


@pytest.mark.parametrize(
    ("fields", "errcode"),
    [
        ({"text": {"content": ""}}, 44004),
        ({"text": {}}, 44004),
        ({}, 44004),
        ({"text": {"content": "x"}, "agentid": None}, 41011),
        ({"text": {"content": "x"}, "agentid": 1000003}, 301002),
        ({"text": {"content": "x"}, "agentid": "abc"}, 40056),
        ({"text": {"content": "x"}, "msgtype": "hologram"}, 40008),
        ({"text": {"content": "x"}, "touser": "nobody|NoOne"}, 81013),
        ({"text": {"content": "x"}, "touser": ""}, 81013),
    ],
)
def test_requests_that_are_refused(
    base_url: str, simulator: Simulator, access_token: str, fields: dict[str, Any], errcode: int
) -> None:
    answer = send(base_url, access_token, **fields)
    assert answer["errcode"] == errcode
    assert "msgid" not in answer
    assert app_texts(simulator) == []


def test_a_body_that_is_not_json(base_url: str, access_token: str) -> None:
    for body in (b"", b"{", b"[]", b"\xff\xfe"):
        answer = requests.post(
            f"{base_url}/cgi-bin/message/send",
            params={"access_token": access_token},
            data=body,
            timeout=5,
        )
        assert answer.json()["errcode"] == 47001


def test_some_receivers_invalid_is_errcode_0_with_lower_case_invaliduser(
    base_url: str, simulator: Simulator, access_token: str
) -> None:
    answer = send(
        base_url, access_token, touser="WangFang|Nobody|lilei|NoOne", text={"content": "会议"}
    )
    assert answer["errcode"] == 0
    assert answer["invaliduser"] == "nobody|noone"
    assert app_texts(simulator) == app_texts(simulator, "LiLei") == ["会议"]
    assert app_texts(simulator, "ZhangWei") == []


def test_to_everybody(base_url: str, simulator: Simulator, access_token: str) -> None:
    answer = send(base_url, access_token, touser="@all", text={"content": "放假"})
    assert "invaliduser" not in answer
    assert all(app_texts(simulator, e.user_id) == ["放假"] for e in simulator.corp.employees)


def test_each_message_has_its_own_msgid(base_url: str, access_token: str) -> None:
    ids = {send(base_url, access_token, text={"content": "x"})["msgid"] for _ in range(5)}
    assert len(ids) == 5


def test_text_is_cut_at_2048_bytes_through_a_character(
    base_url: str, simulator: Simulator, access_token: str
) -> None:
    content = "汉" * 683  # 2049 bytes: the last character loses one of its three
    assert send(base_url, access_token, text={"content": content})["errcode"] == 0
    (message,) = simulator.conversations.messages("WangFang", 0)
    assert message.text == "汉" * 682 + "\ufffd"
    assert message.cut_bytes == 1


def test_visible_text_keeps_what_fits() -> None:
    whole = "a" * (TEXT_LIMIT_BYTES - 3) + "汉"
    assert visible_text(whole) == (whole, 0)
    assert visible_text(whole + "b") == (whole, 1)
    assert visible_text("😀" * 513)[0] == "😀" * 512


def test_duplicate_check_compares_the_exact_json(
    base_url: str, simulator: Simulator, access_token: str, clock: Clock
) -> None:
    def ask(**fields: Any) -> int:
        return send(base_url, access_token, text={"content": "好"}, **fields)["errcode"]

    assert ask() == ask() == 0
    assert len(app_texts(simulator)) == 2, "without the switch nothing is compared"
    assert ask(enable_duplicate_check=1) == ask(enable_duplicate_check=1) == 0
    assert len(app_texts(simulator)) == 3
    ask(enable_duplicate_check=1, safe=0)
    assert len(app_texts(simulator)) == 4, "another JSON is another message"
    clock.now_s += 1801
    ask(enable_duplicate_check=1)
    assert len(app_texts(simulator)) == 5


def test_the_31st_message_in_a_minute_is_dropped_without_an_error(
    base_url: str, simulator: Simulator, access_token: str, clock: Clock
) -> None:
    for number in range(31):
        assert send(base_url, access_token, text={"content": str(number)})["errcode"] == 0
    assert app_texts(simulator) == [str(n) for n in range(30)]
    clock.now_s += 60
    send(base_url, access_token, text={"content": "later"})
    assert app_texts(simulator)[-1] == "later"


class OneToken:
    """A token source that keeps what it fetched."""

    def __init__(self, fetch: TokenFetcher) -> None:
        self._fetch = fetch
        self._kept = ""

    def get(self) -> str:
        self._kept = self._kept or self._fetch().value
        return self._kept

    def discard(self, failed: str) -> None:
        assert failed == self._kept
        self._kept = ""


def test_the_gateways_client_survives_an_early_token_death(
    base_url: str, corp: Corp, simulator: Simulator
) -> None:
    fetch = TokenFetcher(base_url, corp.corp_id, corp.corp_secret)
    with WeComClient(
        base_url, corp.corp_id, str(corp.agent_id), corp.corp_secret, OneToken(fetch)
    ) as client:
        client.send_text("WangFang", "一")
        simulator.tokens.expire_now()
        client.send_text("WangFang", "二 😀")
        assert app_texts(simulator) == ["一", "二 😀"]
        assert simulator.tokens.issued == 2
        with pytest.raises(ApiError) as refused:
            client.send_text("Nobody", "x")
        assert refused.value.errcode == 81013

"""Faults by script, the IP allow-list and the frequency limits, over real HTTP."""

from __future__ import annotations

import re
import threading

import pytest
import requests

from app.simulator.corp import Corp
from app.simulator.faults import Fault, FaultError, FaultScript
from app.simulator.limits import Limits
from app.simulator.service import Simulator
from app.simulator.web import running
from app.wecom.client import TokenFetcher, WeComClient
from app.wecom.errors import ApiError, SendUnknownError, TransportError
from tests.app.simulator.calls import Api
from tests.app.simulator.conftest import Clock, RecordingApp


@pytest.fixture
def api(base_url: str, simulator: Simulator) -> Api:
    return Api(base_url, simulator)


@pytest.fixture
def client(base_url: str, corp: Corp, api: Api) -> WeComClient:
    """The gateway's own client, with the token that is live."""
    agent_id = str(corp.agent_id)
    return WeComClient(
        base_url, corp.corp_id, agent_id, corp.corp_secret, _Kept(base_url, corp), 0.6
    )


class _Kept:
    def __init__(self, base_url: str, corp: Corp) -> None:
        self._fetch = TokenFetcher(base_url, corp.corp_id, corp.corp_secret)
        self._value = self._fetch().value

    def get(self) -> str:
        return self._value

    def discard(self, failed: str) -> None:
        self._value = self._fetch().value


def texts(simulator: Simulator, user: str = "WangFang") -> list[str]:
    return [m.text for m in simulator.conversations.messages(user, 0) if m.sender == "app"]


@pytest.mark.parametrize("errcode", [-1, 45009, 45033, 50003, 60011, 81013, 48002, 12345])
def test_any_errcode_on_demand_once(simulator: Simulator, api: Api, errcode: int) -> None:
    simulator.faults.add(Fault("message/send", "errcode", errcode))
    answer = api.send("text", {"content": "一"})
    assert answer["errcode"] == errcode
    assert "from ip: 127.0.0.1" in answer["errmsg"]
    assert f"e={errcode}" in answer["errmsg"]
    assert texts(simulator) == []
    assert api.send("text", {"content": "一"})["errcode"] == 0


def test_http_errors_are_not_carried_out(simulator: Simulator, client: WeComClient) -> None:
    simulator.faults.add(Fault("*", "http", 502, times=2))
    for _ in range(2):
        with pytest.raises(TransportError) as error:
            client.send_text("WangFang", "一")
        assert error.value.retryable
    client.send_text("WangFang", "二")
    assert texts(simulator) == ["二"]


def test_reset_before_and_after_acceptance(simulator: Simulator, client: WeComClient) -> None:
    simulator.faults.add(Fault("message/send", "reset"))
    with pytest.raises(SendUnknownError):
        client.send_text("WangFang", "前")
    assert texts(simulator) == []
    simulator.faults.add(Fault("message/send", "reset_after"))
    with pytest.raises(SendUnknownError):
        client.send_text("WangFang", "后", duplicate_check=True)
    assert texts(simulator) == ["后"]
    client.send_text("WangFang", "后", duplicate_check=True)
    assert texts(simulator) == ["后"], "the identical request is not shown twice"


def test_slow_and_late(simulator: Simulator, client: WeComClient) -> None:
    simulator.faults.add(Fault("message/send", "late", 1.0))
    with pytest.raises(SendUnknownError):
        client.send_text("WangFang", "晚", duplicate_check=True)
    assert texts(simulator) == ["晚"]
    simulator.faults.add(Fault("message/send", "slow", 0.1))
    client.send_text("WangFang", "慢")
    assert texts(simulator) == ["晚", "慢"]


def test_a_lost_acknowledgement_is_delivered_again(
    simulator: Simulator, recording_app: RecordingApp
) -> None:
    simulator.faults.add(Fault("callback", "lost", times=2))
    _, delivering = simulator.say("WangFang", "一")
    delivering.join(timeout=20)
    assert len(recording_app.received) == 3
    assert len({r.query["nonce"] for r in recording_app.received}) == 3


def test_probability_times_and_order() -> None:
    script = FaultScript(seed=3)
    script.add(Fault("a", "reset", times=0, probability=0.5))
    hits = sum(script.take("a") is not None for _ in range(400))
    assert 150 < hits < 250
    assert script.hits == hits
    assert script.take("b") is None
    script.add(Fault("b", "errcode", 45009, times=2))
    script.add(Fault("*", "errcode", -1))
    assert [fault.value for fault in map(script.take, "bbb") if fault] == [45009, 45009, -1]
    script.clear()
    assert script.rules == ()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("a", "hologram"),  # type: ignore[arg-type]
        Fault("a", "http", 200),
        Fault("a", "slow", 0),
        Fault("a", "late", 61),
        Fault("a", "errcode", 0),
        Fault("a", "errcode", 1.5),
        Fault("a", "reset", times=-1),
        Fault("a", "reset", probability=0),
        Fault("a", "lost"),
        Fault("callback", "reset"),
    ],
)
def test_rules_that_mean_nothing_are_refused(fault: Fault) -> None:
    with pytest.raises(FaultError):
        FaultScript().add(fault)


def test_faults_over_the_json_api(base_url: str, api: Api) -> None:
    url = f"{base_url}/sim/faults"
    rule = {"api": "message/send", "kind": "errcode", "value": 45009, "times": 1}
    assert requests.post(url, json=rule, timeout=5).json()["rules"][0]["value"] == 45009
    assert api.send("text", {"content": "一"})["errcode"] == 45009
    assert requests.get(url, timeout=5).json() == {"rules": [], "hits": 1}
    for wrong in ({"api": "x"}, {"api": "x", "kind": "http", "value": "x"}, {}):
        assert requests.post(url, json=wrong, timeout=5).status_code == 400
    requests.post(url, json=rule, timeout=5)
    assert requests.delete(url, timeout=5).json()["rules"] == []


def test_an_address_that_is_not_trusted(
    base_url: str, simulator: Simulator, client: WeComClient
) -> None:
    url = f"{base_url}/sim/trusted-ips"
    requests.post(url, json={"ips": ["203.0.113.7"]}, timeout=5)
    with pytest.raises(ApiError) as refused:
        client.send_text("WangFang", "一")
    assert refused.value.errcode == 60020
    assert refused.value.egress_ip == "127.0.0.1"
    assert re.fullmatch(
        r"not allow to access from your ip, hint: \[\d+_[0-9a-f]+\], from ip: 127\.0\.0\.1, "
        r"more info at https://open\.work\.weixin\.qq\.com/devtool/query\?e=60020",
        refused.value.errmsg,
    )
    requests.post(url, json={"ips": ["203.0.113.7", "127.0.0.1"]}, timeout=5)
    client.send_text("WangFang", "二")
    assert texts(simulator) == ["二"]
    assert requests.post(url, json={"ips": "x"}, timeout=5).status_code == 400
    assert requests.post(url, json={"ips": None}, timeout=5).json() == {"ips": None}


def limited(corp: Corp, clock: Clock, limits: Limits) -> Simulator:
    return Simulator(corp, "http://127.0.0.1:9/", clock=clock, limits=limits)


def test_the_hourly_limit_of_a_member_drops_without_an_error(corp: Corp, clock: Clock) -> None:
    simulator = limited(corp, clock, Limits(member_per_hour=40))
    with running(simulator) as base_url:
        api = Api(base_url, simulator)
        for number in range(50):
            clock.now_s += 10
            assert api.send("text", {"content": str(number)})["errcode"] == 0
        assert len(texts(simulator)) == 40
        api.send("text", {"content": "x"}, "LiLei")
        assert texts(simulator, "LiLei") == ["x"]


def test_too_many_calls_are_45009_until_the_block_ends(corp: Corp, clock: Clock) -> None:
    simulator = limited(corp, clock, Limits(api_per_minute=5))
    with running(simulator) as base_url:
        api = Api(base_url, simulator)
        codes = [api.get("user/get", userid="WangFang")["errcode"] for _ in range(7)]
        assert codes == [0] * 5 + [45009] * 2
        clock.now_s += 59
        assert api.get("user/get", userid="WangFang")["errcode"] == 45009
        assert api.get("getcallbackip")["errcode"] == 0, "each API has its own count"
        clock.now_s += 2
        assert api.get("user/get", userid="WangFang")["errcode"] == 0


def test_the_apps_messages_of_a_day(corp: Corp, clock: Clock) -> None:
    simulator = limited(corp, clock, Limits(app_per_day_and_account=1, member_per_minute=99))
    with running(simulator) as base_url:
        api = Api(base_url, simulator)
        codes = [api.send("text", {"content": str(n)})["errcode"] for n in range(8)]
        assert codes == [0] * 6 + [45009] * 2, "six members, one a day each"
        clock.now_s += 86_400
        api.token = simulator.tokens.issue().access_token
        assert api.send("text", {"content": "x"})["errcode"] == 0


def test_too_many_calls_at_once(corp: Corp, clock: Clock) -> None:
    simulator = limited(corp, clock, Limits(concurrency=1))
    entered, leave = threading.Event(), threading.Event()
    send = simulator.message_send.send

    def slow(body: bytes) -> object:
        entered.set()
        leave.wait(10)
        return send(body)

    simulator.message_send.send = slow  # type: ignore[assignment,method-assign]
    with running(simulator) as base_url:
        api = Api(base_url, simulator)
        first = threading.Thread(target=api.send, args=("text", {"content": "一"}))
        first.start()
        assert entered.wait(10)
        assert api.get("user/get", userid="WangFang")["errcode"] == 45033
        leave.set()
        first.join(10)
        assert api.get("user/get", userid="WangFang")["errcode"] == 0


def test_gettoken_has_a_limit_of_its_own(corp: Corp, clock: Clock) -> None:
    simulator = limited(corp, clock, Limits(gettoken_per_minute=3))
    with running(simulator) as base_url:
        api = Api(base_url, simulator)
        credentials = {"corpid": corp.corp_id, "corpsecret": corp.corp_secret}
        codes = [api.get("gettoken", **credentials)["errcode"] for _ in range(3)]
        assert codes == [0, 0, 45009]
        assert api.send("text", {"content": "一"})["errcode"] == 0


def test_a_short_token_life(corp: Corp, clock: Clock) -> None:
    simulator = Simulator(corp, "http://127.0.0.1:9/", clock=clock, token_lifetime_s=60)
    with running(simulator) as base_url:
        api = Api(base_url, simulator)
        clock.now_s += 61
        assert api.send("text", {"content": "一"})["errcode"] == 42001
        simulator.tokens.expire_now()
        assert api.send("text", {"content": "一"})["errcode"] == 42001

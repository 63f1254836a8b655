"""The self-check against set-ups that are broken in one way each: the right remedy is named."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import redis

from app import create_app
from app.cli import main
from app.doctor import host_checks, store_checks, wecom_checks
from app.doctor.findings import Finding, as_json, as_text, exit_status
from app.settings import Settings, load
from app.simulator.corp import Corp
from app.simulator.service import Simulator
from app.store import keys
from app.store.app_state import AppState
from app.store.presence import Presence
from tests.app.simulator.conftest import running
from tests.app.wecom.sealing import AGENT, CORP, KEY, TOKEN


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.fixture
def wecom() -> Simulator:
    """WeCom as the gateway's settings expect it."""
    return Simulator(Corp(CORP, int(AGENT), "secret", TOKEN, KEY), "http://127.0.0.1:9/")


@pytest.fixture
def healthy(
    configured: Settings, redis_client: redis.Redis, wecom: Simulator
) -> Iterator[Settings]:
    """Settings of a whole installation: gateway, WeCom, Redis and every process."""
    server = make_server("127.0.0.1", 0, create_app(configured, redis_client), handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with (
        running(wecom) as api,
        Presence(redis_client, "turns"),
        Presence(redis_client, "sender"),
        Presence(redis_client, "sweeper"),
        Presence(redis_client, "web"),
    ):
        url = f"http://127.0.0.1:{server.server_port}"
        yield dataclasses.replace(
            configured, wecom_api_base=api, port=server.server_port, public_url=url
        )
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_whole_installation_has_nothing_to_mend(healthy: Settings) -> None:
    findings = [*store_checks.check(healthy), *wecom_checks.check(healthy)]
    assert [f for f in findings if f.level not in ("ok", "skip")] == []
    assert {"redis", "redis_aof", "turns", "wecom_token", "callback", "queue"} <= by_name(
        findings
    ).keys()


def test_a_wrong_secret(healthy: Settings) -> None:
    wrong = dataclasses.replace(healthy, wecom_corp_secret="wrong")
    found = by_name(wecom_checks.check(wrong))["wecom_token"]
    assert (found.level, "WECOM_CORP_SECRET" in found.remedy) == ("fail", True)


def test_a_wrong_corp_id(healthy: Settings) -> None:
    wrong = dataclasses.replace(healthy, wecom_corp_id="ww0000000000000000")
    found = by_name(wecom_checks.check(wrong))["wecom_token"]
    assert (found.level, "WECOM_CORP_ID" in found.remedy) == ("fail", True)


def test_a_wrong_key_fails_the_callback(healthy: Settings) -> None:
    wrong = dataclasses.replace(healthy, wecom_token="another")
    found = by_name(wecom_checks.check(wrong))["callback"]
    assert found.level == "fail"
    assert "403" in found.fact
    assert "Token 或 EncodingAESKey" in found.remedy


def test_a_gateway_of_another_container_is_not_missed(
    healthy: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = dataclasses.replace(healthy, public_url="", port=1)
    assert by_name(wecom_checks.check(alone))["callback"].level == "fail"
    monkeypatch.setattr("app.doctor.wecom_checks.socket.gethostname", lambda: "worker")
    assert by_name(wecom_checks.check(alone))["callback"].level == "skip"


def test_a_key_that_is_no_key(healthy: Settings) -> None:
    wrong = dataclasses.replace(healthy, wecom_encoding_aes_key="short")
    (found,) = wecom_checks.check(wrong)
    assert (found.level, "43 位" in found.remedy) == ("fail", True)


def test_an_untrusted_address_names_the_ip(healthy: Settings, wecom: Simulator) -> None:
    wecom.trusted_ips = frozenset()
    found = by_name(wecom_checks.check(healthy))["wecom_token"]
    assert found.level == "fail"
    assert "60020" in found.fact
    assert "127.0.0.1" in found.remedy
    assert "企业可信IP" in found.remedy


@contextmanager
def answering(status: int, date_offset_s: float = 0.0) -> Iterator[str]:
    """A server that answers everything with ``status`` and a Date that far from now."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_HEAD = do_GET

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + date_offset_s)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("offset_s", "word"), [(-7200.0, "快了"), (7200.0, "慢了")])
def test_a_clock_that_is_off(configured: Settings, offset_s: float, word: str) -> None:
    with answering(404, offset_s) as url:
        settings = dataclasses.replace(configured, wecom_api_base=url)
        found = by_name(wecom_checks.check(settings))["clock"]
    assert (found.level, word in found.fact, "时间同步" in found.remedy) == ("fail", True, True)


@pytest.mark.parametrize(
    ("status", "word"), [(502, "反向代理"), (404, "/wecom/callback"), (403, "Token")]
)
def test_a_proxy_in_front_that_is_wrong(healthy: Settings, status: int, word: str) -> None:
    with answering(status) as url:
        settings = dataclasses.replace(healthy, public_url=url)
        found = by_name(wecom_checks.check(settings))["callback"]
    assert (found.level, word in found.remedy) == ("fail", True)


def test_digits_of_an_address_are_no_status(
    healthy: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:40450/wecom/callback"
    said = f"{url} 回答了 403，不是解密后的 echostr"
    monkeypatch.setattr(wecom_checks, "verify_callback", lambda *_: said)
    assert "Token" in by_name(wecom_checks.check(healthy))["callback"].remedy


def test_a_tunnel_that_is_down(healthy: Settings) -> None:
    settings = dataclasses.replace(healthy, public_url="http://127.0.0.1:9")
    found = by_name(wecom_checks.check(settings))["callback"]
    assert (found.level, "隧道" in found.remedy) == ("fail", True)


def test_redis_down(configured: Settings) -> None:
    settings = dataclasses.replace(configured, redis_url="redis://127.0.0.1:9/0")
    (found,) = store_checks.check(settings)
    assert (found.level, "启动 Redis" in found.remedy) == ("fail", True)


def test_redis_that_forgets(healthy: Settings, redis_client: redis.Redis) -> None:
    redis_client.config_set("appendonly", "no")
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = by_name(store_checks.check(healthy))
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")
        redis_client.config_set("appendonly", "yes")
    assert "appendonly yes" in found["redis_aof"].remedy
    assert "noeviction" in found["redis_policy"].remedy


def test_no_process_holds_the_model(configured: Settings, redis_client: redis.Redis) -> None:
    found = by_name(store_checks.check(configured))
    assert found["turns"].level == "fail"
    assert "workers turns" in found["turns"].remedy


def test_a_process_that_grew(
    healthy: Settings, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = next(iter(redis_client.scan_iter(keys.process("turns", "*"))))
    report = json.loads(redis_client.get(key))
    report["warm_rss_bytes"] = report["rss_bytes"] // 2
    redis_client.set(key, json.dumps(report))
    found = by_name(store_checks.check(healthy))["memory_growth"]
    assert (found.level, "restart" in found.remedy) == ("warn", True)


def test_an_old_queue_and_a_paused_outbox(healthy: Settings, redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.QUEUE, {"t1": (time.time() - 600) * 1000})
    AppState(redis_client).raise_alert(f"{CORP}:{AGENT}:z", 60020, "不可信", "203.0.113.7")
    found = by_name(store_checks.check(healthy))
    assert (found["queue"].level, "600 秒" in found["queue"].fact) == ("warn", True)
    assert "203.0.113.7" in found["outbox"].remedy


def test_sending_that_an_administrator_holds(healthy: Settings, redis_client: redis.Redis) -> None:
    AppState(redis_client).hold(CORP, AGENT)
    found = by_name(store_checks.check(healthy))
    assert (found["outbox_held"].level, "/admin" in found["outbox_held"].remedy) == ("warn", True)
    assert "outbox" not in found


@pytest.mark.parametrize(
    ("value", "level"), [("0", ""), ("1", "ok"), ("/nowhere/simhei.ttf", "warn")]
)
def test_a_font_for_table_images(environ: dict[str, str], value: str, level: str) -> None:
    settings = load({**environ, "HUTONG_TABLE_IMAGES": value})
    found = {f.level: f for f in host_checks.check(settings) if f.name == "table_images"}
    assert "".join(found) == level
    if level == "warn":
        assert "/nowhere/simhei.ttf" in found["warn"].fact
        assert "中文字体" in found["warn"].remedy


def test_no_room_on_the_disk(configured: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.doctor.host_checks.LEAST_FREE_BYTES", 10**18)
    assert by_name(host_checks.check(configured))["disk"].level == "fail"


def test_secrets_are_in_no_finding(healthy: Settings) -> None:
    wrong = dataclasses.replace(
        healthy, wecom_corp_secret="s3cr3t-s3cr3t", redis_url="redis://:pw-pw@127.0.0.1:9"
    )
    findings = [*store_checks.check(wrong), *wecom_checks.check(wrong)]
    for secret in ("s3cr3t-s3cr3t", "pw-pw", TOKEN, KEY):
        assert secret not in as_json(findings)


def test_forms_and_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("a", "ok", "好"), Finding("b", "fail", "坏", "修")]
    assert exit_status(findings) == 1
    assert exit_status(findings[:1]) == 0
    assert as_text(findings).splitlines()[:3] == ["✓ a  好", "✗ b  坏", "    → 修"]
    assert json.loads(as_json(findings))["ok"] is False


def test_the_command(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.doctor.programs.sys.executable", "/bin/false")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WECOM_API_BASE", "http://127.0.0.1:9")
    assert main(["doctor", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert {"redis", "wecom_token", "callback"} <= {f["name"] for f in record["findings"]}

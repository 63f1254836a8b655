"""The JSON API and the page of the simulator over real HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import requests

from app.simulator.corp import EMPLOYEES, EXAMPLES
from app.simulator.crypto import new_encoding_aes_key
from app.simulator.service import Simulator
from tests.app.simulator.conftest import RecordingApp


def post(base_url: str, path: str, **fields: object) -> requests.Response:
    return requests.post(f"{base_url}{path}", json=fields, timeout=30)


def test_the_page_and_its_files(base_url: str) -> None:
    page = requests.get(f"{base_url}/", timeout=5)
    assert page.status_code == 200
    assert "胡同" in page.text
    for name in ("chat.css", "chat.js", "faults.js", "hutong.svg"):
        assert f"/static/{name}" in page.text
        assert requests.get(f"{base_url}/static/{name}", timeout=5).status_code == 200
    assert "http" not in page.text.replace("http-equiv", ""), "nothing is loaded from elsewhere"


def test_state(base_url: str) -> None:
    state = requests.get(f"{base_url}/sim/state", timeout=5).json()
    assert [e["name"] for e in state["employees"]] == [e.name for e in EMPLOYEES]
    assert tuple(state["examples"]) == EXAMPLES


def test_say_and_read(base_url: str, simulator: Simulator, recording_app: RecordingApp) -> None:
    answer = post(base_url, "/sim/messages", user="wangfang", text="你好", wait=True)
    assert answer.status_code == 202
    assert len(recording_app.received) == 1
    conversation = f"{base_url}/sim/conversations/WangFang"
    (message,) = requests.get(conversation, timeout=5).json()["messages"]
    assert (message["text"], message["sender"]) == ("你好", "employee")
    assert message["msg_id"] == answer.json()["msg_id"]
    after = {"after": message["seq"]}
    assert requests.get(conversation, params=after, timeout=5).json()["messages"] == []
    simulator.conversations.add_message("WangFang", "app", "答", "m1")
    waited = requests.get(conversation, params=after | {"wait_s": 20}, timeout=30).json()
    assert [m["text"] for m in waited["messages"]] == ["答"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 400),
        ({"user": 5, "text": "x"}, 400),
        ({"user": "Nobody", "text": "x"}, 404),
        ({"user": "WangFang", "text": "x", "kind": "hologram"}, 400),
        ({"user": "WangFang", "text": "汉" * 30_000}, 413),
    ],
)
def test_bad_requests(base_url: str, fields: dict[str, object], status: int) -> None:
    answer = post(base_url, "/sim/messages", **fields)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_a_form_from_another_site_cannot_send(base_url: str) -> None:
    answer = requests.post(
        f"{base_url}/sim/messages",
        data='{"user": "WangFang", "text": "x"}',
        headers={"Content-Type": "text/plain"},
        timeout=5,
    )
    assert answer.status_code == 400


def test_the_stream_tells_everything_since_an_id(base_url: str, simulator: Simulator) -> None:
    first = simulator.conversations.add_message("WangFang", "app", "一\n二", "m1")
    simulator.conversations.set_delivery("WangFang", "m0", "delivered", 1)
    with requests.get(f"{base_url}/sim/stream", stream=True, timeout=10) as stream:
        seen: list[str] = []
        for line in stream.iter_lines(decode_unicode=True):
            seen.append(line)
            if line == "event: delivery":
                break
    data = [json.loads(line.removeprefix("data: ")) for line in seen if line.startswith("data")]
    assert data[0] == simulator.boot_id
    assert (data[1]["text"], data[1]["seq"]) == ("一\n二", first.seq)
    with requests.get(
        f"{base_url}/sim/stream",
        stream=True,
        timeout=10,
        headers={"Last-Event-ID": str(first.seq)},
    ) as stream:
        names = []
        for line in stream.iter_lines(decode_unicode=True):
            if line.startswith("event"):
                names.append(line)
            if len(names) == 2:
                break
    assert names == ["event: boot", "event: delivery"]


def test_log_and_verify(base_url: str, recording_app: RecordingApp) -> None:
    verification = post(base_url, "/sim/verify").json()
    assert verification["ok"] is False
    lines = requests.get(f"{base_url}/sim/log", timeout=5).json()["lines"]
    assert [line["title"] for line in lines] == ["验证回调 URL"]


def test_the_process_starts_says_its_address_and_stops_on_sigterm() -> None:
    credentials = {
        "WECOM_CORP_ID": "wwx",
        "WECOM_AGENT_ID": "1",
        "WECOM_CORP_SECRET": "s",
        "WECOM_TOKEN": "t",
        "WECOM_ENCODING_AES_KEY": new_encoding_aes_key(),
    }
    command = [sys.executable, "-m", "app.simulator", "--port", "0"]
    with subprocess.Popen(
        command, env=os.environ | credentials, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().removeprefix("模拟器：")
        assert requests.get(f"{address}healthz", timeout=10).text == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def test_the_process_names_what_is_missing() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WECOM_")}
    done = subprocess.run(
        [sys.executable, "-m", "app.simulator"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "WECOM_CORP_SECRET" in done.stderr
    assert "Traceback" not in done.stderr

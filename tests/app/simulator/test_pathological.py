"""Every bad callback of the simulator against the real gateway: right status, never a 5xx."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import requests
from werkzeug.serving import make_server

from app import create_app
from app.settings import load
from app.simulator import pathological
from app.simulator.corp import Corp
from app.simulator.service import Simulator
from app.simulator.web import running


@pytest.fixture
def gateway_url(corp: Corp, redis_url: str) -> Iterator[str]:
    """The gateway over HTTP with a real Redis."""
    settings = load(
        {
            "REDIS_URL": redis_url,
            "WECOM_CORP_ID": corp.corp_id,
            "WECOM_AGENT_ID": str(corp.agent_id),
            "WECOM_CORP_SECRET": corp.corp_secret,
            "WECOM_TOKEN": corp.token,
            "WECOM_ENCODING_AES_KEY": corp.encoding_aes_key,
        }
    )
    server = make_server("127.0.0.1", 0, create_app(settings), threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/wecom/callback"
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_case_gets_its_status(gateway_url: str, corp: Corp) -> None:
    simulator = Simulator(corp, gateway_url)
    verdicts = [pathological.try_case(name, simulator.caller, corp) for name in pathological.CASES]
    assert [v for v in verdicts if not v.ok] == []


def test_over_the_json_api(gateway_url: str, corp: Corp) -> None:
    with running(Simulator(corp, gateway_url)) as base_url:
        url = f"{base_url}/sim/pathological"
        names = [case["name"] for case in requests.get(url, timeout=5).json()["cases"]]
        assert names == list(pathological.CASES)
        verdict = requests.post(url, json={"name": "wrong-key"}, timeout=10).json()
        assert (verdict["status"], verdict["ok"]) == (403, True)
        assert requests.post(url, json={"name": "x"}, timeout=10).status_code == 404

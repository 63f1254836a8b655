"""A real Prometheus with our configuration and rules reads a real gateway."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from werkzeug.serving import make_server

from app import create_app, settings
from app.demo.processes import free_port
from app.store import keys
from app.store.server import connect

DEPLOY = Path(__file__).parents[1] / "deploy"
CORP, AGENT = "wwcorp", "1000002"
HELD_S = 3600
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Debian's package prometheus"
)


@contextmanager
def gateway(redis_url: str) -> Iterator[int]:
    """The gateway's port; its metrics want the token ``scrape-me``."""
    environ = {
        "WECOM_CORP_ID": CORP,
        "WECOM_AGENT_ID": AGENT,
        "WECOM_CORP_SECRET": "secret",
        "WECOM_TOKEN": "token",
        "WECOM_ENCODING_AES_KEY": "a" * 43,
        "REDIS_URL": redis_url,
        "METRICS_TOKEN": "scrape-me",
    }
    app = create_app(settings.load(environ), redis_client=connect(redis_url))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[int]:
    """The port of a Prometheus in ``folder`` that scrapes ``target`` as ours would, but often."""
    (folder / "token").write_text("scrape-me")
    shutil.copy(DEPLOY / "alerts.yml", folder)
    text = (DEPLOY / "prometheus.yml").read_text("utf-8")
    for old, new in (
        ("web:8080", f"127.0.0.1:{target}"),
        ("/run/secrets/metrics_token", str(folder / "token")),
        ("scrape_interval: 15s, evaluation_interval: 15s",
         "scrape_interval: 1s, evaluation_interval: 1s"),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    port = free_port(0)
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield port
        finally:
            process.terminate()


def asked(port: int, path: str) -> Any:
    """``data`` of an answer of the API, None while nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def test_it_scrapes_the_gateway_and_raises_what_the_rules_say(
    tmp_path: Path, redis_client: redis.Redis, redis_url: str
) -> None:
    since_ms = int((time.time() - HELD_S) * 1000)
    redis_client.set(keys.send_hold(CORP, AGENT), since_ms)
    wanted = "query?" + urllib.parse.urlencode({"query": 'ALERTS{alertname="HutongSendingHeld"}'})
    with gateway(redis_url) as target, prometheus(tmp_path, target) as port:
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            found = asked(port, wanted)
            if found and found["result"]:
                break
            time.sleep(0.2)
        log = (tmp_path / "log").read_text()
        (scraped,) = asked(port, "targets")["activeTargets"]
        rules = asked(port, "rules")["groups"][0]["rules"]
    assert scraped["health"] == "up", scraped["lastError"]
    assert {rule["health"] for rule in rules} == {"ok"}, log
    assert [alert["metric"]["alertstate"] for alert in found["result"]] == ["firing"], log

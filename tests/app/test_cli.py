"""The command line as processes: real gunicorn on a free port, exit statuses, light imports."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest

from app import MAX_BODY_BYTES
from app.cli import main
from app.settings import env_example, markdown_table
from tests.app.conftest import Queue
from tests.app.wecom.sealing import envelope, query, seal, text_xml

START_TIMEOUT_S = 60


def run(arguments: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )


@pytest.mark.parametrize(
    ("flag", "text"), [("--env", env_example()), ("--table", markdown_table())]
)
def test_settings_are_printed(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", flag]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    "arguments", [[], ["settings"], ["settings", "--env", "--table"], ["fly"], ["web", "--port"]]
)
def test_wrong_arguments_end_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_arguments_of_the_demo_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = types.ModuleType("app.demo")
    seen: list[list[str]] = []
    demo.main = lambda argv: seen.append(argv) or 3  # type: ignore[attr-defined,func-returns-value]
    monkeypatch.setitem(sys.modules, "app.demo", demo)
    assert main(["demo", "--ask", "年假有几天", "-h"]) == 3
    assert seen == [["--ask", "年假有几天", "-h"]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"WECOM_TOKEN": ""}, "WECOM_TOKEN"),
        ({"REDIS_URL": ""}, "REDIS_URL"),
        ({"WECOM_ENCODING_AES_KEY": "short"}, "WECOM_ENCODING_AES_KEY"),
        ({"WECOM_TOKN": "x"}, "WECOM_TOKN"),
        ({"HUTONG_LOG_LEVEL": "LOUD"}, "HUTONG_LOG_LEVEL"),
        ({"HUTONG_PORT": "99999"}, "HUTONG_PORT"),
        ({"HUTONG_HOST": "host.invalid"}, "HUTONG_HOST"),
    ],
)
def test_web_refuses_bad_settings_before_it_starts(
    environ: dict[str, str], change: dict[str, str], named: str
) -> None:
    ended = run(["web"], {**environ, **change})
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr


def test_web_names_a_port_that_is_taken(environ: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run(["web"], {**environ, "HUTONG_PORT": port})
    assert (ended.returncode, port in ended.stderr) == (2, True)


@contextmanager
def running_web(environ: dict[str, str]) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-m", "app", "web"],
        env={"PATH": os.environ["PATH"], **environ, "HUTONG_PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            wait_until_up(port, process)
            yield port, process
        finally:
            process.kill()


def wait_until_up(port: int, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < limit and process.poll() is None:
        try:
            if exchange(port, "GET", "/healthz")[0] == 200:
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the web process did not come up: {process.poll()}")


def exchange(
    port: int, method: str, path: str, body: bytes | Iterator[bytes] = b""
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, encode_chunked=not isinstance(body, bytes))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_web_serves_the_callback_and_ends_cleanly(environ: dict[str, str], queue: Queue) -> None:
    with running_web(environ) as (port, process):
        encrypted = seal(text_xml("你好"))
        path = f"/wecom/callback?{urlencode(query(encrypted))}"
        assert exchange(port, "POST", path, envelope(encrypted)) == (200, b"")
        assert [turn.text for turn in queue.of("zhangsan")] == ["你好"]
        chunks = iter([b"x" * 65536] * (MAX_BODY_BYTES // 65536 + 1))
        status, _ = exchange(port, "POST", path, chunks)
        assert status == 413
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=START_TIMEOUT_S)
        assert process.returncode == 0
    events = [json.loads(line) for line in output.splitlines()]
    assert any(event["event"] == "web ready" for event in events)
    assert any(event["event"] == "message queued" for event in events)


@pytest.mark.parametrize("module", ["app", "app.web", "app.callback", "app.cli", "app.dispatch"])
def test_the_gateway_never_imports_torch(module: str) -> None:
    heavy = ["torch", "transformers", "faiss", "sentence_transformers"]
    if module == "app":
        heavy += ["flask", "celery", "wechatpy"]
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr

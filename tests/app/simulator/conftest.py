"""A simulator with a clock of its own and a recording app behind its callback URL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from app.simulator.corp import Corp
from app.simulator.crypto import new_encoding_aes_key
from app.simulator.service import Simulator
from app.simulator.web import running


@dataclass(frozen=True)
class Received:
    """One request at the app: method, query (one value a name) and body."""

    method: str
    query: dict[str, str]
    body: bytes


@dataclass
class RecordingApp:
    """An app that keeps what it got and answers what ``answer`` says."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], tuple[int, bytes]] = lambda _: (200, b"")


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def corp() -> Corp:
    return Corp("wwcorp1234567890", 1000002, "the-secret", "theToken", new_encoding_aes_key())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recording_app() -> Iterator[RecordingApp]:
    app = RecordingApp()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            parts = urlsplit(self.path)
            query = {k: v[0] for k, v in parse_qs(parts.query).items()}
            received = Received(self.command, query, self.rfile.read(length))
            app.received.append(received)
            status, body = app.answer(received)
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                pass  # the simulator hung up after its time-out

        do_GET = do_POST = _handle

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    app.url = f"http://127.0.0.1:{server.server_port}/wecom/callback"
    yield app
    server.shutdown()
    server.server_close()
    thread.join(timeout=5)


@pytest.fixture
def simulator(corp: Corp, clock: Clock, recording_app: RecordingApp) -> Simulator:
    return Simulator(
        corp, recording_app.url, clock=clock, callback_timeout_s=0.4, retry_pause_s=0.01
    )


@pytest.fixture
def base_url(simulator: Simulator) -> Iterator[str]:
    with running(simulator) as url:
        yield url

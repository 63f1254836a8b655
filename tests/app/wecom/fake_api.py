"""A scripted WeCom API on 127.0.0.1 for tests of the client: real HTTP, chosen outcomes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Outcome = Callable[[BaseHTTPRequestHandler], None]


class FakeApi:
    """Answers gettoken with token-1, token-2 ... and the other calls with the scripted outcomes."""

    def __init__(self) -> None:
        self.gettoken: list[dict[str, list[str]]] = []
        self.gettoken_outcome: Outcome | None = None
        self.sends: list[tuple[str, bytes]] = []
        self.uploads: list[tuple[dict[str, list[str]], bytes]] = []
        self.user_gets: list[dict[str, list[str]]] = []
        self.outcomes: list[Outcome] = []
        self.default: Outcome = answer({"errcode": 0, "errmsg": "ok", "msgid": "m1"})
        self.url = ""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = parse_qs(url.query)
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if url.path == "/cgi-bin/gettoken":
            self.gettoken.append(query)
            token = f"token-{len(self.gettoken)}"
            good = answer({"errcode": 0, "errmsg": "ok", "access_token": token, "expires_in": 7200})
            (self.gettoken_outcome or good)(handler)
        elif url.path == "/cgi-bin/message/send":
            self.sends.append((query["access_token"][0], body))
            (self.outcomes.pop(0) if self.outcomes else self.default)(handler)
        elif url.path == "/cgi-bin/media/upload":
            self.uploads.append((query, body))
            (self.outcomes.pop(0) if self.outcomes else self.default)(handler)
        elif url.path == "/cgi-bin/user/get":
            self.user_gets.append(query)
            (self.outcomes.pop(0) if self.outcomes else self.default)(handler)
        else:
            handler.send_error(404)


def answer(payload: dict[str, Any]) -> Outcome:
    """A 200 with JSON."""
    return raw(json.dumps(payload).encode())


def raw(body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Outcome:
    """Any status and body."""

    def run(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return run


def error(errcode: int, errmsg: str = "refused") -> Outcome:
    """A 200 with an error code."""
    return answer({"errcode": errcode, "errmsg": errmsg})


def silence(seconds: float) -> Outcome:
    """Accept the request and answer nothing for some seconds."""

    def run(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return run


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Accept the request and break the connection."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serve() -> Iterator[FakeApi]:
    """A running ``FakeApi``."""
    api = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            api.handle(self)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

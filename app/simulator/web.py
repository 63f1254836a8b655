"""The simulator on the network: its Flask app and a threaded server around it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Flask
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from app.simulator import api, face
from app.simulator.service import Simulator


class _QuietHandler(WSGIRequestHandler):
    """Keeps connections open and writes no access log: request lines hold access tokens."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: the log drawer shows what matters."""

    def connection_dropped(
        self, error: BaseException, environ: dict[str, object] | None = None
    ) -> None:
        """Also after a fault that cut the connection: nothing more can be read from it."""
        self.close_connection = True


def create_simulator(simulator: Simulator) -> Flask:
    """Flask app with the service's API and the chat page."""
    app = Flask(__name__)
    app.json.ensure_ascii = False  # type: ignore[attr-defined]
    app.register_blueprint(api.blueprint(simulator))
    app.register_blueprint(face.blueprint(simulator))

    @app.get("/healthz")
    def healthz() -> str:
        return "ok"

    return app


def make_http_server(simulator: Simulator, host: str, port: int) -> BaseWSGIServer:
    """A threaded HTTP server; port 0 takes a free one. The caller runs and closes it."""
    return make_server(
        host,
        port,
        create_simulator(simulator),
        threaded=True,
        request_handler=_QuietHandler,
    )


@contextmanager
def running(simulator: Simulator, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve ``simulator`` from a thread inside the block; yields its base URL."""
    server = make_http_server(simulator, host, port)
    thread = threading.Thread(
        target=server.serve_forever, args=(0.05,), name="simulator", daemon=True
    )
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(timeout=5)
        server.server_close()

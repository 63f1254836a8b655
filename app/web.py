"""The web process: the application under gunicorn.

Owns the server's settings. Knows nothing of the endpoints.

The server was chosen by ``python -m tests.load --servers``. Per callback (2 to 3 ms of processor
time, Redis included) gunicorn's gthread and sync workers and granian differ by less than their
own runs do; waitress, one process, takes fewer a second. Of the three, gthread keeps a client that
sends slowly from blocking the others, which sync does not, and needs no second server.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from app import create_app
from app.log import fields
from app.metrics import Metrics
from app.settings import Settings, SettingsError
from app.store.presence import Presence
from app.store.server import connect
from app.wecom.crypto import WeComCrypto

logger = logging.getLogger(__name__)

PROCESSES = 2
THREADS = 8
REQUEST_TIMEOUT_S = 30
GRACEFUL_TIMEOUT_S = 10


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Raises ``SettingsError`` before anything is started."""
    settings.require(
        "WECOM_CORP_ID", "WECOM_AGENT_ID", "WECOM_TOKEN", "WECOM_ENCODING_AES_KEY", "REDIS_URL"
    )
    WeComCrypto(settings.wecom_token, settings.wecom_encoding_aes_key, settings.wecom_corp_id)
    _check_address(settings.host, settings.port)
    _Server(settings).run()
    return 0


class _JsonLogger(Logger):  # type: ignore[misc]  # gunicorn is untyped
    """gunicorn's own lines through the handlers of the process."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers[:] = []
        self.error_log.propagate = True


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn is untyped
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics: Metrics | None = None
        self._presence: Presence | None = None
        super().__init__()

    def load_config(self) -> None:
        options = {
            "bind": [_address(self._settings.host, self._settings.port)],
            "worker_class": "gthread",
            "workers": PROCESSES,
            "threads": THREADS,
            "timeout": REQUEST_TIMEOUT_S,
            "graceful_timeout": GRACEFUL_TIMEOUT_S,
            "proc_name": "hutong-web",
            "logger_class": _JsonLogger,
            "loglevel": "warning",
            "when_ready": self._announce,
            "post_worker_init": self._worker_started,
            "worker_exit": self._worker_ended,
            "control_socket_disable": True,
        }
        if Path("/dev/shm").is_dir() and os.access("/dev/shm", os.W_OK):
            # The workers' heartbeat files; on a disk, a slow one looks like a hung worker.
            options["worker_tmp_dir"] = "/dev/shm"
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        self._metrics = Metrics(connect(self._settings.redis_url, timeout_s=1.0))
        return create_app(self._settings, metrics=self._metrics)

    def _worker_started(self, _worker: object) -> None:
        """In the child, after the fork."""
        self._presence = Presence(connect(self._settings.redis_url, timeout_s=1.0), "web")
        self._presence.__enter__()
        assert self._metrics is not None, "load() ran in this child before"
        self._metrics.__enter__()

    def _worker_ended(self, _arbiter: object, _worker: object) -> None:
        if self._presence is not None and self._metrics is not None:
            self._presence.__exit__(None, None, None)
            self._metrics.__exit__(None, None, None)

    def _announce(self, _arbiter: object) -> None:
        address = _address(self._settings.host, self._settings.port)
        logger.info("web ready", extra=fields(url=f"http://{address}"))


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_address(host: str, port: int) -> None:
    """Raises ``SettingsError`` when nobody can listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise SettingsError(
            f"不能监听 {host} 的端口 {port}（{error}），什么也没有启动。"
            "请改 HUTONG_HOST、HUTONG_PORT，或者停掉占用它的程序。"
        ) from error

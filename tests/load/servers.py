"""The WSGI servers that were compared, each around the same application.

Owns their command lines. Those not installed are left out: only the chosen one is a dependency.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

CHOSEN = "chosen"
_WSGI = "tests.load.servers:application()"
_GUNICORN = ("-m", "gunicorn", "--workers", "2", "--log-level", "warning", "--bind")


@dataclass(frozen=True)
class Server:
    """``module`` must be installed; ``{address}``, ``{host}`` and ``{port}`` are filled in."""

    module: str
    argv: tuple[str, ...]

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return importlib.util.find_spec(self.module) is not None


SERVERS: Mapping[str, Server] = {
    CHOSEN: Server("gunicorn", ("-m", "app", "web")),
    "gunicorn gthread 2x8": Server(
        "gunicorn",
        (*_GUNICORN, "{address}", "-k", "gthread", "--threads", "8", _WSGI),
    ),
    "gunicorn gthread 2x2": Server(
        "gunicorn",
        (*_GUNICORN, "{address}", "-k", "gthread", "--threads", "2", _WSGI),
    ),
    "gunicorn sync 2": Server("gunicorn", (*_GUNICORN, "{address}", "-k", "sync", _WSGI)),
    "waitress 8": Server(
        "waitress",
        (
            *("-m", "waitress", "--host={host}", "--port={port}", "--threads=8"),
            *("--call", "tests.load.servers:application"),
        ),
    ),
    "granian 2x8": Server(
        "granian",
        (
            *("-m", "granian", "--interface", "wsgi", "--host", "{host}", "--port", "{port}"),
            *("--workers", "2", "--blocking-threads", "8", "--log-level", "warning"),
            *("--factory", "tests.load.servers:application"),
        ),
    ),
}


def application() -> Flask:
    """The web application, for servers that load it by name."""
    from app import create_app, log
    from app.settings import load

    settings = load(os.environ)
    log.configure(settings.log_level)
    return create_app(settings)

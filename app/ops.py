"""What an operator's monitoring asks: is the process alive, and can it serve.

Owns ``/healthz``, ``/readyz`` and ``/``, which names the two. Knows nothing of messages.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import redis
from flask import Blueprint, Response, jsonify

from app.store.presence import alive


@dataclass(frozen=True)
class Readiness:
    """Why the gateway can or cannot serve. ``turn_workers`` counts live ones with a model."""

    redis: bool
    turn_workers: int

    @property
    def ready(self) -> bool:
        """True when a message taken now would be answered."""
        return self.redis and self.turn_workers > 0


def readiness(client: redis.Redis) -> Readiness:
    """Ask Redis, and through it for the heartbeats of the turn workers."""
    try:
        client.ping()
        workers = len(alive(client))
    except redis.RedisError:
        return Readiness(redis=False, turn_workers=0)
    return Readiness(redis=True, turn_workers=workers)


def blueprint(client: redis.Redis) -> Blueprint:
    """``GET /healthz`` (200 while the process answers) and ``GET /readyz`` (200 or 503)."""
    routes = Blueprint("ops", __name__)

    @routes.get("/")
    def index() -> Response:
        return Response(
            "胡同网关在运行。存活检查 /healthz，就绪检查 /readyz。\n", mimetype="text/plain"
        )

    @routes.get("/healthz")
    def healthz() -> Response:
        return jsonify(status="ok")

    @routes.get("/readyz")
    def readyz() -> tuple[Response, int]:
        state = readiness(client)
        return jsonify(ready=state.ready, **asdict(state)), 200 if state.ready else 503

    return routes

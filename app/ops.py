"""What an operator's monitoring asks: is the process alive, can it serve, what does it count.

Owns ``/healthz``, ``/readyz``, ``/metrics`` and ``/``, which names them. Knows nothing of messages.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import redis
from flask import Blueprint, Response, jsonify

from app import exposition
from app.boundary import error_json
from app.store.presence import alive
from app.token_guard import TokenGuard


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


def blueprint(client: redis.Redis, guard: TokenGuard, corp_id: str, agent_id: str) -> Blueprint:
    """``GET /healthz`` (200 while the process answers), ``GET /readyz`` (200 or 503) and
    ``GET /metrics`` of the app of ``agent_id`` for those whom ``guard`` grants it."""
    routes = Blueprint("ops", __name__)

    @routes.get("/")
    def index() -> Response:
        return Response(
            "胡同网关在运行。存活检查 /healthz，就绪检查 /readyz，指标 /metrics。\n",
            mimetype="text/plain",
        )

    @routes.get("/healthz")
    def healthz() -> Response:
        return jsonify(status="ok")

    @routes.get("/readyz")
    def readyz() -> tuple[Response, int]:
        state = readiness(client)
        return jsonify(ready=state.ready, **asdict(state)), 200 if state.ready else 503

    @routes.get("/metrics")
    def metrics() -> Response:
        try:
            verdict = guard.check()
        except redis.RedisError:
            verdict = guard.check_without_store()  # that Redis is away is what a scrape must show
        if verdict.outcome == "blocked":
            wait_s = verdict.retry_after_s
            return error_json(429, "too_many_wrong_tokens", f"again in {wait_s} s", wait_s)
        if verdict.outcome == "denied":
            return error_json(
                401, "unauthorized", "send Authorization: Bearer <METRICS_TOKEN or ADMIN_TOKEN>"
            )
        text = exposition.text(client, corp_id, agent_id)
        return Response(text, content_type=exposition.CONTENT_TYPE)

    return routes

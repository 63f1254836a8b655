"""The admin API: put a message through the whole path as a user, and look at a turn.

Owns the request and answer formats and who may call. ``parse_test_message`` and ``turn_json`` are
free of Flask. Knows nothing of how a turn is worked on.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flask import Blueprint, Response

from app.boundary import error_json, json_response, read_body
from app.intake import Intake, Taken
from app.log import fields
from app.store.app_state import AppState
from app.store.gate import Gate
from app.store.turns import Turn, Turns
from app.token_guard import TokenGuard
from app.wecom.message import InboundMessage, is_user_name
from app.wecom.xml import strip_controls

logger = logging.getLogger(__name__)

_FIELDS = {"user": str, "text": str, "dry_run": bool}


class AdminError(Exception):
    """A refused request; ``code`` is stable, the text is for the administrator."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class TestMessage:
    """The body of ``POST /admin/test-message``; ``dry_run`` keeps the answer out of WeCom."""

    __test__ = False  # not a test class, whatever pytest makes of the name

    user: str
    text: str
    dry_run: bool = False


def parse_test_message(body: bytes) -> TestMessage:
    """Raises ``AdminError`` (400) naming what is wrong."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        raise AdminError(400, "malformed_json", "the body is not JSON") from None
    if not isinstance(payload, dict):
        raise AdminError(400, "malformed_json", "the body is not a JSON object")
    unknown = sorted(payload.keys() - _FIELDS.keys())
    if unknown:
        raise AdminError(400, "unknown_field", f"unknown field: {', '.join(unknown)[:200]}")
    for name in ("user", "text"):
        if name not in payload:
            raise AdminError(400, "missing_field", f"missing field: {name}")
    for name, value in payload.items():
        if not isinstance(value, _FIELDS[name]):
            raise AdminError(400, "wrong_type", f"{name} must be {_FIELDS[name].__name__}")
    if not is_user_name(payload["user"]):
        raise AdminError(400, "bad_user", "user must be the id of one member")
    return TestMessage(
        payload["user"], strip_controls(payload["text"]), payload.get("dry_run", False)
    )


def turn_json(turn: Turn, position: int) -> dict[str, Any]:
    """A turn as the API shows it; ``steps`` hold the thinking and every tool call."""
    return {
        "turn_id": turn.id,
        "user": turn.user,
        "msg_type": turn.msg_type,
        "text": turn.text,
        "dry_run": turn.dry_run,
        "status": turn.status,
        "position": position,
        "attempts": turn.attempts,
        "error": turn.error,
        "answer": turn.answer,
        "steps": json.loads(turn.steps),
        "times": {
            "created_ms": turn.created_ms,
            "started_ms": turn.started_ms,
            "acked_ms": turn.acked_ms,
            "ended_ms": turn.ended_ms,
        },
    }


@dataclass(frozen=True)
class AdminApi:
    """What the admin endpoints need. ``admin_token`` "" turns them off."""

    admin_token: str
    corp_id: str
    agent_id: str
    intake: Intake
    turns: Turns
    app_state: AppState
    counts: Callable[[], Mapping[str, float]]
    gate: Gate
    guard: TokenGuard

    def authorize(self) -> None:
        """Look at the current request. Raises ``AdminError``: 404 when the API is off, 401 for a
        wrong token, 429 after too many of them. Raises ``redis.RedisError``."""
        if not self.admin_token:
            raise AdminError(404, "not_found", "the admin API is off: ADMIN_TOKEN is not set")
        verdict = self.guard.check()
        if verdict.outcome == "blocked":
            raise AdminError(
                429,
                "too_many_wrong_tokens",
                f"too many wrong tokens from your address; again in {verdict.retry_after_s} s",
                verdict.retry_after_s,
            )
        if verdict.outcome == "denied":
            raise AdminError(401, "unauthorized", "send Authorization: Bearer <ADMIN_TOKEN>")

    def status(self) -> dict[str, Any]:
        """What an administrator must mend, and what has been counted. Raises ``RedisError``."""
        alerts = self.app_state.alerts()
        return {
            "alerts": [{"app": app, **asdict(alert)} for app, alert in alerts.items()],
            "queued": self.gate.queued(),
            "sending_held": bool(self.app_state.held_since_ms(self.corp_id, self.agent_id)),
            "counters": dict(self.counts()),
        }

    def submit(self, message: TestMessage) -> Taken:
        """Take ``message`` as if the user had sent it. Raises ``RedisError``."""
        turn_id = uuid.uuid4().hex
        inbound = InboundMessage(
            corp_id=self.corp_id,
            agent_id=self.agent_id,
            from_user_name=message.user,
            msg_type="text",
            msg_id=f"test-{turn_id}",
            create_time_s=int(time.time()),
            content=message.text if message.text.strip() else "",
        )
        taken = self.intake.take(inbound, turn_id, dry_run=message.dry_run)
        logger.info(
            "test message queued",
            extra=fields(turn_id=turn_id, outcome=taken.outcome, dry_run=message.dry_run),
        )
        return taken


def blueprint(api: AdminApi) -> Blueprint:
    """``POST /admin/test-message``, ``GET /admin/turns/<id>`` and ``GET /admin/status``, behind
    the bearer token."""
    routes = Blueprint("admin", __name__, url_prefix="/admin")

    @routes.before_request
    def authorize() -> None:
        api.authorize()

    @routes.post("/test-message")
    def test_message() -> Response:
        taken = api.submit(parse_test_message(read_body()))
        return json_response({"turn_id": taken.turn_id}, 202)

    @routes.get("/status")
    def show_status() -> Response:
        return json_response(api.status(), 200)

    @routes.get("/turns/<turn_id>")
    def show_turn(turn_id: str) -> Response:
        turn = api.turns.get(turn_id)
        if turn is None:
            raise AdminError(
                404, "unknown_turn", "no such turn, or it ended so long ago that it is gone"
            )
        return json_response(turn_json(turn, 0 if turn.ended else api.turns.position(turn_id)), 200)

    @routes.errorhandler(AdminError)
    def refuse(error: AdminError) -> Response:
        return error_json(error.status, error.code, str(error), error.retry_after_s)

    return routes

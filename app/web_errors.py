"""The request boundary: every failure becomes a typed JSON answer, never a traceback.

Owns the HTTP form of errors that no endpoint turned into its own answer.
"""

from __future__ import annotations

import logging
import uuid

import redis
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge

from app.admin import error_json
from app.callback import PATH
from app.log import fields

logger = logging.getLogger(__name__)


def register(app: Flask) -> None:
    """Attach the handlers to ``app``."""
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(redis.RedisError, _redis_error)
    app.register_error_handler(Exception, _bug)


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    logger.warning(
        "request refused",
        extra=fields(status=status, method=request.method, path=request.path[:200]),
    )
    if isinstance(error, NotFound):
        message = f"no such path; the WeCom callback is {PATH}"
    elif isinstance(error, RequestEntityTooLarge):
        message = "the body is too large"
    else:
        message = error.name
    return error_json(status, error.name.lower().replace(" ", "_"), message)


def _redis_error(error: redis.RedisError) -> Response:
    logger.error("Redis failed", extra=fields(error=type(error).__name__, path=request.path[:200]))
    return error_json(503, "store_unavailable", "Redis cannot be reached; try again")


def _bug(error: Exception) -> Response:
    error_id = uuid.uuid4().hex[:12]
    logger.error("bug", exc_info=error, extra=fields(error_id=error_id, path=request.path[:200]))
    return error_json(500, "internal", f"internal error {error_id}; the log has the details")

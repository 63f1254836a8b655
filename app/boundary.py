"""The request boundary: no body beyond the limit comes in, no traceback goes out.

Owns reading a body, the JSON form of errors and what becomes of errors no endpoint answered.
Knows no endpoint.
"""

from __future__ import annotations

import hmac
import json
import logging
import uuid
from typing import Any

import redis
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge

from app.log import fields

logger = logging.getLogger(__name__)


def read_body() -> bytes:
    """The body of the current request. Raises ``RequestEntityTooLarge`` beyond the limit.

    werkzeug cuts a chunked body at the limit without a word; reading on tells.
    """
    body = request.get_data(cache=False)
    request.stream.read(1)
    return body


def has_bearer(*tokens: str) -> bool:
    """True when the current request carries one of ``tokens`` that is not ""; in constant time."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    sent = given.strip().encode("latin-1", "replace")
    matches = [hmac.compare_digest(sent, token.encode()) for token in tokens if token]
    return scheme.lower() == "bearer" and any(matches)


def json_response(payload: dict[str, Any], status: int) -> Response:
    """``payload`` as JSON in real UTF-8."""
    text = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
    return Response(text, status, mimetype="application/json")


def error_json(status: int, code: str, message: str, retry_after_s: int = 0) -> Response:
    """The one form of every error: ``{"error": {"code", "message"}}``."""
    response = json_response({"error": {"code": code, "message": message}}, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if retry_after_s:
        response.headers["Retry-After"] = str(retry_after_s)
    return response


def register(app: Flask) -> None:
    """Attach the error handlers to ``app``."""
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
        message = "no such path; the WeCom callback is /wecom/callback"
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

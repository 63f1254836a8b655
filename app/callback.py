"""The WeCom callback: verify, decrypt, parse, hand over to the intake, answer an empty 200.

Owns the order of these and the HTTP status of every outcome. ``CallbackReceiver`` is free of
Flask; ``blueprint`` is the thin layer around it. Knows nothing of what answers a message.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import redis
from flask import Blueprint, Response, request

from app.boundary import read_body
from app.intake import Intake
from app.log import fields
from app.metrics import Metrics
from app.store.keys import DEDUPE_EXPIRY_S
from app.wecom.crypto import WeComCrypto
from app.wecom.errors import AgentIdError, CallbackError, MalformedError, StaleError
from app.wecom.message import InboundMessage, parse

logger = logging.getLogger(__name__)

PATH = "/wecom/callback"
FRESH_S = DEDUPE_EXPIRY_S / 2
_RESULTS = {200: "taken", 400: "malformed", 403: "forbidden", 503: "unavailable"}


@dataclass(frozen=True)
class Reply:
    """An HTTP answer in plain text."""

    status: int
    text: str = ""


class CallbackReceiver:
    """Takes the callbacks of one app."""

    def __init__(
        self,
        crypto: WeComCrypto,
        agent_id: str,
        intake: Intake,
        clock: Callable[[], float] = time.time,
        metrics: Metrics | None = None,
    ) -> None:
        self._crypto = crypto
        self._agent_id = agent_id
        self._intake = intake
        self._clock = clock
        self._metrics = metrics or Metrics()

    def verify(self, query: Mapping[str, str]) -> Reply:
        """Answer WeCom's URL verification: 200 with the plaintext of ``echostr``, or 400, 403."""
        try:
            signature, timestamp, nonce = _signed(query)
            plain = self._crypto.verify_url(
                signature, timestamp, nonce, _required(query, "echostr")
            )
        except CallbackError as error:
            return _refused(error)
        logger.info("callback URL verified")
        return Reply(200, plain)

    def receive(self, query: Mapping[str, str], body: bytes) -> Reply:
        """Take one message or event.

        200 once the message is safe (or needs no answer), 400 or 403 for what is not from WeCom
        or not for this app, and 503 only when Redis cannot take it: WeCom then delivers again.
        """
        with self._metrics.timed("hutong_callback_seconds"):
            reply = self._receive(query, body)
        self._metrics.count("hutong_callbacks", result=_RESULTS[reply.status])
        return reply

    def _receive(self, query: Mapping[str, str], body: bytes) -> Reply:
        try:
            signature, timestamp, nonce = _signed(query)
            message = parse(self._crypto.decrypt(body, signature, timestamp, nonce))
            self._check_fresh(timestamp)
            self._check_agent(message)
        except CallbackError as error:
            return _refused(error)
        if not message.wants_answer:
            logger.info("event dropped", extra=fields(event_type=message.event))
            return Reply(200)
        return self._take(replace(message, agent_id=self._agent_id))

    def _check_agent(self, message: InboundMessage) -> None:
        if message.agent_id and message.agent_id != self._agent_id:
            raise AgentIdError(
                f"the message is for agent {message.agent_id[:32]!r}, "
                f"WECOM_AGENT_ID is {self._agent_id!r}"
            )

    def _check_fresh(self, timestamp: str) -> None:
        """A recording of a callback is a duplicate while its key is remembered, and stale later:
        so no nonce need be kept, and a clock that is hours wrong loses nothing."""
        if not timestamp.isascii() or not timestamp.isdecimal():
            raise MalformedError("timestamp is not a number")
        off_s = abs(self._clock() - int(timestamp[:12]))
        if off_s > FRESH_S:
            raise StaleError(
                f"signed {off_s / 3600:.0f} h away from now: a recording, or the clock is wrong"
            )

    def _take(self, message: InboundMessage) -> Reply:
        try:
            self._intake.take(message, uuid.uuid4().hex)
        except redis.RedisError as error:
            logger.error(
                "message not taken: Redis failed; WeCom will deliver it again",
                extra=fields(error=type(error).__name__, user=message.from_user_name),
            )
            return Reply(503, "the message could not be stored; deliver it again")
        return Reply(200)


def blueprint(receiver: CallbackReceiver) -> Blueprint:
    """``GET`` and ``POST /wecom/callback``, with or without a slash at the end."""
    routes = Blueprint("callback", __name__)

    @routes.get(PATH)
    def verify() -> Response:
        return _response(receiver.verify(request.args))

    @routes.post(PATH)
    def receive() -> Response:
        return _response(receiver.receive(request.args, read_body()))

    return routes


def _response(reply: Reply) -> Response:
    return Response(reply.text, reply.status, mimetype="text/plain")


def _signed(query: Mapping[str, str]) -> tuple[str, str, str]:
    """``msg_signature``, ``timestamp`` and ``nonce``."""
    if "signature" in query and not query.get("msg_signature"):
        raise MalformedError("missing parameter: msg_signature (signature is another one)")
    return (
        _required(query, "msg_signature"),
        _required(query, "timestamp"),
        _required(query, "nonce"),
    )


def _required(query: Mapping[str, str], name: str) -> str:
    value = query.get(name)
    if not value:
        raise MalformedError(f"missing parameter: {name}")
    return value


def _refused(error: CallbackError) -> Reply:
    """400 for what is malformed, 403 for what is not from our WeCom app; the log says why."""
    malformed = isinstance(error, MalformedError)
    logger.warning(
        "callback refused", extra=fields(error=type(error).__name__, reason=str(error)[:300])
    )
    return Reply(400, str(error)) if malformed else Reply(403, "refused; the log says why")

"""Sends the parts of one user's outbox, in order, each at most once as far as can be known.

Owns what each outcome of a send means for the part, the user and the app. Knows nothing of HTTP
or tokens (a client is passed in) nor of where the parts come from. Never imports the engine.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import redis

from app.log import fields
from app.metrics import Metrics
from app.store import keys
from app.store.app_state import AppState
from app.store.keys import split_tag
from app.store.lease import Lease, Leases
from app.store.outbox import Claim, Outbox, Outcome, Part
from app.wecom.client import SendResult
from app.wecom.errors import ApiError, SendUnknownError, TransportError
from workers import replies

log = logging.getLogger(__name__)

INVALID_MEDIA_ID = 40007


class MessageClient(Protocol):
    """Sends one message to one member; see ``app.wecom.client.WeComClient``."""

    def send_text(self, user: str, text: str, *, duplicate_check: bool = False) -> SendResult:
        """Raises ``ApiError``, ``TransportError`` or ``SendUnknownError``."""
        ...

    def send_markdown(self, user: str, text: str, *, duplicate_check: bool = False) -> SendResult:
        """As ``send_text``."""
        ...

    def upload_image(self, filename: str, png: bytes) -> str:
        """The media_id; raises ``ApiError`` or ``TransportError``."""
        ...

    def send_image(self, user: str, media_id: str, *, duplicate_check: bool = False) -> SendResult:
        """As ``send_text``; ``ApiError`` 40007 when WeCom has the image no more."""
        ...


@dataclass(frozen=True)
class DeliveryLimits:
    """Waiting times in seconds.

    ``gap_s`` keeps two messages to one member from overtaking each other on WeCom's side.
    ``frequency_waits_s`` are the waits after the first, second ... 45009 in a row: the block lasts
    a minute, an hour or the rest of the day, and the answer does not say which. After ``pause_s``
    the next message is the probe whether a wrong configuration was mended. Settled parts stay
    readable for ``ended_expiry_s``.
    """

    gap_s: float = 0.3
    backoff_s: float = 1.0
    most_backoff_s: float = 60.0
    frequency_waits_s: tuple[float, ...] = (60.0, 60.0, 300.0, 900.0, 3600.0)
    pause_s: float = 30.0
    lease_ttl_s: float = 30.0
    ended_expiry_s: int = keys.ENDED_EXPIRY_S


class Sender:
    """Delivers outboxes; safe to call from many threads and many processes.

    ``clients`` has one client per ``(corp_id, agent_id)``.
    """

    def __init__(
        self,
        client: redis.Redis,
        clients: Mapping[tuple[str, str], MessageClient],
        limits: DeliveryLimits | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        metrics: Metrics | None = None,
    ) -> None:
        self._limits = limits or DeliveryLimits()
        self._outbox = Outbox(client, ended_expiry_s=self._limits.ended_expiry_s)
        self._app = AppState(client)
        self._metrics = metrics or Metrics()
        self._clients = clients
        self._leases = Leases(client, "send", self._limits.lease_ttl_s)
        self._sleep = sleep
        self._jitter = jitter
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let running deliveries end after the part they are sending."""
        self._stopping.set()

    def deliver(self, tag: str) -> None:
        """Send what the outbox of ``tag`` holds; returns at once when somebody else does.

        Raises ``redis.RedisError`` when Redis is away: a part then in flight stays ``unknown``.
        """
        address = split_tag(tag)
        client = self._clients.get((address.corp_id, address.agent_id))
        if client is None:
            log.error(
                "no credentials for this app; its outbox is kept",
                extra=fields(agent_id=address.agent_id),
            )
            self._outbox.hold(tag, self._limits.pause_s)
            return
        while not self._stopping.is_set():
            if self._outbox.held(tag) or self._app.paused(tag):
                return
            lease = self._leases.acquire(tag)
            if lease is None:
                return
            with lease:
                while self._step(lease, client):
                    self._sleep(self._limits.gap_s)
            # A part that came after the last look and before the release woke nobody.
            if self._outbox.head(tag) is None:
                return

    def _step(self, lease: Lease, client: MessageClient) -> bool:
        """One part; False when there is nothing more to do now."""
        part = self._outbox.head(lease.tag)
        if part is None or self._stopping.is_set() or self._app.paused(lease.tag):
            return False
        claim = self._outbox.claim(lease, part)
        if claim.verdict == "wait":
            log.info("budget of a member used up", extra=fields(wait_s=claim.wait_s))
            self._outbox.hold(lease.tag, claim.wait_s)
            return False
        if claim.verdict == "ended":
            log.error("part given up", extra=fields(part_id=part.id, state=part.state))
            self._metrics.count("hutong_sends", state="given_up", errcode=0)
            return True
        if claim.verdict == "dropped":
            self._metrics.count("hutong_sends", state="dropped", errcode=0)
            return True
        if claim.verdict != "claimed":
            return claim.verdict != "lost"
        with self._metrics.timed("hutong_send_seconds"):
            outcome = self._send(lease, part, client, claim)
        settled = self._outbox.settle(lease, part, outcome)
        self._metrics.count("hutong_sends", state=outcome.state, errcode=outcome.errcode)
        if outcome.state == "sent" and self._app.works(lease.tag):
            log.warning("sending works again", extra=fields(part_id=part.id))
        log.info(
            "part tried",
            extra=fields(
                part_id=part.id,
                state=outcome.state,
                errcode=outcome.errcode,
                attempt=part.attempts + 1,
            ),
        )
        return settled and outcome.state in ("sent", "refused")

    def _send(self, lease: Lease, part: Part, client: MessageClient, claim: Claim) -> Outcome:
        tag = lease.tag
        try:
            if part.image:
                return self._send_image(lease, part, client, claim)
            send = client.send_markdown if part.markdown else client.send_text
            user = split_tag(tag).user
            result = send(user, claim.body, duplicate_check=claim.duplicate_check)
        except SendUnknownError as error:
            return Outcome("unknown", errmsg=str(error), wait_s=self._backoff_s(part))
        except TransportError as error:
            if not error.retryable:
                self._alert(tag, 0, f"{error}；请检查 WECOM_API_BASE")
            return Outcome("pending", errmsg=str(error), wait_s=self._backoff_s(part))
        except ApiError as error:
            return self._refused(tag, part, error)
        return Outcome("sent", msgid=result.msgid, errcode=result.errcode)

    def _send_image(self, lease: Lease, part: Part, client: MessageClient, claim: Claim) -> Outcome:
        """Upload the image unless WeCom has it, then send it. Raises as the client does.

        What may have arrived is sent again under the same media_id only: another one would be
        another message for the duplicate check.
        """
        media_id = claim.media_id
        if not media_id:
            png = self._outbox.image(lease.tag, part.id)
            if png is None:
                return self._not_accepted(lease.tag, part, Outcome("refused", errmsg="no image"))
            media_id = client.upload_image(f"{part.turn_id}.png", png)
            if not self._outbox.keep_media(lease, part, media_id):
                return Outcome("pending", errmsg="the lease was lost during the upload")
        user = split_tag(lease.tag).user
        try:
            result = client.send_image(user, media_id, duplicate_check=claim.duplicate_check)
        except ApiError as error:
            expired = error.errcode == INVALID_MEDIA_ID and media_id == claim.media_id
            if not expired or part.state == "unknown":
                raise
            log.warning("image expired at WeCom", extra=fields(part_id=part.id))
            return Outcome(
                "pending", errcode=INVALID_MEDIA_ID, errmsg=error.errmsg, media_gone=True
            )
        return Outcome("sent", msgid=result.msgid, errcode=result.errcode)

    def _not_accepted(self, tag: str, part: Part, refused: Outcome) -> Outcome:
        """Nothing of ours can be sent as it is: the user is told, once."""
        log.error("part refused", extra=fields(part_id=part.id, errcode=refused.errcode))
        if part.kind == "answer":
            text = replies.IMAGE_UNSENDABLE if part.image else replies.UNSENDABLE
            self._outbox.notice(tag, part.turn_id, "unsendable", text.format(turn_id=part.turn_id))
        return replace(refused, media_gone=part.image)

    def _refused(self, tag: str, part: Part, error: ApiError) -> Outcome:
        """What an error code asks for; see ``app.wecom.errors.action_for``."""
        code = error.errcode or 0
        refused = Outcome("refused", errcode=code, errmsg=error.errmsg)
        if error.action == "give_up":
            log.error("receiver refused", extra=fields(part_id=part.id, errcode=code))
            return replace(refused, unreachable=True)
        if error.action == "bug":
            return self._not_accepted(tag, part, refused)
        wait_s = self._backoff_s(part)
        if error.action == "wait":
            waits_s = self._limits.frequency_waits_s
            wait_s = waits_s[min(self._app.limited(tag), len(waits_s)) - 1]
            log.error("frequency limit of WeCom", extra=fields(errcode=code, wait_s=wait_s))
            self._app.pause(tag, f"errcode {code}", wait_s)
        if error.action == "pause":
            ip = error.egress_ip
            hint = f"；请把 {ip} 加进企业可信IP" if ip else "；请检查企业微信后台和 WECOM_* 设置"
            self._alert(tag, code, f"errcode {code}{hint}", ip)
            wait_s = self._limits.pause_s
        return Outcome("pending", errcode=code, errmsg=error.errmsg, wait_s=wait_s)

    def _alert(self, tag: str, errcode: int, reason: str, allow_ip: str = "") -> None:
        """Pause the app and tell the administrator what to mend; nothing is lost."""
        self._app.pause(tag, reason, self._limits.pause_s)
        new = self._app.raise_alert(tag, errcode, reason, allow_ip)
        log.log(
            logging.ERROR if new else logging.INFO,
            "outbox paused, nothing is lost",
            extra=fields(reason=reason, errcode=errcode, allow_ip=allow_ip),
        )

    def _backoff_s(self, part: Part) -> float:
        whole = min(
            self._limits.most_backoff_s, self._limits.backoff_s * 2.0 ** min(part.attempts, 10)
        )
        return whole * (0.5 + self._jitter() / 2)

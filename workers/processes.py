"""The three worker processes, put together from settings.

Owns what each process consists of and how it ends. Knows nothing of the command line. Imports no
engine: the turn process gets a builder of its agent.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from app.dispatch import SEND_QUEUE, TURNS_QUEUE, Dispatcher, make_celery
from app.log import fields
from app.metrics import Metrics
from app.settings import Settings
from app.store.presence import Presence
from app.store.server import connect
from app.store.token_cache import RedisTokenCache
from app.wecom.access_token import AccessToken, FetchedToken
from app.wecom.client import TokenFetcher, WeComClient
from workers.celery_app import make_app, serve
from workers.delivery import DeliveryLimits, Sender
from workers.sweeper import Sweeper, SweepTimes
from workers.tasks import register_deliver, register_wake
from workers.turn import Agent, Draw, TurnLimits, TurnRunner

log = logging.getLogger(__name__)

SEND_THREADS = 8
BROKEN_STATUS = 1


@dataclass(frozen=True)
class LoadedAgent:
    """An agent that is ready, what its process tells of itself at every heartbeat, and what draws
    its tables (None: nothing does)."""

    agent: Agent
    facts: Callable[[], Mapping[str, Any]] = dict
    draw: Draw | None = None


AgentBuilder = Callable[[Settings], AbstractContextManager[LoadedAgent]]


def serve_turns(
    settings: Settings, build_agent: AgentBuilder, limits: TurnLimits | None = None
) -> int:
    """Load the model, say so, and answer until SIGTERM; the exit status.

    ``BROKEN_STATUS`` means that the engine died: whoever started the process starts it again.
    """
    settings.require("REDIS_URL")
    broken = threading.Event()

    def on_broken() -> None:
        broken.set()
        os.kill(os.getpid(), signal.SIGTERM)

    app = make_app(settings.redis_url)
    dispatcher = Dispatcher(app)
    with (
        connect(settings.redis_url) as client,
        Metrics(client) as metrics,
        build_agent(settings) as loaded,
    ):
        runner = TurnRunner(
            client,
            loaded.agent,
            limits
            or TurnLimits(
                settings.turn_timeout_s,
                settings.session_expiry_s,
                ended_expiry_s=settings.ended_expiry_s,
            ),
            markdown=settings.wecom_message_type == "markdown",
            draw=loaded.draw,
            on_reply=dispatcher.deliver,
            on_more=dispatcher.wake,
            on_broken=on_broken,
            metrics=metrics,
        )
        register_wake(app, runner.drain)
        with Presence(client, "turns", loaded.facts):
            log.info("turn worker ready", extra=fields(threads=settings.max_num_seqs))
            serve(app, TURNS_QUEUE, settings.max_num_seqs)
    return BROKEN_STATUS if broken.is_set() else 0


def serve_sender(settings: Settings) -> int:
    """Deliver outboxes until SIGTERM; the exit status."""
    settings.require("REDIS_URL", "WECOM_CORP_ID", "WECOM_AGENT_ID", "WECOM_CORP_SECRET")
    corp_id, agent_id = settings.wecom_corp_id, settings.wecom_agent_id
    fetch = TokenFetcher(settings.wecom_api_base, corp_id, settings.wecom_corp_secret)
    app = make_app(settings.redis_url)
    with connect(settings.redis_url) as client, Metrics(client) as metrics:

        def refresh() -> FetchedToken:
            result = "failed"
            try:
                token = fetch()
                result = "ok"
                return token
            finally:
                metrics.count("hutong_token_refreshes", result=result)

        wecom = WeComClient(
            settings.wecom_api_base,
            corp_id,
            agent_id,
            settings.wecom_corp_secret,
            AccessToken(corp_id, agent_id, refresh, RedisTokenCache(client)),
        )
        limits = DeliveryLimits(ended_expiry_s=settings.ended_expiry_s)
        sender = Sender(client, {(corp_id, agent_id): wecom}, limits, metrics=metrics)
        register_deliver(app, sender.deliver)
        with Presence(client, "sender"):
            log.info("sender ready", extra=fields(threads=SEND_THREADS))
            serve(app, SEND_QUEUE, SEND_THREADS, sender.stop)
    return 0


def serve_sweeper(settings: Settings) -> int:
    """Sweep until SIGTERM; the exit status."""
    settings.require("REDIS_URL")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    times = SweepTimes(ack_after_s=settings.ack_after_s)
    with (
        connect(settings.redis_url) as client,
        Metrics(client) as metrics,
        Presence(client, "sweeper"),
    ):
        log.info("sweeper ready")
        dispatcher = Dispatcher(make_celery(settings.redis_url))
        Sweeper(client, dispatcher, times, metrics).run(stop)
    return 0

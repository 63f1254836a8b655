"""Wakes other processes by task name; what they work on stays in Redis.

Owns Celery's broker configuration and the names of queues and tasks. Knows nothing of what the
tasks do. A wake may be lost or doubled: the sweeper repeats lost ones, leases make doubled ones
harmless. Nothing waits for a task's result, so there is no result back end.
"""

from __future__ import annotations

import logging
from urllib.parse import unquote, urlsplit

import kombu.exceptions
import redis
from celery import Celery

from app.log import fields
from app.store.keys import BROKER_PREFIX

log = logging.getLogger(__name__)

WAKE_TASK = "hutong.wake"
DELIVER_TASK = "hutong.deliver"
TURNS_QUEUE = "turns"
SEND_QUEUE = "send"

VISIBILITY_TIMEOUT_S = 3600
"""Longer than any task: nothing renews the clock of a running task, and a task that outlives it
is delivered again while it still runs. The sweeper, not this, repeats what a dead worker held."""


def broker_url(redis_url: str) -> str:
    """Celery's spelling of a Redis URL (it writes Unix sockets in its own way)."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    query = f"?virtual_host={db}" if (db := _db(parts.query)) else ""
    return f"redis+socket://{unquote(parts.path)}{query}"


def make_celery(redis_url: str, *, socket_timeout_s: float = 2.0) -> Celery:
    """A Celery application for this Redis, for senders and workers alike; has no tasks itself.

    The short time-out is for the web process, which must answer WeCom within 5 s.

    The transport options are the measured ones: with the defaults, a task held by a killed worker
    comes back after about 100 s, and one killed during the restore blocks it for 300 s.
    """
    app = Celery("hutong", broker=broker_url(redis_url), set_as_current=False)
    app.conf.update(
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 2,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 10,
            "global_keyprefix": BROKER_PREFIX,
            "socket_timeout": socket_timeout_s,
            "socket_connect_timeout": socket_timeout_s,
            # Of a publisher that finds no connection; consumers try without end.
            **{"max_retries": 1, "interval_start": 0, "interval_step": 0.1},
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_publish_retry=False,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=TURNS_QUEUE,
        task_routes={WAKE_TASK: {"queue": TURNS_QUEUE}, DELIVER_TASK: {"queue": SEND_QUEUE}},
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        enable_utc=True,
    )
    return app


class Dispatcher:
    """Sends wakes. Both methods return False, and never raise, when the broker is unreachable:
    the work is in Redis already and the sweeper will wake somebody for it."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def wake(self, tag: str) -> bool:
        """Ask a turn worker to look into the inbox of ``tag``."""
        return self._send(WAKE_TASK, tag)

    def deliver(self, tag: str) -> bool:
        """Ask a sender to look into the outbox of ``tag``."""
        return self._send(DELIVER_TASK, tag)

    def _send(self, name: str, tag: str) -> bool:
        try:
            self._app.send_task(name, args=[tag], ignore_result=True)
        except (kombu.exceptions.OperationalError, redis.RedisError, OSError) as error:
            log.warning(
                "wake not sent; the sweeper will",
                extra=fields(task=name, error=type(error).__name__),
            )
            return False
        return True


def queue_key(queue: str) -> str:
    """Redis list in which Celery keeps the messages of ``queue``."""
    return BROKER_PREFIX + queue


def _db(query: str) -> str:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return next((value for name, _, value in pairs if name == "db"), "")

"""Runs a Celery worker inside this process.

Owns how a worker is started and stopped. The broker's settings are in ``app.dispatch``, the tasks
in ``workers.tasks``. Imports no engine.

Pool ``threads``: the agent blocks a thread per conversation while the engine, in the same process,
decodes them as one batch; forking after a model is loaded would copy or break it. This pool
ignores time limits, so a turn has its own deadline, and it would run a task again that outlives
the visibility timeout, so that is far longer than any turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps, signals
from celery.worker import state

from app.dispatch import make_celery
from app.log import fields

log = logging.getLogger(__name__)

BROKER_TIMEOUT_S = 30.0
"""Above the blocking read of the broker, with room for a server under load."""


class ReconnectWhenDeaf(bootsteps.StartStopStep):  # type: ignore[misc]  # celery is untyped
    """Connects anew when messages count as unacknowledged that no running task stands for.

    kombu forgets a message only when its acknowledgement got through. Acknowledgements that fail
    while Redis is away are logged and dropped, so each takes one place of the prefetch limit for
    ever; with all places taken the worker reads nothing more, and never notices that its
    connection is dead. Found by the chaos run: both senders deaf after one restart of Redis.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    interval_s = 1.0
    most_checks = 3

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer: Any = None
        self._checks = 0

    def start(self, parent: Any) -> None:
        """Begin to look after the consumer ``parent``."""
        self._checks = 0
        self._timer = parent.timer.call_repeatedly(self.interval_s, self._check, (parent,))

    def stop(self, parent: Any) -> None:
        """The consumer stops, for good or to connect anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, parent: Any) -> None:
        qos = parent.task_consumer.channel.qos
        unacknowledged = len(qos._delivered) - len(qos._dirty)
        lost = unacknowledged - len(state.reserved_requests)
        self._checks = self._checks + 1 if lost > 0 else 0
        if self._checks >= self.most_checks:
            log.warning("acknowledgements lost; connecting anew", extra=fields(messages=lost))
            # A connection error in the event loop is what makes the consumer start again.
            raise ConnectionResetError("acknowledgements lost")


def make_app(redis_url: str) -> Celery:
    """The application of a worker process; it has no tasks yet."""
    app = make_celery(redis_url, socket_timeout_s=BROKER_TIMEOUT_S)
    app.conf.update(worker_enable_remote_control=False, worker_max_tasks_per_child=None)
    app.steps["consumer"].add(ReconnectWhenDeaf)
    return app


def serve(
    app: Celery, queue: str, concurrency: int, on_stopping: Callable[[], None] | None = None
) -> None:
    """Work on ``queue`` until SIGTERM or SIGINT, then finish running tasks and return.

    ``on_stopping`` is called when the signal arrives. Must be called from the main thread.
    """

    def stopping(**_: object) -> None:
        if on_stopping:
            on_stopping()

    signals.worker_shutting_down.connect(stopping, weak=False)
    worker = app.Worker(
        queues=[queue],
        pool="threads",
        concurrency=concurrency,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        hostname=f"{queue}@%h",
        quiet=True,
    )
    try:
        worker.start()
    finally:
        signals.worker_shutting_down.disconnect(stopping)

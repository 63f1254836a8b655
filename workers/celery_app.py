"""Runs a Celery worker inside this process.

Owns how a worker is started and stopped. The broker's settings are in ``app.dispatch``, the tasks
in ``workers.tasks``. Imports no engine.

Pool ``threads``: the agent blocks a thread per conversation while the engine, in the same process,
decodes them as one batch; forking after a model is loaded would copy or break it. This pool
ignores time limits, so a turn has its own deadline, and it would run a task again that outlives
the visibility timeout, so that is far longer than any turn.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery, signals

from app.dispatch import make_celery

BROKER_TIMEOUT_S = 30.0
"""Above the blocking read of the broker, with room for a server under load."""


def make_app(redis_url: str) -> Celery:
    """The application of a worker process; it has no tasks yet."""
    app = make_celery(redis_url, socket_timeout_s=BROKER_TIMEOUT_S)
    app.conf.update(worker_enable_remote_control=False, worker_max_tasks_per_child=None)
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

"""The Celery tasks: names and one line each.

Owns the mechanics every task shares. Knows nothing of turns or parts: what to do with a tag is
passed in. Imports no engine, so that the sender can import it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import redis
from celery import Celery, Task

from app.dispatch import DELIVER_TASK, WAKE_TASK
from app.log import fields

log = logging.getLogger(__name__)


class TagTask(Task):  # type: ignore[misc]
    """A hint that there may be work for one user.

    It never fails in Celery's eyes and is never retried by it: what is left undone stays in
    Redis, and the sweeper wakes somebody again. This is the task boundary for exceptions.
    """

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__call__(*args, **kwargs)
        except redis.RedisError as error:
            log.warning(
                "Redis failed during a task; the sweeper repeats it",
                extra=fields(task=self.name, error=type(error).__name__),
            )
        except Exception:
            log.exception("task failed", extra=fields(task=self.name))


def register_wake(app: Celery, drain: Callable[[str], None]) -> None:
    """``hutong.wake(tag)``: look into an inbox."""

    @app.task(base=TagTask, name=WAKE_TASK)  # type: ignore[untyped-decorator]
    def wake(tag: str) -> None:
        drain(tag)


def register_deliver(app: Celery, deliver: Callable[[str], None]) -> None:
    """``hutong.deliver(tag)``: look into an outbox."""

    @app.task(base=TagTask, name=DELIVER_TASK)  # type: ignore[untyped-decorator]
    def deliver_outbox(tag: str) -> None:
        deliver(tag)

"""The self-check of ``app.doctor``, run in the background and shown when it is done.

Owns who runs it (one web process at a time) and where its findings are kept. Knows no checks.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import redis

from app.doctor.findings import Finding, fail
from app.log import fields
from app.store import keys

logger = logging.getLogger(__name__)

LONGEST_S = 240
"""Longer than the engine's part may take; a process that died does not block it for more."""


@dataclass(frozen=True)
class Report:
    """What was found. ``ended_s`` is unix time."""

    findings: tuple[Finding, ...]
    ended_s: float
    took_s: float

    def count(self, level: str) -> int:
        """Number of findings of a level."""
        return sum(finding.level == level for finding in self.findings)


class SelfCheck:
    """The last report, and the way to another. ``examine`` may take minutes."""

    def __init__(self, client: redis.Redis, examine: Callable[[], Sequence[Finding]]) -> None:
        self._redis = client
        self._examine = examine

    def latest(self) -> Report | None:
        """The last report, of whatever web process; ``None`` for one of another version."""
        raw = self._redis.get(keys.SELF_CHECK)
        if not isinstance(raw, bytes):
            return None
        try:
            record = json.loads(raw)
            findings = tuple(Finding(**finding) for finding in record["findings"])
            return Report(findings, record["ended_s"], record["took_s"])
        except (ValueError, KeyError, TypeError):
            return None

    def running(self) -> bool:
        """True while one is on its way."""
        return bool(self._redis.exists(keys.SELF_CHECK_RUNNING))

    def start(self) -> threading.Thread | None:
        """Begin one, unless one is on its way; its thread."""
        if not self._redis.set(keys.SELF_CHECK_RUNNING, b"1", nx=True, ex=LONGEST_S):
            return None
        thread = threading.Thread(target=self._run, name="self-check", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        started = time.monotonic()
        try:
            findings = self._findings()
            record = {
                "findings": [asdict(finding) for finding in findings],
                "ended_s": time.time(),
                "took_s": round(time.monotonic() - started, 1),
            }
            self._redis.set(keys.SELF_CHECK, json.dumps(record, ensure_ascii=False))
            self._redis.delete(keys.SELF_CHECK_RUNNING)
        except redis.RedisError as error:
            logger.warning("self-check not kept", extra=fields(error=type(error).__name__))

    def _findings(self) -> Sequence[Finding]:
        try:
            return self._examine()
        except Exception as error:
            logger.error("self-check broken off", exc_info=error)
            fact = f"自检自己出错了（{type(error).__name__}）"
            return [fail("self_check", fact, "运行 python -m app doctor；网关的日志里有详情")]

"""What is counted and measured, by which name, and how a process counts without waiting.

Owns the table of counters and histograms and their way to Redis: every process adds up on its own
and a thread hands the sums to one hash, so that they survive restarts and one scrape sees all
processes. Knows nothing of HTTP or of what the numbers mean.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Literal, cast

import redis

from app.log import fields
from app.store import keys

log = logging.getLogger(__name__)

FLUSH_S = 1.0
_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_SLOW = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_RATES = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


@dataclass(frozen=True)
class Metric:
    """One row of the table. ``name`` is without suffix; times are in seconds."""

    name: str
    kind: Literal["counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("hutong_callbacks", "counter", "Callbacks by how they ended", ("result",)),
    Metric("hutong_callback_seconds", "histogram", "Time to answer a callback", (), _FAST),
    Metric("hutong_messages", "counter", "Messages by outcome and reason", ("outcome", "reason")),
    Metric("hutong_turns", "counter", "Turns ended by status", ("status",)),
    Metric("hutong_redeliveries", "counter", "Turns begun again after a worker died"),
    Metric("hutong_turn_wait_seconds", "histogram", "From arrival to the first step", (), _SLOW),
    Metric("hutong_turn_seconds", "histogram", "From the first step to the answer", (), _SLOW),
    Metric("hutong_first_token_seconds", "histogram", "Time to first token", (), _SLOW),
    Metric("hutong_decode_tokens_per_second", "histogram", "Decode speed of a step", (), _RATES),
    Metric("hutong_tokens", "counter", "Tokens by kind: prompt, cached, completion", ("kind",)),
    Metric("hutong_tool_calls", "counter", "Tool calls by tool and result", ("tool", "result")),
    Metric("hutong_tool_seconds", "histogram", "Duration of a tool call", ("tool",), _SLOW),
    Metric("hutong_sends", "counter", "Sends by state and errcode", ("state", "errcode")),
    Metric("hutong_send_seconds", "histogram", "Duration of a send", (), _FAST),
    Metric("hutong_token_refreshes", "counter", "Fetches of the access token", ("result",)),
    Metric("hutong_wakes_repeated", "counter", "Wakes repeated by the sweeper", ("queue",)),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True)
class Series:
    """One series as it stands in Redis. Counters have ``value``; histograms all three, with
    ``counts`` per bucket, the last one above the largest bound."""

    metric: Metric
    labels: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


class Metrics:
    """Counts for one process; safe to call from many threads. A context manager.

    Without a client everything is counted and thrown away, for tests and tools.
    """

    def __init__(self, client: redis.Redis | None = None, *, flush_s: float = FLUSH_S) -> None:
        self._redis = client
        self._flush_s = flush_s
        self._lock = threading.Lock()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def __enter__(self) -> Metrics:
        if self._redis is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()

    def count(self, name: str, by: float = 1, **labels: object) -> None:
        """Add to a counter of the table; ``labels`` must be exactly those of its row."""
        field = _field(_metric(name, "counter"), labels)
        with self._lock:
            self._sums[field] += by

    def observe(self, name: str, value: float, **labels: object) -> None:
        """Put ``value`` into a histogram of the table."""
        metric = _metric(name, "histogram")
        bucket = bisect_left(metric.buckets, value)
        with self._lock:
            self._sums[_field(metric, labels, f"le{bucket}")] += 1
            self._sums[_field(metric, labels, "sum")] += value

    @contextlib.contextmanager
    def timed(self, name: str, **labels: object) -> Iterator[None]:
        """Observe how long the block takes, also when it raises."""
        started = perf_counter()
        try:
            yield
        finally:
            self.observe(name, perf_counter() - started, **labels)

    def flush(self) -> None:
        """Hand the sums to Redis; while it is away they are kept and grow. Never raises."""
        with self._lock:
            sums, self._sums = self._sums, defaultdict(float)
        if self._redis is None or not sums:
            return
        try:
            pipe = self._redis.pipeline(transaction=True)
            for field, value in sums.items():
                pipe.hincrbyfloat(keys.METRICS, field, value)
            pipe.execute()
        except redis.RedisError as error:
            log.debug("metrics kept for later", extra=fields(error=type(error).__name__))
            with self._lock:
                for field, value in sums.items():
                    self._sums[field] += value

    def _run(self) -> None:
        while not self._done.wait(self._flush_s):
            self.flush()


def read(client: redis.Redis) -> list[Series]:
    """Everything counted since the store was made, in the order of the table."""
    raw = cast("dict[bytes, bytes]", client.hgetall(keys.METRICS))
    found: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}
    for key, value in raw.items():
        name, labels, part = json.loads(key)
        if name in _BY_NAME and len(labels) == len(_BY_NAME[name].labels):
            found.setdefault((name, tuple(labels)), {})[part] = float(value)
    order = {metric.name: index for index, metric in enumerate(METRICS)}
    return [
        _series(_BY_NAME[name], labels, parts)
        for (name, labels), parts in sorted(
            found.items(), key=lambda item: (order[item[0][0]], item[0][1])
        )
    ]


def totals(client: redis.Redis) -> dict[str, float]:
    """Counters for people, ``name{label,...}`` to value."""
    return {
        f"{series.metric.name}{{{','.join(series.labels)}}}": series.value
        for series in read(client)
        if series.metric.kind == "counter"
    }


def _series(metric: Metric, labels: tuple[str, ...], parts: Mapping[str, float]) -> Series:
    if metric.kind == "counter":
        return Series(metric, labels, parts.get("", 0.0))
    counts = tuple(int(parts.get(f"le{i}", 0)) for i in range(len(metric.buckets) + 1))
    return Series(metric, labels, parts.get("sum", 0.0), counts)


def _metric(name: str, kind: str) -> Metric:
    metric = _BY_NAME[name]
    assert metric.kind == kind, f"{name} is a {metric.kind}"
    return metric


def _field(metric: Metric, labels: Mapping[str, object], part: str = "") -> str:
    assert labels.keys() == set(metric.labels), f"{metric.name} has labels {metric.labels}"
    values = [str(labels[label]) for label in metric.labels]
    return json.dumps([metric.name, values, part], separators=(",", ":"), ensure_ascii=False)

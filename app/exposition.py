"""``GET /metrics``: everything counted, and what is true at this moment, for Prometheus.

Owns the gauges and the text of the answer. Reads Redis only; one scrape of any web process sees
all processes. Knows nothing of who counts what.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from app import metrics
from app.metrics import Series
from app.store import keys
from app.store.app_state import AppState
from app.store.gate import Gate, oldest_waiting_s
from app.store.presence import ROLES, ProcessReport, reports

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENGINE_GAUGES = {
    "gpu_memory_bytes": ("hutong_gpu_memory_bytes", "GPU memory of the model process"),
    "expert_hit_rate": ("hutong_expert_hit_rate", "Expert uses that were in the cache, 0-1"),
    "expert_recall_on_misses": (
        "hutong_expert_recall_on_misses",
        "Misses the router had foretold, 0-1",
    ),
    "num_running": ("hutong_engine_running", "Sequences being answered"),
    "num_waiting": ("hutong_engine_waiting", "Sequences waiting for a slot"),
}
"""Facts of a turn worker's heartbeat that become gauges."""


def text(client: redis.Redis, corp_id: str, agent_id: str) -> bytes:
    """The answer to one scrape; without Redis only ``hutong_redis_up 0``."""
    registry = CollectorRegistry()
    registry.register(_Collector(client, corp_id, agent_id))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, client: redis.Redis, corp_id: str, agent_id: str) -> None:
        self._redis = client
        self._app = (corp_id, agent_id)

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("hutong_redis_up", "Whether Redis answers")
        try:
            families = [
                *_counted(metrics.read(self._redis)),
                *_queues(self._redis),
                self._hold(),
                *_processes(reports(self._redis)),
            ]
            up.add_metric([], 1)
        except redis.RedisError:
            families = []
            up.add_metric([], 0)
        yield up
        yield from families

    def _hold(self) -> Metric:
        since_ms = AppState(self._redis).held_since_ms(*self._app)
        held_s = max(0.0, time.time() - since_ms / 1000) if since_ms else 0.0
        help_text = "How long an administrator has held the sending; 0 when nobody does"
        return _gauge("hutong_sending_held_seconds", help_text, held_s)


def _counted(found: list[Series]) -> Iterator[Metric]:
    """Every row of the table, also those nothing was counted for yet."""
    for metric in metrics.METRICS:
        family: Any
        if metric.kind == "counter":
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        else:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for series in found:
            if series.metric is not metric:
                continue
            if metric.kind == "counter":
                family.add_metric(series.labels, series.value)
            else:
                family.add_metric(series.labels, _cumulative(series), series.value)
        yield cast(Metric, family)


def _cumulative(series: Series) -> list[tuple[str, float]]:
    total, buckets = 0, []
    bounds = [*(str(bound) for bound in series.metric.buckets), "+Inf"]
    for bound, count in zip(bounds, series.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _queues(client: redis.Redis) -> Iterator[Metric]:
    age_s = oldest_waiting_s(client, time.time())
    yield _gauge("hutong_queue_depth", "Messages not answered yet", Gate(client).queued())
    yield _gauge("hutong_queue_oldest_seconds", "Age of the oldest of them", age_s)
    waiting = client.zcard(keys.PENDING_OUTBOXES)
    yield _gauge("hutong_outboxes_waiting", "Members with unsent parts", waiting)
    yield _gauge("hutong_alerts", "Things only an administrator can mend", client.hlen(keys.ALERTS))


def _processes(found: list[ProcessReport]) -> Iterator[Metric]:
    labels = ["role", "process"]
    alive = GaugeMetricFamily("hutong_processes", "Live processes", labels=["role"])
    for role in ROLES:
        alive.add_metric([role], sum(report.role == role for report in found))
    memory = GaugeMetricFamily("hutong_process_memory_bytes", "Resident memory", labels=labels)
    started = GaugeMetricFamily("hutong_process_start_seconds", "Unix time of start", labels=labels)
    for report in found:
        memory.add_metric([report.role, report.process_id], report.rss_bytes)
        started.add_metric([report.role, report.process_id], report.started_s)
    yield from (alive, memory, started)
    for fact, (name, help_text) in ENGINE_GAUGES.items():
        family = GaugeMetricFamily(name, help_text, labels=["process"])
        for report in found:
            if isinstance(report.facts.get(fact), int | float):
                family.add_metric([report.process_id], report.facts[fact])
        yield family


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return cast(Metric, GaugeMetricFamily(name, help_text, value=value))

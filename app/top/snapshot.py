"""What is read for one frame, and what two readings say together.

Owns the arithmetic: differences of counters, quantiles of histograms. Knows nothing of terminals.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import redis

from app import metrics
from app.metrics import Series
from app.store import keys
from app.store.app_state import Alert, AppState
from app.store.gate import Gate, oldest_waiting_s
from app.store.presence import ProcessReport, reports

Key = tuple[str, tuple[str, ...]]
"""Name and labels of a series."""


@dataclass(frozen=True)
class Reading:
    """The store at one moment."""

    taken_s: float
    series: Mapping[Key, Series]
    processes: tuple[ProcessReport, ...] = ()
    queue_depth: int = 0
    oldest_s: float = 0.0
    outboxes: int = 0
    alerts: Mapping[str, Alert] = field(default_factory=dict)


@dataclass(frozen=True)
class Duration:
    """Half of ``count`` took at most ``p50_s``; None where nothing was measured. ``above``: the
    95th is beyond the largest bound, which is given."""

    count: int
    p50_s: float | None
    p95_s: float | None
    above: bool = False


@dataclass(frozen=True)
class ToolUse:
    """Calls of one tool; ``failed`` of them gave an error."""

    name: str
    calls: int
    failed: int
    took: Duration


@dataclass(frozen=True)
class Snapshot:
    """One frame. ``window_s`` 0: numbers are those since the store was made, and rates None.

    ``problem`` names what kept Redis from answering; then nothing else is known.
    """

    taken_s: float
    problem: str = ""
    window_s: float = 0.0
    processes: tuple[ProcessReport, ...] = ()
    queue_depth: int = 0
    oldest_s: float = 0.0
    outboxes: int = 0
    alerts: Mapping[str, Alert] = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)
    callbacks: Mapping[str, int] = field(default_factory=dict)
    sends: Mapping[str, int] = field(default_factory=dict)
    send_errors: Mapping[str, int] = field(default_factory=dict)
    durations: Mapping[str, Duration] = field(default_factory=dict)
    tools: tuple[ToolUse, ...] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """True when Redis answered."""
        return not self.problem

    def per_minute(self, number: float) -> float | None:
        """``number`` of the window as a rate."""
        return number * 60 / self.window_s if self.window_s else None


TIMED = (
    "hutong_callback_seconds",
    "hutong_turn_wait_seconds",
    "hutong_first_token_seconds",
    "hutong_turn_seconds",
    "hutong_send_seconds",
)
"""Histograms without labels that are shown, in this order."""


def read(client: redis.Redis, now_s: float | None = None) -> Reading:
    """Ask Redis for everything. Raises ``redis.RedisError``."""
    now_s = time.time() if now_s is None else now_s
    return Reading(
        taken_s=now_s,
        series={(s.metric.name, s.labels): s for s in metrics.read(client)},
        processes=tuple(reports(client)),
        queue_depth=Gate(client).queued(),
        oldest_s=oldest_waiting_s(client, now_s),
        outboxes=client.zcard(keys.PENDING_OUTBOXES),
        alerts=AppState(client).alerts(),
    )


def compare(before: Reading | None, after: Reading) -> Snapshot:
    """The frame of ``after``; what is counted is what came since ``before``.

    A counter that fell belongs to another store: then everything counts since its beginning.
    """
    if before is not None and _fell(before, after):
        before = None
    series = _since(before, after)
    sends, errors = _by_label(series, "hutong_sends", 0), _by_label(series, "hutong_sends", 1)
    return Snapshot(
        taken_s=after.taken_s,
        window_s=after.taken_s - before.taken_s if before else 0.0,
        processes=after.processes,
        queue_depth=after.queue_depth,
        oldest_s=after.oldest_s,
        outboxes=after.outboxes,
        alerts=after.alerts,
        turns=_by_label(series, "hutong_turns", 0),
        callbacks=_by_label(series, "hutong_callbacks", 0),
        sends=sends,
        send_errors={code: number for code, number in errors.items() if code not in ("", "0")},
        durations={name: duration(_of(series, name)) for name in TIMED},
        tools=_tools(series),
        tokens=_by_label(series, "hutong_tokens", 0),
    )


def duration(found: Sequence[Series]) -> Duration:
    """Quantiles of histograms with the same buckets, taken together."""
    if not found:
        return Duration(0, None, None)
    bounds = found[0].metric.buckets
    counts = [sum(column) for column in zip(*(s.counts for s in found), strict=True)]
    total = sum(counts)
    if not total:
        return Duration(0, None, None)
    above = sum(counts[:-1]) < 0.95 * total
    return Duration(total, _quantile(0.5, bounds, counts), _quantile(0.95, bounds, counts), above)


def _quantile(share: float, bounds: Sequence[float], counts: Sequence[int]) -> float:
    """As Prometheus' ``histogram_quantile``: linear within a bucket, the largest bound beyond."""
    wanted, seen, low = share * sum(counts), 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen, low = seen + count, bound
    return bounds[-1]


def _since(before: Reading | None, after: Reading) -> dict[Key, Series]:
    series = {}
    for key, now in after.series.items():
        old = before.series.get(key) if before else None
        if old is not None:
            counts = tuple(n - o for n, o in zip(now.counts, old.counts, strict=True))
            now = Series(now.metric, now.labels, now.value - old.value, counts)
        series[key] = now
    return series


def _fell(before: Reading, after: Reading) -> bool:
    for key, old in before.series.items():
        now = after.series.get(key)
        if now is None or now.value < old.value or sum(now.counts) < sum(old.counts):
            return True
    return False


def _of(series: Mapping[Key, Series], name: str) -> list[Series]:
    return [found for (known, _), found in series.items() if known == name]


def _by_label(series: Mapping[Key, Series], name: str, label: int) -> dict[str, int]:
    """Sums of a counter by one of its labels; nothing that did not happen."""
    sums: dict[str, int] = {}
    for found in _of(series, name):
        if round(found.value):
            value = found.labels[label]
            sums[value] = sums.get(value, 0) + round(found.value)
    return sums


def _tools(series: Mapping[Key, Series]) -> tuple[ToolUse, ...]:
    times = {s.labels[0]: s for s in _of(series, "hutong_tool_seconds")}
    uses = []
    for name, calls in _by_label(series, "hutong_tool_calls", 0).items():
        fine = series.get(("hutong_tool_calls", (name, "ok")))
        failed = calls - round(fine.value if fine else 0)
        took = duration([times[name]] if name in times else [])
        uses.append(ToolUse(name, calls, failed, took))
    return tuple(sorted(uses, key=lambda use: (-use.calls, use.name)))

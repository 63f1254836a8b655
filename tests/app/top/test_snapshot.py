"""The arithmetic of a frame: differences, rates, quantiles, and a store that begins anew."""

from __future__ import annotations

import pytest
import redis

from app.metrics import METRICS, Metrics, Series
from app.store.server import RedisServer, connect
from app.top import Watch
from app.top.snapshot import compare, duration, read

TURN = next(m for m in METRICS if m.name == "hutong_turn_seconds")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def counts(**at: int) -> tuple[int, ...]:
    """Counts by bucket number, ``b3=5``."""
    return tuple(at.get(f"b{number}", 0) for number in range(len(TURN.buckets) + 1))


@pytest.mark.parametrize(
    ("found", "p50", "p95", "above"),
    [
        (counts(b0=1), 0.05, 0.095, False),  # all within 0.1 s
        (counts(b3=50, b4=50), 1.0, 2.35, False),  # half up to 1 s, half up to 2.5 s
        (counts(b3=9, b11=91), 160.0, 160.0, True),  # beyond the largest bound
    ],
)
def test_quantiles_are_those_of_prometheus(
    found: tuple[int, ...], p50: float, p95: float, above: bool
) -> None:
    took = duration([Series(TURN, (), 1.0, found)])
    assert (took.p50_s, took.p95_s) == (pytest.approx(p50), pytest.approx(p95))
    assert (took.count, took.above) == (sum(found), above)


def test_nothing_measured_has_no_quantiles() -> None:
    assert duration([]).p50_s is None
    assert duration([Series(TURN, (), 0.0, counts())]).p95_s is None


def test_two_readings_give_what_happened_between_them(redis_client: redis.Redis) -> None:
    metrics, clock = Metrics(redis_client), Clock()
    watch = Watch(redis_client, clock)
    metrics.count("hutong_turns", 10, status="done")
    metrics.observe("hutong_turn_seconds", 100.0)
    metrics.flush()
    first = watch.look()
    assert (first.window_s, first.turns, first.per_minute(10)) == (0.0, {"done": 10}, None)
    clock.now_s += 30
    metrics.count("hutong_turns", 5, status="done")
    metrics.count("hutong_turns", 1, status="failed")
    metrics.count("hutong_tokens", 90, kind="completion")
    metrics.count("hutong_tool_calls", 3, tool="sql_query", result="ok")
    metrics.count("hutong_tool_calls", 1, tool="sql_query", result="refused")
    metrics.observe("hutong_tool_seconds", 0.2, tool="sql_query")
    metrics.count("hutong_sends", 4, state="sent", errcode=0)
    metrics.count("hutong_sends", 1, state="refused", errcode=60111)
    for _ in range(6):
        metrics.observe("hutong_turn_seconds", 0.7)
    metrics.flush()
    second = watch.look()
    assert (second.window_s, second.turns) == (30.0, {"done": 5, "failed": 1})
    assert second.per_minute(6) == 12.0
    assert (second.tokens, second.sends) == ({"completion": 90}, {"sent": 4, "refused": 1})
    assert second.send_errors == {"60111": 1}
    assert second.durations["hutong_turn_seconds"].count == 6
    assert second.durations["hutong_turn_seconds"].p95_s == pytest.approx(0.975)
    (tool,) = second.tools
    assert (tool.name, tool.calls, tool.failed, tool.took.count) == ("sql_query", 4, 1, 1)


def test_the_window_moves_on(redis_client: redis.Redis) -> None:
    metrics, clock = Metrics(redis_client), Clock()
    watch = Watch(redis_client, clock, window_s=60)
    for _ in range(10):
        metrics.count("hutong_turns", status="done")
        metrics.flush()
        frame = watch.look()
        clock.now_s += 20
    assert (frame.window_s, frame.turns) == (60.0, {"done": 3})


def test_a_store_that_was_emptied_counts_from_its_beginning(redis_client: redis.Redis) -> None:
    metrics = Metrics(redis_client)
    metrics.count("hutong_turns", 10, status="done")
    metrics.flush()
    before = read(redis_client, 100.0)
    redis_client.flushall()
    metrics.count("hutong_turns", 2, status="done")
    metrics.flush()
    frame = compare(before, read(redis_client, 110.0))
    assert (frame.window_s, frame.turns) == (0.0, {"done": 2})


def test_redis_away_is_a_frame_and_then_it_goes_on(
    redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    with connect("redis://127.0.0.1:1", timeout_s=0.2) as nobody:
        frame = Watch(nobody).look()
    assert (frame.up, frame.problem) == (False, "ConnectionError")
    assert Watch(redis_client).look().up

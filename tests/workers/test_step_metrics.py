"""What steps add to the metrics."""

from __future__ import annotations

import redis

from app.metrics import Metrics, read, totals
from workers.agent.steps import ModelStep, ToolStep
from workers.step_metrics import count_step


def test_a_model_and_two_tool_steps(redis_client: redis.Redis) -> None:
    metrics = Metrics(redis_client)
    count_step(metrics, ModelStep("", "", (), "stop", 900, 800, 41, 500.0, 1500.0))
    count_step(metrics, ToolStep("sql_query", {}, "", "", 20.0))
    count_step(metrics, ToolStep("sql_query", {}, "", "timeout", 8000.0))
    metrics.flush()
    counts = totals(redis_client)
    assert counts["hutong_tokens{prompt}"] == 900
    assert counts["hutong_tokens{cached}"] == 800
    assert counts["hutong_tool_calls{sql_query,ok}"] == 1
    assert counts["hutong_tool_calls{sql_query,timeout}"] == 1
    (speed,) = (s for s in read(redis_client) if s.metric.name == "hutong_decode_tokens_per_second")
    assert speed.value == 40.0


def test_one_token_has_no_decode_speed(redis_client: redis.Redis) -> None:
    metrics = Metrics(redis_client)
    count_step(metrics, ModelStep("", "", (), "stop", 9, 0, 1, 5.0, 5.0))
    metrics.flush()
    names = {series.metric.name for series in read(redis_client)}
    assert "hutong_first_token_seconds" in names
    assert "hutong_decode_tokens_per_second" not in names

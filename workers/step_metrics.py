"""What one step of a turn adds to the metrics.

Owns which numbers of a step are counted; the names are in ``app.metrics``.
"""

from __future__ import annotations

from app.metrics import Metrics
from workers.agent.steps import ModelStep, Step


def count_step(metrics: Metrics, step: Step) -> None:
    """Count a model step (tokens and speeds) or a tool step (result and duration)."""
    if not isinstance(step, ModelStep):
        result = step.error or "ok"
        metrics.count("hutong_tool_calls", tool=step.name, result=result)
        metrics.observe("hutong_tool_seconds", step.duration_ms / 1000, tool=step.name)
        return
    for kind, tokens in (
        ("prompt", step.prompt_tokens),
        ("cached", step.cached_tokens),
        ("completion", step.completion_tokens),
    ):
        metrics.count("hutong_tokens", tokens, kind=kind)
    metrics.observe("hutong_first_token_seconds", step.time_to_first_token_ms / 1000)
    decode_s = (step.duration_ms - step.time_to_first_token_ms) / 1000
    if step.completion_tokens > 1 and decode_s > 0:
        speed = (step.completion_tokens - 1) / decode_s
        metrics.observe("hutong_decode_tokens_per_second", speed)

"""Sampling parameters of one request, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    ``temperature`` 0 means greedy. ``None`` means: take the value of the checkpoint's
    ``generation_config.json``. ``max_tokens`` counts generated tokens, thinking included.
    ``max_thinking_tokens`` caps what stands between ``<think>`` and ``</think>``.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    max_tokens: int = 512
    max_thinking_tokens: int = 1024
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()

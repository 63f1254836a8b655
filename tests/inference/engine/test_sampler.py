from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from inference.config import GenerationConfig, ResolvedSampling
from inference.engine.sampler import Sampler
from inference.sampling_params import SamplingParams

NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "seed": 1,
}


def sampling(**changes: Any) -> ResolvedSampling:
    return ResolvedSampling(**{**NEUTRAL, **changes})


def logits_of(size: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [40, 1000])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        {"repetition_penalty": 1.5, "top_p": 0.7},
    ],
)
def test_frequencies_follow_transformers(size: int, changes: dict[str, Any]) -> None:
    values = sampling(**changes)
    prompt = [1, 2, 3]
    warpers = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(values.repetition_penalty)])
    warpers.append(TemperatureLogitsWarper(values.temperature))
    if values.top_k:
        warpers.append(TopKLogitsWarper(values.top_k))
    warpers.append(TopPLogitsWarper(values.top_p))
    warpers.append(MinPLogitsWarper(values.min_p))
    scores = warpers(torch.tensor([prompt]), logits_of(size)[None].clone())
    expected = torch.softmax(scores, -1)[0]
    draws = 1500
    counts: Counter[int] = Counter()
    for seed in range(draws):
        counts[Sampler(sampling(**{**changes, "seed": seed}), prompt).sample(logits_of(size))] += 1
    assert all(expected[token] > 0 for token in counts)
    for token in expected.topk(5).indices.tolist():
        share = float(expected[token])
        allowed = 5 * (share * (1 - share) / draws) ** 0.5 + 1e-9
        assert abs(counts[token] / draws - share) <= allowed


def test_greedy_is_argmax_and_uses_no_randomness() -> None:
    for seed in range(20):
        logits = logits_of(500, seed)
        assert Sampler(sampling(temperature=0.0), []).sample(logits) == int(logits.argmax())


def test_the_same_seed_gives_the_same_tokens() -> None:
    def run(seed: int | None) -> list[int]:
        sampler = Sampler(sampling(seed=seed), [])
        return [sampler.sample(logits_of(200, step)) for step in range(30)]

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert run(None) != run(None)


def test_repetition_penalty_counts_prompt_and_output() -> None:
    sampler = Sampler(sampling(temperature=0.0, repetition_penalty=2.0), [0])
    assert sampler.sample(torch.tensor([3.0, 2.0, 1.9])) == 1
    assert sampler.sample(torch.tensor([3.0, 2.0, 1.9])) == 2
    assert (
        Sampler(sampling(temperature=0.0, repetition_penalty=2.0), [0]).sample(
            torch.tensor([-1.0, -1.5, -3.0])
        )
        == 1
    )


def test_presence_penalty_counts_output_only_and_once() -> None:
    sampler = Sampler(sampling(temperature=0.0, presence_penalty=1.0), [0])
    assert sampler.sample(torch.tensor([3.0, 2.5, 0.0])) == 0
    assert sampler.sample(torch.tensor([3.0, 2.5, 0.0])) == 1
    assert sampler.sample(torch.tensor([3.0, 2.5, 0.0])) == 0


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = torch.full((300,), -torch.inf)
    logits[[7, 250]] = 1.0
    for seed in range(50):
        token = Sampler(sampling(seed=seed, top_p=0.9, top_k=20), []).sample(logits.clone())
        assert token in (7, 250)
        assert Sampler(sampling(seed=seed), []).sample(logits.clone()) in (7, 250)


def test_missing_values_come_from_the_checkpoint() -> None:
    defaults = GenerationConfig(temperature=0.6, top_p=0.95, top_k=20, min_p=0.01)
    values = ResolvedSampling.resolve(SamplingParams(top_k=5), defaults)
    assert (values.temperature, values.top_p, values.top_k, values.min_p) == (0.6, 0.95, 5, 0.01)
    assert ResolvedSampling.resolve(SamplingParams(temperature=0.0), defaults).temperature == 0.0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=-1.0),
        SamplingParams(top_p=0.0),
        SamplingParams(top_k=-1),
        SamplingParams(min_p=2.0),
        SamplingParams(repetition_penalty=0.0),
    ],
)
def test_impossible_values_are_refused(params: SamplingParams) -> None:
    with pytest.raises(ValueError, match="impossible sampling values"):
        ResolvedSampling.resolve(params, GenerationConfig())

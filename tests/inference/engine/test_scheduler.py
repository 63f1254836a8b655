from __future__ import annotations

from pathlib import Path

import pytest

from inference.config import GenerationConfig, ResolvedSampling
from inference.engine.kv_cache import KVCache, KVShape
from inference.engine.prefix_cache import PrefixCache
from inference.engine.sampler import Sampler
from inference.engine.scheduler import Decode, Prefill, Scheduler
from inference.engine.sequence import Sequence, SequenceStatus
from inference.logit_mask import ControlTokens, GrammarCompiler, ToolCallMask
from inference.outputs import OutputParser
from inference.sampling_params import SamplingParams
from inference.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer(tiny_model_dir)


@pytest.fixture
def scheduler() -> Scheduler:
    kv_cache = KVCache(KVShape(1, 1, 2), num_slots=2, max_model_len=100)
    prefix_cache = PrefixCache(kv_cache, capacity_bytes=10_000, min_tokens=4)
    return Scheduler(kv_cache, prefix_cache, prefill_chunk_tokens=10)


def new_sequence(tokenizer: Tokenizer, prompt_ids: list[int]) -> Sequence:
    control = ControlTokens.of(tokenizer, [2])
    values = ResolvedSampling.resolve(SamplingParams(), GenerationConfig())
    return Sequence(
        prompt_ids,
        sampler=Sampler(values, prompt_ids),
        mask=ToolCallMask(
            tokenizer,
            control,
            compiler=GrammarCompiler(tokenizer, control, 640),
            tools=(),
            starts_thinking=False,
            may_think=False,
        ),
        parser=OutputParser(tokenizer, control, starts_thinking=False),
        max_tokens=10,
        max_thinking_tokens=10,
        stop_token_ids=frozenset([2]),
    )


def compute(step: Prefill | Decode | None) -> None:
    """Do what the engine does after a step."""
    assert step is not None
    if isinstance(step, Prefill):
        step.sequence.num_computed_tokens = step.end
        if step.sequence.is_prefilled:
            step.sequence.token_ids.append(50)
        return
    for sequence in step.sequences:
        sequence.num_computed_tokens = len(sequence)
        sequence.token_ids.append(51)


def test_nothing_to_do(scheduler: Scheduler) -> None:
    assert scheduler.schedule() is None


def test_a_prompt_is_cut_into_chunks_then_decoded(
    scheduler: Scheduler, tokenizer: Tokenizer
) -> None:
    sequence = new_sequence(tokenizer, list(range(10, 35)))
    scheduler.add(sequence)
    chunks = []
    for _ in range(3):
        step = scheduler.schedule()
        assert isinstance(step, Prefill)
        chunks.append((step.start, step.end))
        compute(step)
    assert chunks == [(0, 10), (10, 20), (20, 25)]
    assert scheduler.schedule() == Decode((sequence,))


def test_a_long_prompt_takes_turns_with_running_answers(
    scheduler: Scheduler, tokenizer: Tokenizer
) -> None:
    first = new_sequence(tokenizer, [10, 11])
    scheduler.add(first)
    compute(scheduler.schedule())
    scheduler.add(new_sequence(tokenizer, list(range(20, 60))))
    kinds = []
    for _ in range(8):
        step = scheduler.schedule()
        kinds.append(type(step).__name__)
        compute(step)
    assert kinds == ["Decode", "Prefill"] * 4
    step = scheduler.schedule()
    assert isinstance(step, Decode)
    assert len(step.sequences) == 2


def test_first_come_first_served_over_the_slots(scheduler: Scheduler, tokenizer: Tokenizer) -> None:
    sequences = [new_sequence(tokenizer, [10 + number]) for number in range(4)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.schedule()
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 2)
    assert sequences[1].status is SequenceStatus.RUNNING
    scheduler.finish(sequences[1])
    scheduler.schedule()
    assert sequences[2].status is SequenceStatus.RUNNING
    assert sequences[3].status is SequenceStatus.WAITING
    assert {sequences[0].slot, sequences[2].slot} == {0, 1}


def test_a_finished_sequence_leaves_its_prefix_and_a_discarded_one_does_not(
    scheduler: Scheduler, tokenizer: Tokenizer
) -> None:
    prompt = list(range(10, 20))
    for end, cached in ((scheduler.discard, 0), (scheduler.finish, 9)):
        sequence = new_sequence(tokenizer, prompt)
        scheduler.add(sequence)
        compute(scheduler.schedule())
        end(sequence)
        assert sequence.status is SequenceStatus.FINISHED
        follower = new_sequence(tokenizer, prompt)
        scheduler.add(follower)
        step = scheduler.schedule()
        assert isinstance(step, Prefill)
        assert (follower.num_cached_tokens, step.start) == (cached, cached)
        scheduler.discard(follower)


def test_a_waiting_sequence_can_be_taken_out(scheduler: Scheduler, tokenizer: Tokenizer) -> None:
    sequences = [new_sequence(tokenizer, [10 + number]) for number in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.schedule()
    scheduler.finish(sequences[2])
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 0)
    assert scheduler.unfinished() == sequences[:2]

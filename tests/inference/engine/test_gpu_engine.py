"""Requests through the engine over the GPU runner: equal to the CPU's, and safe from failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inference.checkpoint.loader import load_model
from inference.config import GenerationConfig, ResolvedSampling
from inference.engine.gpu_runner import GpuModelRunner
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_runner import ModelRunner
from inference.engine.sampler import Sampler
from inference.engine.sequence import Sequence
from inference.errors import EngineStepError, GPUOutOfMemoryError
from inference.kernels.library import KernelLibrary
from inference.logit_mask import ControlTokens, GrammarCompiler, ToolCallMask
from inference.outputs import OutputParser
from inference.protocol import Message, ToolSpec
from inference.sampling_params import SamplingParams
from inference.tokenizer import Tokenizer
from tests.inference.engine.gpu_models import new_runner

DEMO = Path(__file__).parents[3] / "models" / "demo-moe"
TOOLS = (ToolSpec("sql_query", "", {"type": "object", "properties": {"sql": {"type": "string"}}}),)
Runner = ModelRunner | GpuModelRunner


def engine_for(runner: Runner, folder: Path) -> tuple[LLMEngine, Callable[..., Sequence]]:
    """An engine, and what makes its sequences."""
    tokenizer = Tokenizer(folder)
    control = ControlTokens.of(tokenizer, [tokenizer.special_ids["<|im_end|>"]])
    compiler = GrammarCompiler(tokenizer, control, runner.vocab_size)
    engine = LLMEngine(runner, control, prefix_cache_bytes=8 * 2**20, prefill_chunk_tokens=24)

    def sequence(text: str, params: SamplingParams, tools: tuple[ToolSpec, ...] = ()) -> Sequence:
        ids = tokenizer.encode(tokenizer.render([Message("user", text)], tools))
        mask = ToolCallMask(
            tokenizer,
            control,
            compiler=compiler,
            tools=tools,
            starts_thinking=False,
            may_think=False,
        )
        return Sequence(
            ids,
            sampler=Sampler(ResolvedSampling.resolve(params, GenerationConfig()), ids),
            mask=mask,
            parser=OutputParser(tokenizer, control, starts_thinking=False),
            tools=tools,
            max_tokens=params.max_tokens,
            max_thinking_tokens=0,
            stop_token_ids=frozenset(control.eos),
        )

    return engine, sequence


def run(engine: LLMEngine, sequences: list[Sequence]) -> list[list[int]]:
    for sequence in sequences:
        engine.add(sequence)
    for _ in range(500):
        if not engine.has_work:
            break
        engine.step()
    assert not engine.has_work
    return [sequence.token_ids[sequence.num_prompt_tokens :] for sequence in sequences]


def cpu_runner(folder: Path) -> ModelRunner:
    return ModelRunner(load_model(folder), max_num_seqs=2, max_model_len=256)


def test_answers_equal_those_of_the_cpu_engine(
    tiny_hybrid_dir: Path, kernels: KernelLibrary
) -> None:
    """Greedy, drawn with a seed, with penalties and beyond the candidates; two at a time."""
    settings = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=12, temperature=0.8, top_k=20, top_p=0.95, seed=3),
        SamplingParams(max_tokens=12, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(max_tokens=8, temperature=0.7, top_p=0.9, seed=4),
    ]

    def answers(runner: Runner) -> list[list[int]]:
        engine, sequence = engine_for(runner, tiny_hybrid_dir)
        texts = ("销售", "The quick brown fox", "2023-Q3 region 华东", "price * quantity")
        return run(
            engine,
            [
                sequence(text, params, TOOLS if index == 0 else ())
                for index, (text, params) in enumerate(zip(texts, settings, strict=True))
            ],
        )

    assert answers(new_runner(tiny_hybrid_dir, kernels, slots=4)) == answers(
        cpu_runner(tiny_hybrid_dir)
    )


def test_out_of_memory_fails_its_request_only(
    tiny_model_dir: Path, kernels: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = new_runner(tiny_model_dir, kernels)
    engine, sequence = engine_for(runner, tiny_model_dir)
    params = SamplingParams(max_tokens=4)
    (expected,) = run(engine, [sequence("ab", params)])
    forward = runner._forward

    def short_of_memory(token_ids: list[int], slot: int, start: int) -> torch.Tensor:
        if len(token_ids) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore lines")
        return forward(token_ids, slot, start)

    monkeypatch.setattr(runner, "_forward", short_of_memory)
    long, short = sequence("x y z " * 20, params), sequence("ab", params)
    tokens = run(engine, [long, short])
    assert isinstance(long.error, GPUOutOfMemoryError)
    assert "prefill_chunk_tokens" in long.error.remedy
    assert long.finished.is_set()
    assert short.error is None
    assert tokens[1] == expected
    assert runner.kv_cache.num_free_slots == 2


def test_values_that_are_not_finite_are_an_error_not_an_answer(
    tiny_model_dir: Path, kernels: KernelLibrary
) -> None:
    runner = new_runner(tiny_model_dir, kernels)
    slot = runner.kv_cache.allocate()
    runner.prefill([1, 2, 3], slot, 0)
    runner._weights.layers[0].input_norm[0] = torch.nan
    with pytest.raises(EngineStepError, match="not finite"):
        runner.decode([4], [slot], [3])


@pytest.mark.model
def test_the_demo_model_answers_as_on_the_cpu(kernels: KernelLibrary) -> None:
    """Real text through trained weights; fp32, so that both choose alike at every token."""

    def answer(runner: Runner) -> str:
        engine, sequence = engine_for(runner, DEMO)
        asked = sequence("你好，你能做什么？", SamplingParams(max_tokens=24))
        run(engine, [asked])
        assert asked.output is not None
        return asked.output.message.text

    ours = answer(new_runner(DEMO, kernels, slots=12))
    assert ours == answer(cpu_runner(DEMO))
    assert len(ours) > 5

"""The engine through its public face, on a tiny random model."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inference.config import EngineConfig
from inference.engine.model_runner import ModelRunner
from inference.engine.sampler import Sampler
from inference.errors import (
    ConfigMismatchError,
    EngineStepError,
    EngineStoppedError,
    GPUNotFoundError,
    TokenLimitError,
)
from inference.llm import LLM, build_runner, prefix_cache_bytes
from inference.outputs import OutputParser
from inference.protocol import ChatModel, Message, ToolSpec
from inference.sampling_params import SamplingParams

TOOL = ToolSpec(
    "sql_query",
    "查",
    {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "kind": {"type": "string", "enum": ["a", "b"]}},
        "required": ["n", "kind"],
        "additionalProperties": False,
    },
)
SYSTEM = Message("system", "表 sales_data 列 region, product, quarter, price 和 quantity。" * 3)


def greedy(max_tokens: int = 24, **options: Any) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=max_tokens, **{"max_thinking_tokens": 0, **options}
    )


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> Iterator[LLM]:
    config = EngineConfig(max_model_len=512, max_num_seqs=3, num_threads=1, prefill_chunk_tokens=64)
    with LLM(tiny_model_dir, config=config) as running:
        yield running


def force_tokens(monkeypatch: pytest.MonkeyPatch, token_ids: list[int]) -> None:
    """The first tokens of the next answer; everything after them is the model's own."""
    wanted = iter(token_ids)
    sample = Sampler.sample

    def forced(self: Sampler, logits: torch.Tensor) -> int:
        token_id = next(wanted, None)
        return sample(self, logits) if token_id is None else token_id

    monkeypatch.setattr(Sampler, "sample", forced)


def test_it_is_a_chat_model(llm: LLM) -> None:
    model: ChatModel = llm
    messages = [SYSTEM, Message("user", "华东")]
    output = model.chat(messages, params=greedy())
    assert output.finish_reason == "length"
    assert output.completion_tokens == 24
    assert output.prompt_tokens == model.count_tokens(messages)
    assert 0 < output.time_to_first_token_s <= output.duration_s


def test_a_second_request_computes_only_what_is_new_and_answers_the_same(llm: LLM) -> None:
    messages = [SYSTEM, Message("user", "只问一次的问题")]
    cold = llm.chat([Message("system", "别的"), *messages[1:]], params=greedy())
    first = llm.chat(messages, params=greedy())
    second = llm.chat(messages, params=greedy())
    assert second.cached_tokens == second.prompt_tokens - 1
    assert second.text == first.text
    assert cold.cached_tokens < 12
    follow_up = llm.chat([*messages, Message("user", "那华北呢")], params=greedy())
    assert follow_up.cached_tokens >= first.prompt_tokens - 8


def test_many_threads_get_the_answers_they_get_alone(llm: LLM) -> None:
    questions = [[SYSTEM, Message("user", f"问题{'很' * number}长")] for number in range(8)]
    alone = [llm.chat(messages, params=greedy(40)).text for messages in questions]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda messages: llm.chat(messages, params=greedy(40)).text, questions)
        )
    assert together == alone
    assert len(set(alone)) > 1
    assert llm.stats.num_running == llm.stats.num_waiting == 0


def test_batches_are_decoded_together(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = llm.runner.prefill
    all_sent = threading.Event()

    def wait_then_prefill(*args: Any) -> torch.Tensor:
        assert all_sent.wait(20)
        return prefill(*args)

    monkeypatch.setattr(llm.runner, "prefill", wait_then_prefill)
    before = llm.stats
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(llm.chat, [SYSTEM, Message("user", f"{number}")], params=greedy(60))
            for number in range(3)
        ]
        for _ in range(2000):
            stats = llm.stats
            if llm._submitted.qsize() + stats.num_waiting + stats.num_running == 3:
                break
            time.sleep(0.01)
        all_sent.set()
        assert [future.result().completion_tokens for future in asked] == [60] * 3
    after = llm.stats
    tokens = after.num_decode_tokens - before.num_decode_tokens
    steps = after.num_steps - before.num_steps
    assert tokens == 3 * 59
    assert steps < 0.5 * tokens


def test_streamed_text_is_the_text(llm: LLM) -> None:
    pieces: list[str] = []
    threads: set[int] = set()

    def take(piece: str) -> None:
        pieces.append(piece)
        threads.add(threading.get_ident())

    output = llm.chat([SYSTEM, Message("user", "流")], params=greedy(80), on_text=take)
    assert "".join(pieces) == output.text
    assert len(pieces) > 1
    assert threads == {threading.get_ident()}


def test_cancelling_ends_early_and_frees_the_slot(llm: LLM) -> None:
    pieces: list[str] = []
    output = llm.chat(
        [SYSTEM, Message("user", "停")],
        params=greedy(400),
        on_text=pieces.append,
        cancelled=lambda: len(pieces) > 0,
    )
    assert output.finish_reason == "cancelled"
    assert output.completion_tokens < 400
    assert llm.stats.num_running == 0


def test_a_deadline_in_the_past_ends_before_the_first_token(llm: LLM) -> None:
    output = llm.chat(
        [SYSTEM, Message("user", "迟")], params=greedy(), deadline_s=time.monotonic() - 1
    )
    assert (output.finish_reason, output.completion_tokens, output.text) == ("deadline", 0, "")


def test_an_exception_in_a_callback_reaches_its_caller_and_nobody_else(llm: LLM) -> None:
    def explode(piece: str) -> None:
        raise RuntimeError("the page is closed")

    with pytest.raises(RuntimeError, match="the page is closed"):
        llm.chat([SYSTEM, Message("user", "坏")], params=greedy(300), on_text=explode)
    assert llm.chat([SYSTEM, Message("user", "好")], params=greedy()).completion_tokens == 24


def test_a_prompt_that_does_not_fit_is_refused(llm: LLM) -> None:
    with pytest.raises(TokenLimitError) as caught:
        llm.chat([Message("user", "长" * 600)])
    assert caught.value.num_tokens > caught.value.max_model_len == 512


def test_generation_stops_at_the_end_of_the_context(llm: LLM) -> None:
    text = "长" * 100
    while llm.count_tokens([Message("user", text)]) < 500:
        text += "长"
    output = llm.chat([Message("user", text)], params=greedy(100))
    assert output.finish_reason == "length"
    assert output.prompt_tokens + output.completion_tokens == 512


def test_seeds_repeat(llm: LLM) -> None:
    def ask(seed: int) -> str:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=20, max_thinking_tokens=0)
        return llm.chat([SYSTEM, Message("user", "随机")], params=params).text

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)


def test_stop_tokens_end_the_answer(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    good, end = llm.tokenizer.encode("好")[0], llm.tokenizer.special_ids["<|im_end|>"]
    force_tokens(monkeypatch, [good, end])
    output = llm.chat([SYSTEM, Message("user", "完")], params=greedy())
    assert (output.finish_reason, output.completion_tokens) == ("stop", 2)


def test_a_tool_call_is_always_valid(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the opening tag is forced; a random model writes the call under the mask."""
    force_tokens(monkeypatch, [llm.tokenizer.special_ids["<tool_call>"]])
    pieces: list[str] = []
    output = llm.chat(
        [SYSTEM, Message("user", "查")],
        [TOOL],
        SamplingParams(temperature=1.0, seed=4, max_tokens=120, max_thinking_tokens=0),
        on_text=pieces.append,
    )
    assert output.malformed_tool_call == ""
    (call,) = output.tool_calls
    assert call.name == "sql_query"
    assert isinstance(call.arguments["n"], int)
    assert call.arguments["kind"] in ("a", "b")
    assert "tool_call" not in "".join(pieces)
    assert llm.stats.grammar_failures == 0


def test_a_call_cut_off_by_max_tokens_is_reported(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_tokens(monkeypatch, [llm.tokenizer.special_ids["<tool_call>"]])
    output = llm.chat([SYSTEM, Message("user", "查")], [TOOL], greedy(4))
    assert output.finish_reason == "length"
    assert output.malformed_tool_call.startswith('\n{"')
    assert output.tool_calls == ()


def test_thinking_is_capped_and_kept_apart(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    force_tokens(monkeypatch, [llm.tokenizer.special_ids["<think>"]])
    counts: list[int] = []
    result = OutputParser.result

    def spy(self: OutputParser, tools: Any) -> Any:
        counts.append(self.thinking_tokens)
        return result(self, tools)

    monkeypatch.setattr(OutputParser, "result", spy)
    pieces: list[str] = []
    output = llm.chat(
        [SYSTEM, Message("user", "想")],
        params=greedy(40, max_thinking_tokens=10),
        on_text=pieces.append,
    )
    assert output.reasoning != ""
    assert output.text == "".join(pieces)
    assert counts == [10]
    assert output.completion_tokens == 40


def test_a_prompt_that_opens_thinking_starts_inside_it(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "m"))
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    ending = "{%- if enable_thinking %}{{- '<think>\\n' }}{%- endif %}"
    (folder / "chat_template.jinja").write_text(template.rstrip() + ending, encoding="utf-8")
    with LLM(folder, config=EngineConfig(max_model_len=256, num_threads=1)) as thinker:
        question = [Message("user", "想")]
        output = thinker.chat(question, params=greedy(30, max_thinking_tokens=8))
        assert output.reasoning != ""
        plain = thinker.chat(question, params=greedy(30, max_thinking_tokens=0))
        assert plain.reasoning == ""


def test_a_failed_step_ends_its_requests_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*args: Any) -> torch.Tensor:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(llm.runner, "prefill", explode)
        with pytest.raises(EngineStepError):
            llm.chat([SYSTEM, Message("user", "坏")], params=greedy())
    assert "no memory" in caplog.text
    assert llm.is_running
    assert llm.chat([SYSTEM, Message("user", "好")], params=greedy()).completion_tokens == 24


def test_closing_ends_requests_in_flight(tiny_model_dir: Path) -> None:
    engine = LLM(tiny_model_dir, config=EngineConfig(max_model_len=2048, num_threads=1))
    with pytest.raises(EngineStoppedError):
        engine.chat([Message("user", "早")])
    engine.start()
    started = threading.Event()
    errors: list[Exception] = []

    def ask() -> None:
        try:
            engine.chat(
                [Message("user", "长")],
                params=SamplingParams(temperature=1.0, max_tokens=2000, stop_token_ids=()),
                on_text=lambda piece: started.set(),
            )
        except EngineStoppedError as error:
            errors.append(error)

    # Twelve for four places: when it closes right after the first word, most are not done.
    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    assert started.wait(20)
    engine.close()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert errors
    engine.start()
    assert engine.chat([Message("user", "再")], params=greedy(3)).completion_tokens == 3
    engine.close()
    engine.close()


def test_any_slot_count_gives_the_same_answer(llm: LLM, tiny_model_dir: Path) -> None:
    messages = [SYSTEM, Message("user", "槽")]
    expected = llm.chat(messages, params=greedy(40)).text
    for slots in (2, 5):
        config = EngineConfig(
            max_model_len=512, num_threads=1, expert_cache_slots=slots, prefill_chunk_tokens=64
        )
        with LLM(tiny_model_dir, config=config) as small:
            assert small.chat(messages, params=greedy(40)).text == expected
            assert small.stats.expert_cache.evictions > 0


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "m"))
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"]["vocab"]["extra"] = 700
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ConfigMismatchError, match="different models"):
        LLM(folder)


def test_without_a_gpu_cuda_is_refused_and_not_replaced_by_the_cpu(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GPUNotFoundError):
        LLM(tiny_model_dir, device="cuda")


def test_an_unknown_device_is_named(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="device must be one of cpu, cuda"):
        LLM(tiny_model_dir, device="tpu")  # type: ignore[arg-type]


def test_a_device_is_asked_for_its_own_runner(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(build_runner(tiny_model_dir, EngineConfig()), ModelRunner)
    asked: list[EngineConfig] = []
    fake = SimpleNamespace(build_gpu_runner=lambda model_dir, config: asked.append(config))
    monkeypatch.setitem(sys.modules, "inference.engine.gpu_loader", fake)  # type: ignore[arg-type]
    config = EngineConfig(device="cuda", backbone_dtype="int8")
    build_runner(tiny_model_dir, config)
    assert asked == [config]


def test_a_hybrid_model_keeps_whole_snapshots_of_prompts(
    tiny_hybrid_dir: Path, tiny_model_dir: Path
) -> None:
    config = EngineConfig(max_model_len=256, prefix_cache_bytes=1)
    assert prefix_cache_bytes(tiny_model_dir, config) == 1
    assert prefix_cache_bytes(tiny_hybrid_dir, config) > 4 * 1000


def test_the_cpu_engine_takes_number_formats_and_router_options(tiny_model_dir: Path) -> None:
    plain, changed = (
        EngineConfig(max_model_len=256, num_threads=1),
        EngineConfig(
            max_model_len=256, num_threads=1, backbone_dtype="int8", router_gumbel_temperature=5.0
        ),
    )
    question = [Message("user", "hello")]
    params = SamplingParams(temperature=0.0, max_tokens=16)
    answers = []
    for config in (plain, plain, changed):
        with LLM(tiny_model_dir, config=config) as llm:
            answers.append(llm.chat(question, params=params).text)
    assert answers[0] == answers[1]
    assert answers[2] != answers[0]

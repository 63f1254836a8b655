"""A Qwen3.5-MoE through the whole engine: recurrent state in slots, prefixes, batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from inference.llm import LLM
from inference.protocol import Message
from inference.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=24)
SYSTEM = Message("system", "You answer questions about sales figures. " * 4)


def messages(question: str) -> list[Message]:
    return [SYSTEM, Message("user", question)]


def test_a_hybrid_model_answers_and_pays_for_its_system_prompt_once(
    tiny_hybrid_dir: Path,
) -> None:
    questions = [f"What about region {number}?" for number in range(6)]
    with LLM(tiny_hybrid_dir, max_model_len=512, max_num_seqs=4) as llm:
        cold = [llm.chat(messages(question), params=PARAMS) for question in questions]
        warm = [llm.chat(messages(question), params=PARAMS) for question in questions]
        with ThreadPoolExecutor(4) as pool:
            together = list(
                pool.map(lambda question: llm.chat(messages(question), params=PARAMS), questions)
            )
        stats = llm.stats.prefix_cache
        system_tokens = llm.count_tokens([SYSTEM])
    assert all(output.completion_tokens == 24 for output in cold)
    assert len({output.text for output in cold}) > 1
    for first, again, batched in zip(cold, warm, together, strict=True):
        assert first.text == again.text == batched.text
    # Two prompts show which beginning they share; those after them start from a snapshot of it.
    # (The third splits into other tokens earlier and so shares a little less.)
    assert [output.cached_tokens > 0.9 * system_tokens for output in cold] == [False] * 3 + [
        True
    ] * 3
    assert stats.tokens_reused > stats.tokens_asked / 2

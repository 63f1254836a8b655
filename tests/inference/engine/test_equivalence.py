"""The engine against the stock model on the same dequantised weights, fp32 on the CPU.

Tolerance: 5e-4 absolute on logits of standard deviation about 1-2; the two differ only in the
order of fp32 additions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.benchmarks.random_model import ModelShape, write_random_model
from inference.checkpoint.loader import load_model
from inference.engine.decode import Qwen3MoeDecode
from inference.engine.model_runner import ModelRunner
from tests.inference.conftest import TINY, dequantised_stock_model

ATOL = 5e-4
STEPS = 64
SHAPES = {
    "tied": TINY,
    "untied, not normalised": ModelShape(
        **{**vars(TINY), "norm_topk_prob": False, "tie_word_embeddings": False}
    ),
    "a dense layer, biases": ModelShape(
        **{**vars(TINY), "mlp_only_layers": (1,), "attention_bias": True}
    ),
    "one key head, top-3 of 16": ModelShape(
        **{**vars(TINY), "num_key_value_heads": 1, "num_experts": 16, "num_experts_per_tok": 3}
    ),
}


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, TINY.vocab_size, (length,), generator=generator).tolist()


def runner_for(folder: Path, **options: Any) -> ModelRunner:
    return ModelRunner(load_model(folder, **options), max_num_seqs=4, max_model_len=256)


def greedy_run(runner: ModelRunner, prompt: list[int], steps: int = STEPS) -> torch.Tensor:
    """Logits of prefill and ``steps`` greedy decode steps: [steps + 1, vocab]."""
    slot = runner.kv_cache.allocate()
    rows = [runner.prefill(prompt, slot, 0)]
    for step in range(steps):
        token = int(rows[-1].argmax())
        rows.append(runner.decode([token], [slot], [len(prompt) + step])[0])
    runner.kv_cache.free(slot)
    return torch.stack(rows)


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_and_64_decode_steps_equal_the_stock_model(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    runner = runner_for(write_random_model(tmp_path, shape, seed=3), expert_cache_slots=4)
    prompt = prompt_of(50)
    ours = greedy_run(runner, prompt)
    tokens = prompt + ours[:-1].argmax(-1).tolist()
    with torch.inference_mode():
        theirs = dequantised_stock_model(shape, seed=3)(torch.tensor([tokens])).logits[0]
    theirs = theirs[len(prompt) - 1 :]
    assert theirs.std() > 0.5
    assert (ours - theirs).abs().max() < ATOL
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_any_slot_count_from_top_k_up_gives_the_same_bits(tiny_model_dir: Path) -> None:
    prompt = prompt_of(30)
    reference = greedy_run(runner_for(tiny_model_dir), prompt)
    for slots in range(2, 9):
        for policy in ("lru", "decayed_frequency"):
            runner = runner_for(
                tiny_model_dir, expert_cache_slots=slots, expert_cache_policy=policy
            )
            assert torch.equal(greedy_run(runner, prompt), reference)


def test_prefill_in_chunks_equals_prefill_at_once(tiny_model_dir: Path) -> None:
    runner = runner_for(tiny_model_dir)
    prompt = prompt_of(90)
    whole = runner.prefill(prompt, 0, 0)
    for start, end in ((0, 40), (40, 41), (41, 90)):
        chunked = runner.prefill(prompt[start:end], 1, start)
    assert torch.allclose(chunked, whole, atol=ATOL)
    assert torch.allclose(
        *(runner.kv_cache.read(slot, 90).tensors[0] for slot in (0, 1)), atol=ATOL
    )


def test_a_batch_of_different_lengths_equals_each_alone(tiny_model_dir: Path) -> None:
    runner = runner_for(tiny_model_dir)
    prompts = [prompt_of(length, seed=length) for length in (5, 60, 17, 33)]
    alone = [greedy_run(runner, prompt, 20) for prompt in prompts]
    slots = [runner.kv_cache.allocate() for _ in prompts]
    rows = [[runner.prefill(prompt, slot, 0)] for prompt, slot in zip(prompts, slots, strict=True)]
    for step in range(20):
        tokens = [int(row[-1].argmax()) for row in rows]
        logits = runner.decode(tokens, slots, [len(prompt) + step for prompt in prompts])
        for index in range(4):
            rows[index].append(logits[index])
    for index in range(4):
        batched = torch.stack(rows[index])
        assert (batched - alone[index]).abs().max() < ATOL
        assert torch.equal(batched.argmax(-1), alone[index].argmax(-1))


def test_the_stock_decode_path_gives_the_same_answer(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Architectures our own path does not know are decoded by the stock modules."""
    prompt = prompt_of(20)
    own = greedy_run(runner_for(tiny_model_dir), prompt, 10)
    monkeypatch.setattr(Qwen3MoeDecode, "supports", staticmethod(lambda config: False))
    stock = greedy_run(runner_for(tiny_model_dir), prompt, 10)
    assert (own - stock).abs().max() < ATOL
    assert not torch.equal(own, stock)


def test_warm_up_returns_the_slot_and_a_thread_count(tiny_model_dir: Path) -> None:
    runner = runner_for(tiny_model_dir)
    assert runner.warm_up(None) >= 1
    assert runner.kv_cache.num_free_slots == 4
    assert runner.expert_cache.stats.misses == 0
    assert runner.warm_up(1) == 1

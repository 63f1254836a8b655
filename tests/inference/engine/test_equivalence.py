"""The engine against the stock model on the same dequantised weights, fp32 on the CPU.

Tolerance: 5e-4 absolute on logits of standard deviation about 1-2; the two differ only in the
order of fp32 additions. Qwen3.5-MoE computes a prompt in chunks of 64 by another formula than
single tokens, which costs more digits: 2e-3.
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
from inference.engine.prefix_cache import PrefixCache
from tests.inference.conftest import TINY, TINY_HYBRID, dequantised_stock_model

ATOL = 5e-4
HYBRID_ATOL = 2e-3
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
    "hybrid": TINY_HYBRID,
    "hybrid, tied, one key head": ModelShape(
        **{**vars(TINY_HYBRID), "tie_word_embeddings": True, "num_key_value_heads": 1}
    ),
}
DIRS = ["tiny_model_dir", "tiny_hybrid_dir"]


def atol_of(shape: ModelShape) -> float:
    return HYBRID_ATOL if shape.architecture == "qwen3_5_moe" else ATOL


@pytest.fixture(params=DIRS)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, TINY.vocab_size, (length,), generator=generator).tolist()


def runner_for(folder: Path, **options: Any) -> ModelRunner:
    return ModelRunner(load_model(folder, **options), max_num_seqs=8, max_model_len=256)


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
    assert (ours - theirs).abs().max() < atol_of(shape)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("name", ["untied, not normalised", "hybrid"])
def test_greedy_answers_are_those_of_stock_generate(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    runner = runner_for(write_random_model(tmp_path, shape, seed=5))
    prompt = prompt_of(70, seed=2)
    ours = greedy_run(runner, prompt)[:-1].argmax(-1).tolist()
    model = dequantised_stock_model(shape, seed=5)
    theirs = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=STEPS,
        min_new_tokens=STEPS,
        do_sample=False,
        pad_token_id=0,
    )
    assert ours == theirs[0, len(prompt) :].tolist()


def test_any_slot_count_from_top_k_up_gives_the_same_bits(tiny_model_dir: Path) -> None:
    prompt = prompt_of(30)
    reference = greedy_run(runner_for(tiny_model_dir), prompt)
    for slots in range(2, 9):
        for policy in ("lru", "decayed_frequency"):
            runner = runner_for(
                tiny_model_dir, expert_cache_slots=slots, expert_cache_policy=policy
            )
            assert torch.equal(greedy_run(runner, prompt), reference)


def test_prefill_in_chunks_equals_prefill_at_once(folder: Path) -> None:
    runner = runner_for(folder)
    prompt = prompt_of(90)
    whole = runner.prefill(prompt, 0, 0)
    for start, end in ((0, 40), (40, 41), (41, 43), (43, 90)):
        chunked = runner.prefill(prompt[start:end], 1, start)
    assert torch.allclose(chunked, whole, atol=HYBRID_ATOL)
    pairs = zip(*(runner.kv_cache.read(slot, 90).tensors for slot in (0, 1)), strict=True)
    for one, other in pairs:
        assert torch.allclose(one, other, atol=HYBRID_ATOL)


def test_a_slot_that_held_another_sequence_gives_the_same_bits(folder: Path) -> None:
    runner = runner_for(folder)
    first = greedy_run(runner, prompt_of(3), 10)
    greedy_run(runner, prompt_of(50, seed=9), 20)
    assert torch.equal(greedy_run(runner, prompt_of(3), 10), first)


def test_a_prefix_from_the_cache_gives_the_answer_of_none(folder: Path) -> None:
    runner = runner_for(folder)
    prefix_cache = PrefixCache(runner.kv_cache, capacity_bytes=10**8)
    prompt = prompt_of(60)
    reference = greedy_run(runner, prompt, 20)
    slot = runner.kv_cache.allocate()
    runner.prefill(prompt[:45], slot, 0)
    prefix_cache.store(prompt[:45], slot)
    runner.prefill(prompt_of(20, seed=4), slot, 45)  # the entry must not follow its slot
    runner.kv_cache.free(slot)
    slot = runner.kv_cache.allocate()
    assert prefix_cache.restore(prompt, slot) == 45
    rows = [runner.prefill(prompt[45:], slot, 45)]
    for step in range(20):
        rows.append(runner.decode([int(rows[-1].argmax())], [slot], [60 + step])[0])
    restored = torch.stack(rows)
    assert (restored - reference).abs().max() < HYBRID_ATOL
    assert torch.equal(restored.argmax(-1), reference.argmax(-1))


def test_a_batch_of_eight_equals_each_alone(folder: Path) -> None:
    runner = runner_for(folder)
    prompts = [prompt_of(length, seed=length) for length in (5, 60, 17, 33, 1, 64, 65, 2)]
    alone = [greedy_run(runner, prompt, 20) for prompt in prompts]
    slots = [runner.kv_cache.allocate() for _ in prompts]
    rows = [[runner.prefill(prompt, slot, 0)] for prompt, slot in zip(prompts, slots, strict=True)]
    for step in range(20):
        tokens = [int(row[-1].argmax()) for row in rows]
        logits = runner.decode(tokens, slots, [len(prompt) + step for prompt in prompts])
        for index in range(8):
            rows[index].append(logits[index])
    for index in range(8):
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
    assert runner.kv_cache.num_free_slots == 8
    assert runner.expert_cache.stats.misses == 0
    assert runner.warm_up(1) == 1

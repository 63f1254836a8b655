"""The GPU engine against the stock model on the same dequantised weights.

Every test runs on the CPU over emulated kernels and, under the marker ``gpu``, on a GPU. Logits
have a standard deviation of 1 to 2. Tolerances (absolute): ``EXACT`` in fp32, where the two differ
in the order of additions only. ``HALF`` where weights, prefill activations, keys and values are
fp16 and the stock model computes in fp32; there a near tie in a router may send a token to another
expert, so that up to a tenth of the rows may differ by more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.gpu_runner import GpuModelRunner
from inference.engine.quantized_linear import QuantizedLinear
from inference.kernels.library import KernelLibrary
from inference.kernels.quantize import dequantize
from tests.inference.engine.gpu_models import (
    SHAPES,
    greedy_run,
    new_runner,
    prompt_of,
    stock_logits,
    stock_model,
)

EXACT = 5e-4
HALF = 5e-2


@pytest.fixture(scope="module")
def folders(tiny_model_dir: Path, tiny_hybrid_dir: Path) -> dict[str, Path]:
    return {"qwen3": tiny_model_dir, "qwen3.5": tiny_hybrid_dir}


def assert_close(
    ours: torch.Tensor, theirs: torch.Tensor, tokens: list[int], tolerance: float = EXACT
) -> None:
    """Logits agree, and so do the tokens wherever the stock model's lead is above tolerance."""
    assert theirs.std() > 0.5
    close = (ours - theirs).abs().amax(-1) < tolerance
    assert close.float().mean() >= (1.0 if tolerance == EXACT else 0.9)
    best = theirs.topk(2).values
    sure = close & (best[:, 0] - best[:, 1] > 2 * tolerance)
    assert sure.float().mean() > 0.5
    assert torch.equal(torch.tensor(tokens)[sure], theirs.argmax(-1)[sure])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, EXACT), (torch.float16, HALF)])
def test_prefill_and_64_decode_steps_equal_the_stock_model(
    name: str,
    dtype: torch.dtype,
    tolerance: float,
    folders: dict[str, Path],
    kernels: KernelLibrary,
) -> None:
    runner = new_runner(folders[name], kernels, dtype=dtype, slots=4)
    prompt = prompt_of(50, seed=1)
    tokens, ours = greedy_run(runner, prompt, 64, chunks=(21,))
    theirs = stock_logits(stock_model(SHAPES[name]), prompt, tokens)
    assert_close(ours, theirs, tokens, tolerance)


@pytest.mark.parametrize("name", SHAPES)
def test_decode_alone_equals_the_stock_model_to_rounding(
    name: str, folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    runner = new_runner(folders[name], kernels, slots=4)
    prompt = prompt_of(24, seed=1)
    slot = runner.kv_cache.allocate()
    rows = [runner.decode([token], [slot], [i])[0].row() for i, token in enumerate(prompt)]
    theirs = stock_logits(stock_model(SHAPES[name]), prompt[:1], [*prompt[1:], 0])
    assert (torch.stack(rows) - theirs).abs().max() < EXACT


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_in_chunks_equals_prefill_at_once(
    name: str, folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    runner = new_runner(folders[name], kernels)
    prompt = prompt_of(90)
    _, whole = greedy_run(runner, prompt, 3)
    _, chunked = greedy_run(runner, prompt, 3, chunks=(40, 41, 66))
    assert (whole - chunked).abs().max() < EXACT
    small = new_runner(folders[name], kernels, prefill_chunk_tokens=33)
    _, split = greedy_run(small, prompt, 0)
    assert (whole[0] - split[0]).abs().max() < EXACT


@pytest.mark.parametrize("name", SHAPES)
def test_slots_and_prefetch_never_change_a_bit(
    name: str, folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    prompt = prompt_of(10)

    def run(**options: Any) -> tuple[list[int], torch.Tensor, GpuModelRunner]:
        runner = new_runner(folders[name], kernels, **options)
        tokens, logits = greedy_run(runner, prompt, 8)
        runner.slots.verify()
        return tokens, logits, runner

    tokens, reference, runner = run(slots=8, expert_prefetch=False)
    assert runner.expert_cache.stats.hit_rate > 0.3
    for slots in (2, 5):
        for prefetch in (False, True):
            other_tokens, logits, other = run(slots=slots, expert_prefetch=prefetch)
            assert torch.equal(logits, reference)
            assert other_tokens == tokens
            assert other.expert_cache.stats.misses > 0


@pytest.mark.parametrize("name", SHAPES)
def test_a_batch_of_8_equals_each_alone(
    name: str, folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    runner = new_runner(folders[name], kernels, slots=3, max_num_seqs=8)
    steps = 4
    prompts = [prompt_of(length, seed=length) for length in (5, 60, 17, 33, 2, 8, 70, 12)]
    alone = [greedy_run(runner, prompt, steps) for prompt in prompts]
    slots = [runner.kv_cache.allocate() for _ in prompts]
    rows = [[runner.prefill(p, s, 0).row()] for p, s in zip(prompts, slots, strict=True)]
    for step in range(steps):
        batch = [int(row[-1].argmax()) for row in rows]
        made = runner.decode(batch, slots, [len(prompt) + step for prompt in prompts])
        for index, logits in enumerate(made):
            rows[index].append(logits.row())
    for (tokens, expected), row in zip(alone, rows, strict=True):
        assert (torch.stack(row) - expected).abs().max() < EXACT
        assert torch.stack(row).argmax(-1).tolist() == tokens


@pytest.mark.parametrize("name", SHAPES)
def test_a_restored_prefix_gives_the_same_bits(
    name: str, folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    runner = new_runner(folders[name], kernels)
    cache, prompt = runner.kv_cache, prompt_of(40)
    slot = cache.allocate()
    runner.prefill(prompt[:30], slot, 0)
    snapshot = cache.read(slot, 30)
    expected = runner.prefill(prompt[30:], slot, 30).row()
    runner.decode([1], [slot], [40])
    other = cache.allocate()
    cache.write(other, snapshot, 30)
    assert torch.equal(runner.prefill(prompt[30:], other, 30).row(), expected)


@pytest.mark.parametrize("name", SHAPES)
def test_the_loop_without_the_host_makes_the_same_tokens(
    name: str, folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    runner = new_runner(folders[name], kernels, slots=3)
    prompts = [prompt_of(9), prompt_of(20, seed=5)]
    alone = [greedy_run(runner, prompt, 8)[0] for prompt in prompts]
    slots = [runner.kv_cache.allocate() for _ in prompts]
    for prompt, slot in zip(prompts, slots, strict=True):
        runner.prefill(prompt, slot, 0)
    runner.capture(loop=True)
    firsts, lengths = [tokens[0] for tokens in alone], [len(prompt) for prompt in prompts]
    assert runner.decode_loop(firsts, slots, lengths, 8).tolist() == [t[1:] for t in alone]


def test_a_mask_forbids_tokens_in_both_phases(
    folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    runner = new_runner(folders["qwen3"], kernels)
    allowed = [3, 77, 639]
    mask = torch.zeros(20, dtype=torch.int64)
    for token in allowed:
        mask[token // 32] |= 1 << (token % 32)
    packed = torch.where(mask >= 2**31, mask - 2**32, mask).to(torch.int32)
    slot = runner.kv_cache.allocate()
    free = runner.prefill(prompt_of(5), slot, 0).row()
    masked = runner.prefill(prompt_of(5), slot, 0, packed)
    for logits in (masked, runner.decode([1], [slot], [5], [packed])[0]):
        assert logits.candidates is not None
        assert set(logits.candidates.ids[:3].tolist()) == set(allowed)
        assert torch.isfinite(logits.row()).nonzero().flatten().tolist() == allowed
    again = runner.prefill(prompt_of(5), slot, 0).row()
    assert torch.equal(again, free)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("backbone", "head"), [("int8", "fp16"), ("fp16", "int8"), ("int8", "int4")]
)
def test_quantised_weights_equal_the_stock_model_holding_their_values(
    name: str, backbone: str, head: str, folders: dict[str, Path], kernels: KernelLibrary
) -> None:
    runner = new_runner(
        folders[name], kernels, slots=4, backbone_dtype=backbone, lm_head_dtype=head
    )
    model = stock_model(SHAPES[name])
    changed = put_quantised_values(model, runner)
    prompt = prompt_of(20)
    tokens, ours = greedy_run(runner, prompt, 10)
    assert_close(ours, stock_logits(model, prompt, tokens), tokens)
    # The values differ from the float ones by more than the tolerance.
    assert changed
    plain = stock_logits(stock_model(SHAPES[name]), prompt, tokens)
    assert (ours - plain).abs().max() > EXACT


def put_quantised_values(model: Any, runner: GpuModelRunner) -> int:
    """Replace weights of the stock model by the runner's own INT8 and INT4 values.

    A device may round a near tie otherwise than the CPU: quantising again would not do. How far
    the values are from the float ones is asserted here: half a step, in INT4 up to a whole one.
    """
    changed = 0
    pairs = [(model.lm_head, runner._weights.head)]
    for name, module in runner._model.named_modules():
        if isinstance(module, QuantizedLinear):
            pairs.append((model.model.get_submodule(name), module.linear_weight))
    for stock, weight in pairs:
        if weight.scales is None:
            continue
        values, before = dequantize(weight).cpu(), stock.weight.detach()
        largest = before.abs().amax(-1, keepdim=True)
        step = largest / 127 if weight.format == "int8" else 2 * largest / 6
        assert ((values - before).abs() <= step / 2 * 1.001).all()
        stock.weight = torch.nn.Parameter(values)
        changed += 1
    return changed


def test_warm_up_leaves_no_trace(folders: dict[str, Path], kernels: KernelLibrary) -> None:
    runner = new_runner(folders["qwen3.5"], kernels)
    assert runner.warm_up() >= 1
    assert runner.kv_cache.num_free_slots == 2
    assert runner.expert_cache.stats.misses == 0
    prompt = prompt_of(12)
    _, warm = greedy_run(runner, prompt, 4)
    _, cold = greedy_run(new_runner(folders["qwen3.5"], kernels), prompt, 4)
    assert torch.equal(warm, cold)

"""What only a GPU can show: graphs against eager steps, and the hard cap on memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.benchmarks.random_model import ModelShape
from inference.checkpoint.backbone import random_backbone
from inference.engine.device_memory import limit_memory
from inference.engine.gpu_weights import take_weights
from inference.kernels.cuda_kernels import CudaKernels
from tests.inference.engine.gpu_models import greedy_run, new_runner, prompt_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_replayed_graphs_equal_eager_steps(
    tiny_hybrid_dir: Path, cuda_kernels: CudaKernels, dtype: torch.dtype, prefetch: bool
) -> None:
    runner = new_runner(
        tiny_hybrid_dir, cuda_kernels, dtype=dtype, slots=3, expert_prefetch=prefetch
    )
    prompt = prompt_of(40)
    eager_tokens, eager = greedy_run(runner, prompt, 64)
    runner.warm_up()
    tokens, replayed = greedy_run(runner, prompt, 64)
    assert torch.equal(replayed, eager)
    assert tokens == eager_tokens
    runner.slots.verify()


def test_a_replay_allocates_nothing(tiny_hybrid_dir: Path, cuda_kernels: CudaKernels) -> None:
    runner = new_runner(tiny_hybrid_dir, cuda_kernels, slots=3)
    runner.warm_up()
    slot = runner.kv_cache.allocate()
    runner.prefill(prompt_of(20), slot, 0)
    runner.kv_cache.reserve(slot, 80)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for position in range(20, 60):
        runner.decode([5], [slot], [position])
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_every_batch_size_has_its_graph(tiny_model_dir: Path, cuda_kernels: CudaKernels) -> None:
    runner = new_runner(tiny_model_dir, cuda_kernels, slots=3, max_num_seqs=5)
    prompts = [prompt_of(5 + index, seed=index) for index in range(5)]
    eager = [greedy_run(runner, prompt, 3)[0] for prompt in prompts]
    runner.warm_up()
    for count in range(1, 6):
        slots = [runner.kv_cache.allocate() for _ in range(count)]
        firsts = [
            int(runner.prefill(prompt, slot, 0).row().argmax())
            for prompt, slot in zip(prompts, slots, strict=False)
        ]
        rows = runner.decode(firsts, slots, [len(prompt) for prompt in prompts[:count]])
        assert [int(row.row().argmax()) for row in rows] == [t[1] for t in eager[:count]]
        for slot in slots:
            runner.kv_cache.free(slot)


def test_the_allocator_cannot_pass_the_limit(cuda_kernels: CudaKernels) -> None:
    device = cuda_kernels.device
    held = torch.cuda.memory_reserved(device)
    try:
        limit_memory(device, held + 64 * 2**20)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(256 * 2**20, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def test_quantising_never_holds_the_float_weights(cuda_kernels: CudaKernels) -> None:
    device = cuda_kernels.device
    shape = ModelShape(vocab_size=131072, hidden_size=1024, tie_word_embeddings=False)
    model = random_backbone(shape.to_config(), device=device, dtype=torch.float16, on_host=True)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    weights = take_weights(
        model,
        device=device,
        max_model_len=64,
        backbone_dtype="int8",
        head_dtype="int8",
        group_size=32,
    )
    held = torch.cuda.memory_allocated(device) - before
    peak = torch.cuda.max_memory_allocated(device) - before
    assert held > weights.head.weight.nbytes
    # Blocks of 16 MiB in fp32, a handful at once; the head in fp16 has 256 MiB.
    assert peak - held < 128 * 2**20
    assert all(parameter.device == device for parameter in model.parameters())

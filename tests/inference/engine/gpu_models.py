"""Runners on tiny models, and the stock models they must agree with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from inference.benchmarks.random_model import ModelShape
from inference.config import EngineConfig
from inference.engine.gpu_loader import build_gpu_runner
from inference.engine.gpu_runner import GpuModelRunner
from inference.geometry import ModelGeometry
from inference.kernels.library import KernelLibrary
from inference.memory_plan import plan_memory
from tests.inference.conftest import TINY, TINY_HYBRID, dequantised_stock_model

SHAPES = {"qwen3": TINY, "qwen3.5": TINY_HYBRID}


def new_runner(
    folder: Path,
    library: KernelLibrary,
    *,
    dtype: torch.dtype = torch.float32,
    slots: int | None = None,
    **options: Any,
) -> GpuModelRunner:
    """A runner with ``slots`` expert slots a layer (``None``: as many as fit, here all)."""
    config = EngineConfig(**{"device": "cuda", "max_model_len": 256, "max_num_seqs": 2, **options})
    plan = plan_memory(ModelGeometry.of_folder(folder), config, context_bytes=0)
    if slots is not None:
        plan = replace(plan, slots_per_layer=(slots,) * len(plan.slots_per_layer))
    return build_gpu_runner(folder, config, library, dtype=dtype, plan=plan)


def prompt_of(length: int, *, vocab_size: int = TINY.vocab_size, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (length,), generator=generator).tolist()


def greedy_run(
    runner: GpuModelRunner, prompt: list[int], steps: int, *, chunks: Sequence[int] = ()
) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens [steps + 1] and the logits they come from [steps + 1, vocab].

    ``chunks`` cuts the prompt at these positions.
    """
    slot = runner.kv_cache.allocate()
    bounds = [0, *chunks, len(prompt)]
    for start, end in itertools.pairwise(bounds):
        logits = runner.prefill(prompt[start:end], slot, start)
    rows, tokens = [], []
    for step in range(steps + 1):
        assert logits.candidates is not None
        rows.append(logits.row())
        tokens.append(int(logits.candidates.ids[0]))
        assert tokens[-1] == int(rows[-1].argmax())
        if step < steps:
            logits = runner.decode(tokens[-1:], [slot], [len(prompt) + step])[0]
    runner.kv_cache.free(slot)
    return tokens, torch.stack(rows)


def stock_logits(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """What the stock ``model`` says before each of ``tokens``: [len(tokens), vocab]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt + tokens[:-1]])).logits[0]
    return logits[len(prompt) - 1 :]


def stock_model(shape: ModelShape, seed: int = 0) -> Any:
    """The stock model in fp32 on the dequantised weights of ``write_random_model``."""
    return dequantised_stock_model(shape, seed=seed)

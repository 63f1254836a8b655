"""A complete model folder of random weights in the shape of a published model, written fast.

Owns the writing with many threads. Values are random and sized so that activations stay near
one; nothing is rounded, so 17 GB take as long as the disk needs. Tests of mechanics and of start
times only: its answers mean nothing.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inference.benchmarks.random_model import SPECIAL_TOKENS, write_tokenizer
from inference.checkpoint import format as layout
from inference.checkpoint.backbone import backbone_shapes, random_backbone, routed_layers
from inference.checkpoint.streamed_file import StreamedFile

_LEVEL_SPREAD = 4.6  # standard deviation of the levels -8..7
_TOKENIZER_SIZE = 6144


def write_random_folder(
    out_dir: Path,
    config: Any,
    *,
    group_size: int = 128,
    seed: int = 0,
    device: torch.device | str = "cpu",
    num_threads: int | None = None,
) -> int:
    """Write a folder of the transformers text config ``config``; returns its bytes.

    ``device`` draws the backbone's numbers. Raises ``OSError`` when the disk is full.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    shape = layout.ExpertShape(config.hidden_size, config.moe_intermediate_size, group_size)
    layers = routed_layers(config)
    paths = [out_dir / layout.EXPERT_FILES.format(index) for index in range(config.num_experts)]
    paths[0].parent.mkdir(exist_ok=True)
    threads = num_threads or min(16, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        experts = [
            pool.submit(_write_expert, path, layers, shape, seed + 1 + index)
            for index, path in enumerate(paths)
        ]
        size = _write_backbone(out_dir / layout.BACKBONE_FILE, config, seed, device)
        size += sum(expert.result() for expert in experts)
    write_tokenizer(out_dir, vocab_size=min(_TOKENIZER_SIZE, config.vocab_size))
    end = SPECIAL_TOKENS.index("<|im_end|>")
    _write_json(out_dir / layout.GENERATION_CONFIG_FILE, {"do_sample": False, "eos_token_id": end})
    routing = layout.RoutingConfig(
        num_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_tok,
        norm_topk_prob=bool(getattr(config, "norm_topk_prob", True)),
        quantization=layout.Quantization(group_size=group_size),
    )
    fields = {
        **config.to_dict(),
        "num_experts": config.num_experts,
        "num_local_experts": config.num_experts,
        "eos_token_id": end,
        "dtype": "float16",
        "routing_config": routing.to_json(),
    }
    # Last, as in a conversion: a folder with a config is whole.
    _write_json(out_dir / layout.CONFIG_FILE, fields)
    return size


def _write_expert(path: Path, layers: list[int], shape: layout.ExpertShape, seed: int) -> int:
    """One expert of all layers; numpy draws outside the interpreter's lock."""
    contents: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for layer in layers:
        for projection in layout.PROJECTIONS:
            words = layout.qweight_name(layer, projection)
            contents[words] = (torch.int32, shape.qweight(projection))
            scales = layout.scales_name(layer, projection)
            contents[scales] = (torch.float16, shape.scales(projection))
    rng = np.random.Generator(np.random.SFC64(seed))
    file = StreamedFile(path, contents)
    try:
        for name, (dtype, size) in contents.items():
            if dtype is torch.int32:
                low, high = -(2**31), 2**31
                values = rng.integers(low, high, size=size, dtype=np.int32)
            else:
                columns = size[1] * shape.group_size
                spread = 1.0 / (_LEVEL_SPREAD * columns**0.5)
                uniform = rng.random(size, dtype=np.float32)
                values = ((0.5 + uniform) * spread).astype(np.float16)
            file.write({name: torch.from_numpy(values)})
        file.finish()
    finally:
        file.abandon()
    return file.size_bytes


def _write_backbone(path: Path, config: Any, seed: int, device: torch.device | str) -> int:
    shapes = backbone_shapes(config)
    file = StreamedFile(path, {name: (torch.float16, size) for name, size in shapes.items()})
    tensors = random_backbone(config, device=device, dtype=torch.float16, seed=seed).state_dict()
    try:
        for name in shapes:
            file.write({name: tensors[name].to("cpu", torch.float16)})
        file.finish()
    finally:
        file.abandon()
    return file.size_bytes


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")

"""The trained model as a folder the engine loads: INT4 experts, fp16 rest, tokenizer, config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from inference.checkpoint import checksums, int4
from inference.checkpoint.convert import ExportReport, export_model
from models.training import tokenizer as vocabulary


def export(stock: Any, tokenizer: Tokenizer, out_dir: Path) -> ExportReport:
    """Write the whole model folder. ``stock`` is an fp32 Qwen3MoeForCausalLM on the CPU."""
    report = export_model(stock, out_dir)
    vocabulary.save(tokenizer, out_dir)
    checksums.write(out_dir)
    return report


@torch.no_grad()
def round_experts(stock: Any, group_size: int = 32) -> None:
    """Round the experts of ``stock`` to INT4 in place, as the export does."""
    for layer in stock.model.layers:
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(layer.mlp.experts, name)
            for expert in range(weight.shape[0]):
                packed = int4.quantize(weight[expert].float(), group_size)
                weight[expert] = int4.dequantize(packed).to(weight.dtype)

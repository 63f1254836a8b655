"""Small random models shared by the engine's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.benchmarks.random_model import ModelShape, build_stock_model, write_random_model
from inference.checkpoint import int4

TINY = ModelShape(
    vocab_size=640,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
)
TINY_HYBRID = ModelShape(
    **{
        **vars(TINY),
        "architecture": "qwen3_5_moe",
        "num_hidden_layers": 4,
        "tie_word_embeddings": False,
    }
)


def dequantised_stock_model(shape: ModelShape, *, seed: int = 0) -> Any:
    """The stock model of ``write_random_model`` on the weights the engine really uses."""
    model = build_stock_model(shape, seed=seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                for expert in range(parameter.shape[0]):
                    parameter[expert] = int4.round_trip(parameter[expert], 32)
            else:
                parameter.copy_(parameter.half().float())
    return model


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete folder of a tiny model; tests must not change it."""
    return write_random_model(tmp_path_factory.mktemp("tiny"), TINY)


@pytest.fixture(scope="session")
def tiny_hybrid_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a tiny Qwen3.5-MoE: three recurrent layers, one of attention."""
    return write_random_model(tmp_path_factory.mktemp("tiny-hybrid"), TINY_HYBRID)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)

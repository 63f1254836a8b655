"""Single layers of the stock models with random weights, and calls with their caches."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from inference.benchmarks.random_model import tiny_qwen3_5_moe_config, tiny_qwen3_moe_config
from inference.geometry import ModelGeometry


def tiny_config(architecture: str) -> Any:
    """A tiny config whose attention adds explicit masks, as these calls want."""
    hybrid = architecture == "qwen3_5_moe"
    config = tiny_qwen3_5_moe_config() if hybrid else tiny_qwen3_moe_config()
    config._attn_implementation = "eager"
    return config


def geometry_of(config: Any) -> ModelGeometry:
    return ModelGeometry.from_config(config.to_dict())


def randomise(module: nn.Module, *, seed: int) -> nn.Module:
    """Weights wide enough that every part of the layer shows in its output."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        scale = 0.5 if parameter.dim() == 1 else 1.5 / parameter[0].numel() ** 0.5
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return module.eval().requires_grad_(False)


def cache_argument(module: nn.Module) -> str:
    """transformers 5.24 renamed the argument of all forwards."""
    parameters = inspect.signature(inspect.unwrap(type(module).forward)).parameters
    names = ("cache", "past_key_values", "cache_params")
    return next(name for name in names if name in parameters)


def causal_mask(start: int, end: int) -> Tensor:
    """[1, 1, end - start, end], 0 where a query may look, else the lowest number."""
    queries, keys = torch.arange(start, end)[:, None], torch.arange(end)[None]
    return torch.where(keys <= queries, 0.0, torch.finfo(torch.float32).min)[None, None]


def rotary_angles(rotary: nn.Module, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [1, n, rotary_dim] of ``positions`` [n]; Qwen3.5 wants them per axis."""
    ids = positions[None]
    if hasattr(rotary, "mrope_section"):
        ids = ids[None].expand(3, 1, -1)
    angles: tuple[Tensor, Tensor] = rotary(hidden, ids)
    return angles


def call_attention(
    layer: nn.Module, rotary: nn.Module, hidden: Tensor, start: int, cache: Any = None
) -> Tensor:
    """The stock attention of ``hidden`` [1, n, H] at positions ``start`` and on."""
    end = start + hidden.shape[1]
    angles = rotary_angles(rotary, hidden, torch.arange(start, end, device=hidden.device))
    out: Tensor = layer(
        hidden,
        position_embeddings=angles,
        attention_mask=causal_mask(start, end).to(hidden.device),
        **{cache_argument(layer): cache},
    )[0]
    return out

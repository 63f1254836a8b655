"""The engine with the weights as they were trained, before rounding to INT4 and FP16.

Owns putting a training checkpoint into a loaded model, so that both run through the same code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch

from inference.checkpoint.loader import LoadedModel, load_model
from inference.llm import LLM


def float_llm(model_dir: Path, checkpoint: Path, **limits: Any) -> LLM:
    """An LLM of ``model_dir`` whose weights are those of ``checkpoint`` (a state dict of the
    stock model, as training saves it), in FP32. Raises KeyError when it does not fit."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)

    def load(*args: Any, **options: Any) -> LoadedModel:
        options["expert_cache_slots"] = None
        loaded = load_model(*args, **options)
        put_weights(loaded, state)
        return loaded

    # The decode path copies weights while the LLM is built: they must be there before.
    with mock.patch("inference.llm.load_model", load):
        return LLM(model_dir, **limits)


@torch.no_grad()
def put_weights(loaded: LoadedModel, state: dict[str, torch.Tensor]) -> None:
    """Overwrite the backbone and every expert's slot."""
    for name, weight in loaded.model.named_parameters():
        weight.copy_(state[name].float())
    for layer in loaded.store.layers:
        everyone = list(range(loaded.store.num_experts))
        prefix = f"model.layers.{layer}.mlp.experts"
        gate_up, down = state[f"{prefix}.gate_up_proj"], state[f"{prefix}.down_proj"]
        slots = loaded.cache.fetch(layer, everyone)
        for expert, (gate_up_t, down_t) in zip(everyone, slots, strict=True):
            gate_up_t.copy_(gate_up[expert].float().t())
            down_t.copy_(down[expert].float().t())

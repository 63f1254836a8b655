"""Model folder -> a runnable transformers model whose experts live in store and cache.

Owns the putting together of backbone, expert store and expert cache for the CPU. Knows nothing of
sequences or of what is computed with the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from inference.checkpoint import format as layout
from inference.checkpoint.backbone import (
    backbone_shapes,
    load_backbone,
    routed_layers,
    transformers_config,
)
from inference.moe.expert_cache import CachePolicy, ExpertCache, SlotFormat, slot_format
from inference.moe.expert_store import ExpertStore
from inference.moe.experts import OffloadedExperts

_FP32_UP_TO_BYTES = 2**30


@dataclass(frozen=True)
class LoadedModel:
    """``model`` is the stock class in eval mode; ``config`` its transformers text config."""

    model: Any
    config: Any
    store: ExpertStore
    cache: ExpertCache


def load_model(
    model_dir: Path,
    *,
    expert_cache_slots: int | None = None,
    expert_cache_policy: CachePolicy = "decayed_frequency",
    expert_slot_format: SlotFormat | None = None,
    dtype: torch.dtype | None = None,
) -> LoadedModel:
    """Load a converted folder for the CPU; ``None`` slots means every expert may be resident.

    Slots hold dense experts of ``dtype`` or packed ones; ``None`` takes the faster. The backbone is
    in ``dtype``; ``None`` is fp32 for one of up to 1 GiB, bf16 above: there the bytes a step reads
    are its time.

    Raises ``CheckpointError`` naming the file and the remedy, ``ValueError`` for too few slots.
    """
    from transformers.activations import ACT2FN

    fields = layout.read_config(model_dir)
    routing = layout.read_routing_config(model_dir, fields)
    if dtype is None:
        config = transformers_config(fields, model_dir / layout.CONFIG_FILE)
        size = sum(math.prod(shape) for shape in backbone_shapes(config).values())
        dtype = torch.float32 if 4 * size <= _FP32_UP_TO_BYTES else torch.bfloat16
    model, config = load_backbone(model_dir, dtype=dtype)
    layers = routed_layers(config)
    shape = layout.ExpertShape(
        config.hidden_size, config.moe_intermediate_size, routing.quantization.group_size
    )
    store = ExpertStore.open(model_dir, routing, layers=layers, shape=shape)
    cache = ExpertCache(
        store,
        num_slots=routing.num_experts if expert_cache_slots is None else expert_cache_slots,
        num_experts_per_tok=routing.num_experts_per_tok,
        policy=expert_cache_policy,
        dtype=dtype,
        slot_format=slot_format(shape) if expert_slot_format is None else expert_slot_format,
    )
    act_fn = F.silu if config.hidden_act == "silu" else ACT2FN[config.hidden_act]
    for index in layers:
        model.model.layers[index].mlp.experts = OffloadedExperts(cache, index, act_fn)
    return LoadedModel(model, config, store, cache)

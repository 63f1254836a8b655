"""Model folder -> a runnable transformers model whose experts live in store and cache.

Owns the weightless build and the checks of the backbone. The stock classes are built without
ever allocating expert parameters; then router and experts modules are replaced by ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from inference.checkpoint import format as layout
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError
from inference.moe.expert_cache import CachePolicy, ExpertCache
from inference.moe.expert_store import ExpertStore
from inference.moe.experts import OffloadedExperts
from inference.moe.router import Router


@dataclass(frozen=True)
class LoadedModel:
    """``model`` is a Qwen3MoeForCausalLM in eval mode; ``config`` its transformers config."""

    model: nn.Module
    config: Any
    store: ExpertStore
    cache: ExpertCache


def load_model(
    model_dir: Path,
    *,
    expert_cache_slots: int | None = None,
    expert_cache_policy: CachePolicy = "decayed_frequency",
    dtype: torch.dtype = torch.float32,
) -> LoadedModel:
    """Load a converted folder for the CPU; ``None`` slots means every expert may be resident.

    Raises ``CheckpointError`` naming the file and the remedy, ``ValueError`` for too few slots.
    """
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    fields = layout.read_config(model_dir)
    routing = layout.read_routing_config(model_dir, fields)
    config = Qwen3MoeConfig(
        **{key: value for key, value in fields.items() if key not in _NOT_FOR_TRANSFORMERS}
    )
    with _weightless(Qwen3MoeExperts):
        model = Qwen3MoeForCausalLM._from_config(config, dtype=dtype)
    _load_backbone(model, model_dir, dtype, tied=bool(config.tie_word_embeddings))
    layers = [
        index for index, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "experts")
    ]
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
    )
    for index in layers:
        mlp = model.model.layers[index].mlp
        act_fn = F.silu if config.hidden_act == "silu" else mlp.experts.act_fn
        mlp.experts = OffloadedExperts(cache, index, act_fn)
        mlp.gate = Router(
            mlp.gate.weight,
            num_experts_per_tok=routing.num_experts_per_tok,
            norm_topk_prob=routing.norm_topk_prob,
        )
    model.eval().requires_grad_(False)
    return LoadedModel(model, config, store, cache)


_NOT_FOR_TRANSFORMERS = ("routing_config", "num_local_experts", "transformers_version", "dtype")


@contextmanager
def _weightless(experts_class: Any) -> Iterator[None]:
    """Build models without expert parameters and without random initialisation."""
    from transformers.activations import ACT2FN
    from transformers.initialization import no_init_weights

    original = experts_class.__init__

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.num_experts = config.num_experts
        self.act_fn = ACT2FN[config.hidden_act]

    experts_class.__init__ = init
    try:
        with no_init_weights():
            yield
    finally:
        experts_class.__init__ = original


def _load_backbone(model: Any, model_dir: Path, dtype: torch.dtype, *, tied: bool) -> None:
    path = model_dir / layout.BACKBONE_FILE
    tensors = _read_backbone(path)
    expected: dict[str, Tensor] = model.state_dict()
    if tied:
        expected.pop("lm_head.weight", None)
        tensors.pop("lm_head.weight", None)
    missing, unexpected = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing or unexpected:
        what = f"{min(missing)} is missing" if missing else f"{min(unexpected)} is not expected"
        raise ConfigMismatchError(
            path,
            f"{what} ({len(missing)} missing, {len(unexpected)} unexpected in all)",
            "config.json belongs to another model: copy both again or convert again",
        )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ConfigMismatchError(
                path,
                f"{name} is {tuple(tensor.shape)}, "
                f"config.json implies {tuple(expected[name].shape)}",
                "correct config.json or convert the model again",
            )
        if not bool(torch.isfinite(tensor).all()):
            raise DamagedFileError(
                path, f"{name} holds NaN or infinite values", "copy the file again"
            )
    converted = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    model.load_state_dict(converted, strict=False, assign=True)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight


def _read_backbone(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise MissingFileError(
            path, "the backbone file is missing", "copy it again or convert the model again"
        )
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(path, f"cannot be read ({error})", "copy the file again") from error
    return tensors

"""Runs the model: prompt chunks through the stock classes, single tokens through our own path.

Owns the loaded model, its KV cache and the choice of the thread count. Returns logits; knows
nothing of sampling, masks or requests. Used by the engine thread only.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Sequence as Seq
from typing import Any, Literal

import torch
from torch import Tensor

from inference.checkpoint.backbone import routed_layers
from inference.checkpoint.loader import LoadedModel
from inference.engine.cpu_linear import LinearFormat, quantise_linears
from inference.engine.decode import Qwen3MoeDecode
from inference.engine.hybrid_cache import HybridCache, RecurrentShape
from inference.engine.kv_cache import KVCache, KVShape
from inference.moe.router import RouterOptions, configure_routers

logger = logging.getLogger(__name__)


def sequence_cache(
    config: Any, num_slots: int, max_model_len: int, dtype: torch.dtype = torch.float32
) -> KVCache:
    """The cache that the layers of a transformers text config need.

    ``dtype`` is that of the model; keys and values of a model that our own decode steps read are
    fp32 whatever it is.
    """
    head_dim = getattr(config, "head_dim", None)
    layer_types = getattr(config, "layer_types", None) or []
    recurrent = "linear_attention" in layer_types
    shape = KVShape(
        num_layers=(
            layer_types.count("full_attention") if recurrent else int(config.num_hidden_layers)
        ),
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim or config.hidden_size // config.num_attention_heads,
    )
    if not recurrent:
        return KVCache(shape, num_slots=num_slots, max_model_len=max_model_len)
    return HybridCache(
        shape,
        RecurrentShape.of(config),
        layer_types,
        num_slots=num_slots,
        max_model_len=max_model_len,
        dtype=dtype,
    )


class ModelRunner:
    """Prefill and decode over the slots of one ``KVCache``."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_num_seqs: int,
        max_model_len: int,
        router_options: RouterOptions | None = None,
        backbone_dtype: Literal["fp16", "int8"] = "fp16",
        lm_head_dtype: LinearFormat = "fp16",
    ) -> None:
        """Backbone and head as they were loaded ("fp16"), or made smaller here, in place."""
        config = loaded.config
        self._model: Any = loaded.model
        self.expert_cache = loaded.cache
        self.vocab_size = int(config.vocab_size)
        dtype = self._model.model.embed_tokens.weight.dtype
        quantise_linears(self._model, backbone_dtype=backbone_dtype, lm_head_dtype=lm_head_dtype)
        self.kv_cache = sequence_cache(config, max_num_seqs, max_model_len, dtype)
        self._routed = configure_routers(
            [(layer, self._model.model.layers[layer].mlp.gate) for layer in routed_layers(config)],
            router_options or RouterOptions(),
        )
        # transformers 5.24 renamed the argument; 5.17 knows the old name only.
        parameters = inspect.signature(inspect.unwrap(type(self._model).forward)).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._decode = (
            Qwen3MoeDecode(self._model, self.kv_cache) if Qwen3MoeDecode.supports(config) else None
        )

    @torch.inference_mode()
    def prefill(self, token_ids: Seq[int], slot: int, start: int) -> Tensor:
        """Compute ``token_ids`` at positions ``start``...; logits [vocab_size] of the last one.

        Positions before ``start`` must lie in ``slot`` already.
        """
        if len(token_ids) == 1 and start > 0:
            return self.decode(token_ids, [slot], [start])[0]
        self._routed.positions = range(start, start + len(token_ids))
        self._routed.slots = None
        ids = torch.tensor([list(token_ids)])
        cache = {self._cache_argument: self.kv_cache.for_transformers(slot, start)}
        return self._model(ids, use_cache=True, logits_to_keep=1, **cache).logits[0, -1].float()

    @torch.inference_mode()
    def decode(self, token_ids: Seq[int], slots: Seq[int], positions: Seq[int]) -> Tensor:
        """Compute one new token a sequence; logits [batch, vocab_size]."""
        self._routed.positions, self._routed.slots = positions, slots
        if self._decode is not None:
            return self._decode.forward(token_ids, slots, positions)
        return torch.stack(
            [
                self._stock_decode(token, slot, position)
                for token, slot, position in zip(token_ids, slots, positions, strict=True)
            ]
        )

    def _stock_decode(self, token_id: int, slot: int, position: int) -> Tensor:
        self._routed.positions, self._routed.slots = [position], [slot]
        cache = {self._cache_argument: self.kv_cache.for_transformers(slot, position)}
        return (
            self._model(torch.tensor([[token_id]]), use_cache=True, **cache).logits[0, -1].float()
        )

    def warm_up(self, num_threads: int | None) -> int:
        """Run a few steps and set the thread count of the calling thread; returns it.

        ``None`` measures one thread against all cores: small models lose more to waking threads
        than they gain, so more threads must be clearly faster to be taken.
        """
        slot = self.kv_cache.allocate()
        length = min(128, self.kv_cache.max_model_len - 1)
        prompt = [index % self.vocab_size for index in range(length)]

        def answer_s(repeats: int) -> float:
            """Seconds of a short answer; the best of ``repeats``, others may use the cores."""
            self.prefill(prompt, slot, 0)
            best = float("inf")
            for _ in range(repeats):
                start = time.perf_counter()
                self.prefill(prompt, slot, 0)
                for _ in range(10):
                    self.decode([0], [slot], [length])
                best = min(best, time.perf_counter() - start)
            return best

        if num_threads is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
            costs = {}
            for count in sorted({1, cores}):
                torch.set_num_threads(count)
                costs[count] = answer_s(repeats=2)
            num_threads = 1 if costs[1] <= 1.15 * costs[cores] else cores
            logger.info("engine threads: %d (measured seconds: %s)", num_threads, costs)
        torch.set_num_threads(num_threads)
        answer_s(repeats=1)
        self.kv_cache.free(slot)
        self.expert_cache.reset_stats()
        return num_threads

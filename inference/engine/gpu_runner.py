"""The model on a GPU: prompts through the stock classes, single tokens through our kernels.

Owns the static memory of one engine, prefill chunks, decode steps and their graphs. Both phases
read the same weights, pages, states and expert slots. Returns candidates and keeps whole logits
on the device; knows nothing of sampling or requests. Used by the engine thread only.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from inference.config import EngineConfig
from inference.engine.decode_graph import DecodeStep, Parts, batch_sizes
from inference.engine.gpu_weights import BackboneWeights, check_supported, take_weights
from inference.engine.kv_pages import PagedKVCache
from inference.engine.logits import Candidates, DeviceLogits
from inference.engine.step_graphs import DecodeGraphs
from inference.errors import EngineStepError, GPUOutOfMemoryError
from inference.geometry import ModelGeometry
from inference.kernels.library import KernelLibrary
from inference.kernels.step import withdraw_waiting
from inference.memory_plan import MemoryPlan
from inference.moe.expert_arena import ExpertArena
from inference.moe.expert_cache import CacheStats
from inference.moe.expert_slots import ExpertSlots, FatigueConfig
from inference.moe.prefetcher import PrefetchConfig

logger = logging.getLogger(__name__)

_WARM_UP_TOKENS = 16


class SlotExperts(nn.Module):
    """Experts of one layer with the call contract of the stock experts, over expert slots."""

    def __init__(self, slots: ExpertSlots, layer: int) -> None:
        super().__init__()
        self._slots = slots
        self._layer = layer

    def forward(self, hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """``hidden_states`` [num_tokens, hidden], ids and weights [num_tokens, k]."""
        return self._slots.prefill(self._layer, hidden_states, topk_ids, topk_weights)


class SlotStats:
    """The counters of the slots in the form of the CPU's expert cache."""

    def __init__(self, slots: ExpertSlots) -> None:
        self._slots = slots

    @property
    def stats(self) -> CacheStats:
        """A snapshot of the counters; waits for the device."""
        counters = self._slots.counters()
        return CacheStats(counters.hits, counters.misses, counters.evictions, counters.bytes_read)

    def reset_stats(self) -> None:
        """Set the counters to zero; slots stay as they are."""
        self._slots.reset_counters()


class GpuModelRunner:
    """Prefill and decode over the slots of one ``PagedKVCache``."""

    def __init__(
        self,
        model: Any,
        arena: ExpertArena,
        plan: MemoryPlan,
        library: KernelLibrary,
        config: EngineConfig,
    ) -> None:
        """Take over ``model`` (a stock model without experts, on ``library.device``).

        Raises ``ArchitectureError`` for a model the kernels do not compute,
        ``GPUOutOfMemoryError`` when the plan's memory is not there.
        """
        check_supported(model.config)
        hf_config = model.config
        self.plan = plan
        self.vocab_size = int(hf_config.vocab_size)
        self.geometry = ModelGeometry.from_config(
            hf_config.to_dict(), group_size=arena.shape.group_size
        )
        self._library = library
        self._dtype: torch.dtype = model.dtype
        with out_of_memory_named():
            self._weights: BackboneWeights = take_weights(
                model,
                device=library.device,
                max_model_len=config.max_model_len,
                backbone_dtype=config.backbone_dtype,
                head_dtype=config.lm_head_dtype,
                group_size=self.geometry.group_size,
            )
            self.kv_cache = self._new_kv_cache(config)
            self.slots = self._new_slots(arena, config, hf_config)
            self._step = DecodeStep(
                library,
                self.geometry,
                self._weights,
                self.slots,
                self.kv_cache,
                eps=float(hf_config.rms_norm_eps),
                max_num_seqs=config.max_num_seqs,
            )
        self.expert_cache = SlotStats(self.slots)
        self._early_launch = config.early_launch
        self.graphs = DecodeGraphs(self._step, early_launch=config.early_launch)
        self._model = model.model
        for index, layer in enumerate(self._model.layers):
            layer.mlp.experts = SlotExperts(self.slots, index)
        # transformers 5.24 renamed the argument; 5.17 knows the old name only.
        parameters = inspect.signature(inspect.unwrap(type(self._model).forward)).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._masks: list[Tensor | None] = [None] * self._step.sizes[-1]
        self._free_row = torch.full_like(self._step.mask_bits[0], -1, device="cpu")

    @torch.inference_mode()
    def prefill(
        self, token_ids: Seq[int], slot: int, start: int, mask: Tensor | None = None
    ) -> DeviceLogits:
        """Compute ``token_ids`` at positions ``start``...; logits of the last one.

        Positions before ``start`` must lie in ``slot`` already. ``mask`` int32
        [ceil(vocab_size / 32)] as ``LogitMask.packed`` gives it. More tokens than a prefill
        chunk of the plan are computed chunk by chunk. Raises ``GPUOutOfMemoryError``.
        """
        if len(token_ids) == 1 and start > 0:
            return self.decode(token_ids, [slot], [start], [mask])[0]
        step, size = self._step, self.plan.prefill_chunk_tokens
        withdraw_waiting(self._library.device)
        with out_of_memory_named():
            self.kv_cache.reserve(slot, start + len(token_ids))
            for first in range(0, len(token_ids), size):
                last = self._forward(token_ids[first : first + size], slot, start + first)
            step.residual[:1].copy_(last)
            self._set_masks([mask])
            step.finish(1)
            step.outputs[1].download()
            self.graphs.wait()
        return self._logits(1, 1)[0]

    @torch.inference_mode()
    def decode(
        self,
        token_ids: Seq[int],
        slots: Seq[int],
        positions: Seq[int],
        masks: Seq[Tensor | None] | None = None,
    ) -> list[DeviceLogits]:
        """Compute one new token a sequence; logits of each, valid until the next call.

        ``masks[i]`` as in ``prefill``. Raises ``GPUOutOfMemoryError``, and ``EngineStepError``
        when the model computed values that are not finite.
        """
        count = len(token_ids)
        with out_of_memory_named():
            masks = masks or [None] * count
            batch = self._prepare(token_ids, slots, positions, masks=masks)
            self.graphs.run(batch)
            self._masks[:count] = masks
        return self._logits(batch, count)

    @torch.inference_mode()
    def decode_loop(
        self,
        token_ids: Seq[int],
        slots: Seq[int],
        positions: Seq[int],
        num_steps: int,
        *,
        parts: Parts = "all",
    ) -> Tensor:
        """Greedy steps without the host between them; tokens int32 [batch, num_steps].

        The first step computes ``token_ids`` at ``positions``; each step's best token is the
        next one's input. No masks. Pages for all steps must be there. For measurements.
        """
        last = [position + num_steps - 1 for position in positions]
        withdraw_waiting(self._library.device)
        with out_of_memory_named():
            batch = self._prepare(token_ids, slots, positions, last)
            self._set_masks([None] * len(token_ids))
            self.graphs.run_loop(batch, parts, num_steps)
        history = self._step.history
        return torch.stack(
            [
                history[row, position + 1 : position + 1 + num_steps]
                for row, position in enumerate(positions)
            ]
        ).cpu()

    def capture(self, parts: Parts = "all", *, loop: bool = False) -> None:
        """Capture the decode graphs of every batch size; no effect without CUDA."""
        with torch.inference_mode(), out_of_memory_named():
            self.graphs.capture(parts, loop=loop)

    def warm_up(self, num_threads: int | None = None) -> int:
        """Run the largest prefill chunk at the end of the context, and capture the graphs.

        What fits now fits later: memory use reaches its peak here. Returns the thread count of
        the calling thread, changed only by ``num_threads``.
        """
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        begin_s = time.perf_counter()
        slot = self.kv_cache.allocate()
        most = self.plan.prefill_chunk_tokens
        if self._library.device.type != "cuda":
            most = min(most, _WARM_UP_TOKENS)
        end = self.kv_cache.max_model_len - 1
        length = max(1, min(most, end))
        prompt = [index % self.vocab_size for index in range(length)]
        self.prefill(prompt, slot, end - length)  # attends to most: the whole context
        self.capture()
        self.decode([0], [slot], [end])
        self.kv_cache.free(slot)
        self.slots.reset_counters()
        logger.info("warm after %.1f s", time.perf_counter() - begin_s)
        return torch.get_num_threads()

    def set_prefetch(self, enabled: bool) -> None:
        """Turn the prefetch on or off between steps and capture the graphs again."""
        self.slots.set_prefetch(PrefetchConfig(enabled=enabled))
        self.graphs = DecodeGraphs(self._step, early_launch=self._early_launch)
        self.capture()

    def logits_of(self, row: int) -> Tensor:
        """All logits of one row of the last step, fp32 [vocab_size], a copy on the device."""
        logits = self.graphs.row(row)
        withdraw_waiting(self._library.device)
        return logits.to(self._library.device)

    def _new_kv_cache(self, config: EngineConfig) -> PagedKVCache:
        dtype = torch.uint8 if config.kv_cache_dtype == "fp8" else self._dtype
        return PagedKVCache(
            self.geometry,
            num_pages=self.plan.num_pages,
            page_size=self.plan.page_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            dtype=dtype,
            device=self._library.device,
        )

    def _new_slots(self, arena: ExpertArena, config: EngineConfig, hf_config: Any) -> ExpertSlots:
        layers = self._weights.layers
        shared = [layer.shared for layer in layers if layer.shared is not None]
        return ExpertSlots(
            self._library,
            arena,
            routers=[layer.router for layer in layers],
            slots_per_layer=self.plan.slots_per_layer,
            num_experts_per_tok=self.geometry.num_experts_per_tok,
            max_batch=batch_sizes(config.max_num_seqs)[-1],
            norm_topk_prob=bool(getattr(hf_config, "norm_topk_prob", True)),
            shared=shared or None,
            prefetch=PrefetchConfig(enabled=config.expert_prefetch),
            gumbel_temperature=config.router_gumbel_temperature,
            fatigue=FatigueConfig(penalty=config.router_fatigue_penalty),
            num_sequences=config.max_num_seqs,
            staging_experts=self.plan.prefill_staging_experts,
        )

    def _prepare(
        self,
        token_ids: Seq[int],
        slots: Seq[int],
        positions: Seq[int],
        last_positions: Seq[int] | None = None,
        masks: Seq[Tensor | None] = (),
    ) -> int:
        """Reserve pages and fill the host's buffer; returns the batch size to run."""
        batch = next(size for size in self._step.sizes if size >= len(token_ids))
        for slot, last in zip(slots, last_positions or positions, strict=True):
            self.kv_cache.reserve(slot, last + 1)
        changed = 0
        for row, mask in enumerate(masks):
            if mask is not self._masks[row]:
                self._step.host_masks[row].copy_(self._free_row if mask is None else mask)
                changed |= 1 << row
        inputs, key = self._step.inputs[batch], (tuple(slots), self.kv_cache.tables_version)
        tables = None if inputs.tables_key == key else self.kv_cache.table_rows(slots)
        inputs.write(token_ids, positions, slots, tables, changed)
        inputs.tables_key = key
        return batch

    def _forward(self, token_ids: Seq[int], slot: int, start: int) -> Tensor:
        """One chunk through the stock layers; the residual of its last token [1, hidden]."""
        rows = self._weights.embedding.index_select(0, torch.tensor(list(token_ids)))
        hidden = rows.to(self._library.device, self._dtype).unsqueeze(0)
        cache = {self._cache_argument: self.kv_cache.for_transformers(slot, start)}
        output = self._model(inputs_embeds=hidden, use_cache=True, **cache)
        return output.last_hidden_state[0, -1:]

    def _set_masks(self, masks: Seq[Tensor | None]) -> None:
        """Upload the rows of the mask that differ from those on the device."""
        for row, mask in enumerate(masks):
            if mask is not self._masks[row]:
                self._step.mask_bits[row].copy_(self._free_row if mask is None else mask)
                self._masks[row] = mask

    def _logits(self, batch: int, count: int) -> list[DeviceLogits]:
        outputs = self._step.outputs[batch]
        ids, values = outputs.host_ids, outputs.host_values
        if not outputs.finite(count):
            raise EngineStepError("the model computed values that are not finite; ask again")
        return [
            DeviceLogits(Candidates(ids[row], values[row]), functools.partial(self.graphs.row, row))
            for row in range(count)
        ]


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """Turns torch's error into ``GPUOutOfMemoryError`` with the remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise GPUOutOfMemoryError(
            f"the GPU has no memory left within the limit ({str(error).splitlines()[0]})",
            "lower prefill_chunk_tokens, max_model_len or max_num_seqs, or raise gpu_memory_limit",
        ) from error

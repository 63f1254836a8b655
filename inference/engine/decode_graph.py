"""One decode step as a sequence of kernels over static tensors.

Owns the static tensors of the step and the order of its kernels. Knows nothing of graphs, of when
a step is launched, of requests or of sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from inference.engine.gpu_weights import AttentionWeights, BackboneWeights, DeltaWeights
from inference.engine.kv_pages import PagedKVCache
from inference.engine.step_buffers import StepInputs, StepOutputs
from inference.geometry import ModelGeometry
from inference.kernels.attention import attention_step, attention_workspace
from inference.kernels.gated_delta import gdn_step
from inference.kernels.library import KernelLibrary
from inference.kernels.linear import (
    candidate_scratch,
    embed,
    head,
    linear_residual,
    rms_linear,
    top_candidates,
)
from inference.moe.expert_slots import ExpertSlots

BATCH_SIZES = (1, 2, 4, 8)
Parts = Literal["all", "backbone", "moe"]


def batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The batch sizes that steps of up to ``max_num_seqs`` sequences are padded to."""
    largest = next(size for size in BATCH_SIZES if size >= max_num_seqs)
    return tuple(size for size in BATCH_SIZES if size <= largest)


@dataclass(frozen=True)
class _MixerBuffers:
    """Outputs of the projections and of the attention or delta rule, for the largest batch."""

    projected: Tensor
    mixed: Tensor


class DecodeStep:
    """The kernels of one step for every batch size; all sizes share the static tensors."""

    def __init__(
        self,
        library: KernelLibrary,
        geometry: ModelGeometry,
        weights: BackboneWeights,
        slots: ExpertSlots,
        kv_cache: PagedKVCache,
        *,
        eps: float,
        max_num_seqs: int,
    ) -> None:
        self.library = library
        self.sizes = batch_sizes(max_num_seqs)
        self._geometry = geometry
        self._weights = weights
        self._slots = slots
        self._kv_cache = kv_cache
        self._eps = eps
        self._zero_centred = geometry.linear_attention is not None
        device, most = library.device, self.sizes[-1]

        def zeros(columns: int) -> Tensor:
            return torch.zeros((most, columns), dtype=torch.float32, device=device)

        self.residual = zeros(geometry.hidden_size)
        self.logits = zeros(geometry.vocab_size)
        words = (geometry.vocab_size + 31) // 32
        self.mask_bits = torch.full((most, words), -1, dtype=torch.int32, device=device)
        on_gpu = device.type == "cuda"
        # Rows of the mask on their way to the device with the inputs of a step.
        self.host_masks = torch.full((most, words), -1, dtype=torch.int32, pin_memory=on_gpu)
        self.inputs = {
            size: StepInputs(size, int(kv_cache.block_tables.shape[1]), device)
            for size in self.sizes
        }
        self.outputs = {size: StepOutputs(size, device) for size in self.sizes}
        self.history = torch.zeros(
            (most, kv_cache.max_model_len + 1), dtype=torch.int32, device=device
        )
        self._workspace = attention_workspace(
            library,
            max_batch=most,
            num_heads=geometry.num_heads,
            num_kv_heads=geometry.num_kv_heads,
            head_dim=geometry.head_dim,
        )
        self._scratch = candidate_scratch(most, geometry.vocab_size, device)
        self._mixers: dict[type, _MixerBuffers] = {}
        for layer in weights.layers:
            projected, output = layer.mixer.projected, layer.mixer.output
            self._mixers.setdefault(
                type(layer.mixer),
                _MixerBuffers(zeros(projected.rows), zeros(output.columns)),
            )

    def run(self, batch: int, parts: Parts = "all") -> None:
        """Launch the kernels of one step over ``inputs[batch]``; candidates go to ``outputs``.

        ``parts`` leaves out the MoE layers or everything else; for measurements only.
        """
        inputs, weights, library = self.inputs[batch], self._weights, self.library
        residual = self.residual[:batch]
        if parts != "moe":
            # Kernels read positions and tables before they wait: the inputs must be there.
            embed(library, inputs.token_ids, weights.embedding, residual, pdl=False)
        for index, layer in enumerate(weights.layers):
            if parts != "moe":
                self._mix(index, batch)
            if parts != "backbone":
                self._slots.decode(
                    index,
                    residual,
                    layer.post_norm,
                    self._eps,
                    self._zero_centred,
                    inputs.positions,
                    inputs.state_slots,
                )
        if parts != "moe":
            self.finish(batch)

    def finish(self, batch: int) -> None:
        """Final norm, head, mask and candidates of ``residual[:batch]``."""
        weights, outputs, logits = self._weights, self.outputs[batch], self.logits[:batch]
        head(
            self.library,
            self.residual[:batch],
            weights.final_norm,
            eps=self._eps,
            zero_centred=self._zero_centred,
            weight=weights.head,
            mask_bits=self.mask_bits[:batch],
            logits=logits,
        )
        top_candidates(self.library, logits, outputs.ids, outputs.values, self._scratch)

    def feed_back(self, batch: int) -> None:
        """Make the greedy token of each row the next input, without the host."""
        inputs, tokens = self.inputs[batch], self.outputs[batch].ids[:, 0]
        inputs.token_ids.copy_(tokens)
        inputs.positions.add_(1)
        places = inputs.positions.clamp(min=0).to(torch.int64).unsqueeze(1)
        self.history[:batch].scatter_(1, places, inputs.token_ids.unsqueeze(1))

    def _mix(self, index: int, batch: int) -> None:
        """Attention or delta rule of one layer, added to the residual stream."""
        layer = self._weights.layers[index]
        buffers = self._mixers[type(layer.mixer)]
        projected, mixed = buffers.projected[:batch], buffers.mixed[:batch]
        residual = self.residual[:batch]
        rms_linear(
            self.library,
            residual,
            layer.input_norm,
            eps=self._eps,
            zero_centred=self._zero_centred,
            weight=layer.mixer.projected,
            out=projected,
        )
        if isinstance(layer.mixer, AttentionWeights):
            self._attend(index, layer.mixer, batch, projected, mixed)
        else:
            self._recur(index, layer.mixer, batch, projected, mixed)
        linear_residual(self.library, mixed, layer.mixer.output, residual)

    def _attend(
        self, index: int, weights: AttentionWeights, batch: int, projected: Tensor, mixed: Tensor
    ) -> None:
        inputs, geometry = self.inputs[batch], self._geometry
        attention_step(
            self.library,
            projected,
            q_norm=weights.q_norm,
            k_norm=weights.k_norm,
            eps=self._eps,
            zero_centred=self._zero_centred,
            gated=geometry.gated_attention,
            rotary=self._weights.rotary,
            positions=inputs.positions,
            block_tables=inputs.block_tables,
            pages=self._kv_cache.kv_layers[index],
            num_heads=geometry.num_heads,
            num_kv_heads=geometry.num_kv_heads,
            head_dim=geometry.head_dim,
            workspace=self._workspace,
            out=mixed,
        )

    def _recur(
        self, index: int, weights: DeltaWeights, batch: int, projected: Tensor, mixed: Tensor
    ) -> None:
        inputs, sizes = self.inputs[batch], self._geometry.linear_attention
        assert sizes is not None
        gdn_step(
            self.library,
            projected,
            conv_weight=weights.conv_weight,
            A_log=weights.A_log,
            dt_bias=weights.dt_bias,
            norm=weights.norm,
            eps=self._eps,
            states=self._kv_cache.recurrent_layers[index],
            state_slots=inputs.state_slots,
            positions=inputs.positions,
            num_k_heads=sizes.num_k_heads,
            num_v_heads=sizes.num_v_heads,
            head_k_dim=sizes.head_k_dim,
            head_v_dim=sizes.head_v_dim,
            out=mixed,
        )

"""One decode step as a sequence of kernels over static tensors, and its CUDA graphs.

Owns the static tensors, the order of the kernels and the capture of one graph per batch size.
The host's part of a step is: write one packed buffer, launch one graph, read the candidates.
Without CUDA the same sequence of kernels runs eagerly. Knows nothing of requests or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from inference.engine.gpu_weights import AttentionWeights, BackboneWeights, DeltaWeights
from inference.engine.kv_pages import PagedKVCache
from inference.engine.logits import MAX_CANDIDATES
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
PADDING = -(2**30)
"""Position of a row without a sequence; far enough below 0 to stay there in a decode loop."""

_WARM_UP_RUNS = 2


def batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The batch sizes that steps of up to ``max_num_seqs`` sequences are padded to."""
    largest = next(size for size in BATCH_SIZES if size >= max_num_seqs)
    return tuple(size for size in BATCH_SIZES if size <= largest)


class StepInputs:
    """What the host tells one step: token ids, positions, state slots and block tables.

    One int32 buffer on the host (pinned) and one on the device; ``token_ids``, ``positions`` and
    ``state_slots`` [batch] and ``block_tables`` [batch, pages] are views of the device's.
    """

    def __init__(self, batch: int, num_pages: int, device: torch.device) -> None:
        size = batch * (3 + num_pages)
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.device = self.host.to(device) if on_gpu else self.host
        self._numbers = self.host.numpy()
        self._batch = batch
        self.token_ids, self.positions, self.state_slots = self.device[: 3 * batch].view(3, batch)
        self.block_tables = self.device[3 * batch :].view(batch, num_pages)
        self._tables = self._numbers[3 * batch :].reshape(batch, num_pages)
        self.clear()

    def clear(self) -> None:
        """Make every row of the host's buffer padding."""
        self.write([], [], [], None)

    def write(
        self, token_ids: Seq[int], positions: Seq[int], slots: Seq[int], tables: Tensor | None
    ) -> None:
        """Fill the host's buffer; rows beyond the sequences become padding.

        ``tables`` int32 [sequences, pages] on the host.
        """
        count, batch, numbers = len(token_ids), self._batch, self._numbers
        numbers[:count] = token_ids
        numbers[count:batch] = 0
        numbers[batch : batch + count] = positions
        numbers[batch + count : 2 * batch] = PADDING
        numbers[2 * batch : 2 * batch + count] = slots
        numbers[2 * batch + count : 3 * batch] = 0
        if tables is not None:
            self._tables[:count] = tables.numpy()

    def upload(self) -> None:
        """Copy to the device in stream order."""
        if self.device is not self.host:
            self.device.copy_(self.host, non_blocking=True)


class StepOutputs:
    """The candidates of each row, ``ids`` int32 and ``values`` fp32 [batch, 64], and their copy
    ``host_ids``, ``host_values``."""

    def __init__(self, batch: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        shape = (2, batch, MAX_CANDIDATES)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=on_gpu)
        self._device = self._host.to(device) if on_gpu else self._host
        self.ids, self.values = self._device[0], self._device[1].view(torch.float32)
        self.host_ids, self.host_values = self._host[0], self._host[1].view(torch.float32)

    def download(self) -> None:
        """Copy to the host in stream order; the caller waits."""
        if self._device is not self._host:
            self._host.copy_(self._device, non_blocking=True)


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
            embed(library, inputs.token_ids, weights.embedding, residual)
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


class DecodeGraphs:
    """Launches steps: as captured graphs on a GPU, eagerly elsewhere.

    A graph holds the upload of the inputs, the kernels and the download of the candidates; a
    loop's graph holds the kernels and the feedback of the greedy tokens instead.
    """

    def __init__(self, step: DecodeStep) -> None:
        self._step = step
        self._on_gpu = step.library.device.type == "cuda"
        self._graphs: dict[tuple[int, Parts, bool], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._on_gpu else None

    def capture(self, parts: Parts = "all", *, loop: bool = False) -> None:
        """Capture one graph per batch size; warm-up runs see padding rows only.

        No effect without CUDA. Raises ``torch.OutOfMemoryError``.
        """
        if not self._on_gpu:
            return
        for batch in reversed(self._step.sizes):
            key = (batch, parts, loop)
            if key in self._graphs:
                continue
            self._step.inputs[batch].clear()
            side = torch.cuda.Stream(self._step.library.device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step.inputs[batch].upload()
                for _ in range(_WARM_UP_RUNS):
                    self._launch(*key)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=side):
                self._launch(*key)
            self._graphs[key] = graph

    def launch(self, batch: int, parts: Parts = "all", *, loop: bool = False) -> None:
        """Run one step in stream order; does not wait for it."""
        graph = self._graphs.get((batch, parts, loop))
        if graph is None:
            self._launch(batch, parts, loop)
        else:
            graph.replay()

    def run_eagerly(self, batch: int, parts: Parts = "all", *, loop: bool = False) -> None:
        """As ``launch`` without a graph; for comparisons."""
        self._launch(batch, parts, loop)

    def wait(self) -> None:
        """Wait until the steps launched are done."""
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()

    def _launch(self, batch: int, parts: Parts, loop: bool) -> None:
        step = self._step
        if loop:
            step.run(batch, parts)
            step.feed_back(batch)
        else:
            step.inputs[batch].upload()
            step.run(batch, parts)
            step.outputs[batch].download()

"""The module that takes the place of transformers' fused experts.

Owns the order of work over tokens and experts of one layer. Reads weights through the
``ExpertCache`` only. The result does not depend on the number of slots: each (token, expert)
product goes to its own row, and rows are summed in routing order whatever order the experts
were loaded in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inference.moe.expert_cache import ExpertCache, Weight
from inference.moe.packed_matrix import PackedMatrix


class OffloadedExperts(nn.Module):
    """Experts of one layer with the call contract of ``Qwen3MoeExperts``."""

    def __init__(self, cache: ExpertCache, layer: int, act_fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cache = cache
        self.layer = layer
        self._act_fn = act_fn
        self._intermediate_size = cache.store.shape.intermediate_size

    def forward(self, hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """``hidden_states`` [num_tokens, hidden], ids and weights [num_tokens, k].

        Returns [num_tokens, hidden] in the dtype of ``hidden_states``; inputs stay unmodified.
        """
        dtype = self.cache.input_dtype or hidden_states.dtype
        hidden, weights = hidden_states.to(dtype), topk_weights.to(dtype)
        forward = self._forward_one if hidden.shape[0] == 1 else self._forward_many
        return forward(hidden, topk_ids, weights).to(hidden_states.dtype)

    def _forward_one(self, hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """One token: the activation of its k experts in one go, the weighted sum in the last
        products.
        """
        pairs = self.cache.fetch(self.layer, topk_ids[0].tolist())
        # Packed matrices take and give bf16: the one row is converted once for all experts.
        packed = isinstance(pairs[0][0], PackedMatrix)
        row = hidden_states.to(torch.bfloat16) if packed else hidden_states
        gate_up = torch.cat([_product(row, gate_up) for gate_up, _ in pairs])
        gate_up = gate_up.to(hidden_states.dtype)
        gate = gate_up[:, : self._intermediate_size]
        up = gate_up[:, self._intermediate_size :]
        inner = self._act_fn(gate) * up * topk_weights.t()
        if packed:
            rows = inner.to(torch.bfloat16).split(1)
            parts = [_product(row, down) for row, (_, down) in zip(rows, pairs, strict=True)]
            return torch.cat(parts).to(hidden_states.dtype).sum(0, keepdim=True)
        output = _product(inner[:1], pairs[0][1])
        for number in range(1, len(pairs)):
            down: Any = pairs[number][1]
            output = torch.addmm(output, inner[number : number + 1], down)
        return output

    def _forward_many(
        self, hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor
    ) -> Tensor:
        num_tokens, k = topk_ids.shape
        pair_ids = topk_ids.numpy().ravel()
        order = np.argsort(pair_ids, kind="stable")
        experts, starts = np.unique(pair_ids[order], return_index=True)
        bounds = [*starts.tolist(), len(order)]
        rows = {
            expert: (bounds[index], bounds[index + 1])
            for index, expert in enumerate(experts.tolist())
        }
        inputs = hidden_states[torch.from_numpy(order // k)]
        products = torch.empty_like(inputs)
        for wave in self.cache.waves(self.layer, list(rows)):
            for expert, pair in zip(wave, self.cache.fetch(self.layer, wave), strict=True):
                start, end = rows[expert]
                products[start:end] = self._expert(inputs[start:end], *pair)
        by_token = torch.empty_like(products)
        by_token[torch.from_numpy(order)] = products
        return torch.bmm(topk_weights.unsqueeze(1), by_token.view(num_tokens, k, -1)).squeeze(1)

    def _expert(self, inputs: Tensor, gate_up: Weight, down: Weight) -> Tensor:
        both = _product(inputs, gate_up)
        gate = both[:, : self._intermediate_size]
        up = both[:, self._intermediate_size :]
        return _product(self._act_fn(gate) * up, down)


def _product(inputs: Tensor, weight: Weight) -> Tensor:
    if isinstance(weight, PackedMatrix):
        return weight.product(inputs)
    return inputs @ weight

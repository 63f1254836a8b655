"""Pages and states of one slot in the form the stock transformers classes want.

Owns the translation between pages and plain tensors, and between the convolution ring and the
stock convolution state. Works with the caches of transformers 5.17 and 5.24. Knows nothing of
how pages are handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionLayer

from inference.kernels.attention import KVLayer
from inference.kernels.gated_delta import CONV_KERNEL, RecurrentLayer
from inference.kernels.reference_attention import from_page, to_page

PageParts = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class SlotView:
    """Where the tokens of one slot lie. ``table`` is its row of the block tables."""

    slot: int
    page_size: int
    table: Tensor
    reserve: Callable[[int], object]

    def read(self, layer: KVLayer, num_tokens: int) -> PageParts:
        """Keys, values [num_kv_heads, num_tokens, head_dim] as stored, and their scales."""
        pages = self.table[: -(-num_tokens // self.page_size)].long()

        def tokens(part: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            return part[pages].transpose(0, 1).flatten(1, 2)[:, :num_tokens]

        keys, values = tokens(layer.keys), tokens(layer.values)
        assert keys is not None
        assert values is not None
        return keys, values, tokens(layer.key_scales), tokens(layer.value_scales)

    def write(
        self,
        layer: KVLayer,
        start: int,
        keys: Tensor | None,
        values: Tensor | None,
        key_scales: Tensor | None,
        value_scales: Tensor | None,
    ) -> None:
        """Put tensors laid out as ``read`` returns them at the tokens from ``start`` on."""
        assert keys is not None
        device = layer.keys.device
        positions = torch.arange(start, start + keys.shape[1], device=device)
        pages = self.table[positions // self.page_size].long()
        offsets = positions % self.page_size
        for stored, part in (
            (layer.keys, keys),
            (layer.values, values),
            (layer.key_scales, key_scales),
            (layer.value_scales, value_scales),
        ):
            if stored is not None and part is not None:
                stored[pages, :, offsets] = part.transpose(0, 1).to(device)


def transformers_cache(
    view: SlotView,
    num_layers: int,
    kv_layers: Mapping[int, KVLayer],
    recurrent_layers: Mapping[int, RecurrentLayer],
    start: int,
) -> Cache:
    """The cache object of one stock forward over one slot that holds ``start`` tokens."""
    return Cache(
        layers=[
            PagedLayer(view, kv_layers[layer], start)
            if layer in kv_layers
            else StateLayer(view.slot, recurrent_layers[layer], start)
            for layer in range(num_layers)
        ]
    )


class PagedLayer(DynamicLayer):
    """One attention layer of one slot, written in place."""

    def __init__(self, view: SlotView, layer: KVLayer, num_tokens: int) -> None:
        super().__init__()
        self._view, self._layer, self._num_tokens = view, layer, num_tokens
        self.keys = self.values = torch.empty(0, device=layer.keys.device)
        self.device, self.dtype = layer.keys.device, layer.keys.dtype
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append [1, heads, n, head_dim]; returns all keys and values so far, in that dtype."""
        start, end = self._num_tokens, self._num_tokens + key_states.shape[2]
        self._view.reserve(end)
        keys, key_scales = to_page(key_states[0], self.dtype)
        values, value_scales = to_page(value_states[0], self.dtype)
        self._view.write(self._layer, start, keys, values, key_scales, value_scales)
        self._num_tokens = end
        if start == 0:
            return key_states, value_states
        keys, values, key_scales, value_scales = self._view.read(self._layer, end)
        return (
            from_page(keys, key_scales).to(key_states.dtype).unsqueeze(0),
            from_page(values, value_scales).to(value_states.dtype).unsqueeze(0),
        )

    def get_seq_length(self) -> int:
        """Tokens stored so far."""
        return self._num_tokens


class StateLayer(LinearAttentionLayer):
    """One linear layer of one slot. The ring is turned so that the newest input comes last."""

    def __init__(self, slot: int, layer: RecurrentLayer, num_tokens: int) -> None:
        super().__init__()
        self._ring, self._state = layer.conv[slot], layer.recurrent[slot]
        self._start = num_tokens
        self._num_new = 1  # a single token is convolved without update_conv_state
        self._inputs = self._ring.roll(-num_tokens % CONV_KERNEL, dims=1).unsqueeze(0)
        self.is_conv_states_initialized[0] = self.is_recurrent_states_initialized[0] = True
        self.has_previous_state[0] = num_tokens > 0
        if num_tokens > 0:
            # The stock classes read these, and write a single token into the first.
            self.conv_states[0] = self._inputs
            self.recurrent_states[0] = self._state.unsqueeze(0)

    def update_conv_state(
        self,
        conv_states: Tensor,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Append inputs [1, channels, n]; returns them after the last four before them."""
        full = conv_states
        if self.has_previous_state[0]:
            full = torch.cat([self._inputs.to(conv_states.dtype), conv_states], dim=-1)
        padded = F.pad(full, (max(0, CONV_KERNEL - full.shape[-1]), 0))
        self._inputs.copy_(padded[..., -CONV_KERNEL:])
        self.has_previous_state[0] = True
        self._num_new = int(conv_states.shape[-1])
        return full

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Store the state [1, num_v_heads, head_k_dim, head_v_dim]; the layer's last call."""
        end = self._start + self._num_new
        self._ring.copy_(self._inputs[0].roll(end % CONV_KERNEL, dims=1))
        self._state.copy_(recurrent_states[0])
        self._start, self._num_new = end, 1
        self.conv_states[0] = self._inputs
        self.recurrent_states[0] = state = self._state.unsqueeze(0)
        return state

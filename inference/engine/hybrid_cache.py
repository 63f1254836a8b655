"""State of running sequences of a model that mixes attention with recurrent layers, on the CPU.

Owns, beside the keys and values of ``KVCache``, the recurrent and convolution state of every slot.
Such a state stands for all tokens before it: it can be copied, not cut. Knows nothing of the
arithmetic of the layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionLayer

from inference.engine.kv_cache import KVCache, KVShape, KVSnapshot


@dataclass(frozen=True)
class RecurrentShape:
    """State of one sequence: ``conv`` [channels, kernel], ``state`` [v_heads, k_dim, v_dim]."""

    num_layers: int
    conv: tuple[int, int]
    state: tuple[int, int, int]

    @classmethod
    def of(cls, config: Any) -> RecurrentShape:
        """From a transformers text config with linear attention layers."""
        keys = config.linear_num_key_heads * config.linear_key_head_dim
        values = config.linear_num_value_heads * config.linear_value_head_dim
        return cls(
            num_layers=sum(kind == "linear_attention" for kind in config.layer_types),
            conv=(2 * keys + values, config.linear_conv_kernel_dim),
            state=(
                config.linear_num_value_heads,
                config.linear_key_head_dim,
                config.linear_value_head_dim,
            ),
        )

    def bytes_per_sequence(self, conv_dtype: torch.dtype) -> int:
        """Bytes of all layers; the recurrent state is always fp32."""
        conv = math.prod(self.conv) * conv_dtype.itemsize
        return self.num_layers * (conv + math.prod(self.state) * 4)


class HybridCache(KVCache):
    """A ``KVCache`` for the attention layers, ``conv[layer][slot]`` [channels, kernel] and
    ``state[layer][slot]`` fp32 [v_heads, k_dim, v_dim] for the others.

    Layers of each kind are counted on their own, in the order of ``layer_types``.
    """

    prefix_sliceable = False

    def __init__(
        self,
        shape: KVShape,
        recurrent: RecurrentShape,
        layer_types: Seq[str],
        *,
        num_slots: int,
        max_model_len: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(shape, num_slots=num_slots, max_model_len=max_model_len, dtype=dtype)
        self.recurrent = recurrent
        self._is_attention = [kind == "full_attention" for kind in layer_types]
        size = (recurrent.num_layers, num_slots)
        self._conv = torch.zeros((*size, *recurrent.conv), dtype=dtype)
        self._state = torch.zeros((*size, *recurrent.state), dtype=torch.float32)
        self.conv = [list(layer) for layer in self._conv]
        self.state = [list(layer) for layer in self._state]

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots."""
        recurrent = self.recurrent.bytes_per_sequence(self._conv.dtype)
        return super().size_bytes + recurrent * self._conv.shape[1]

    def read(self, slot: int, num_tokens: int) -> KVSnapshot:
        """Keys and values as in ``KVCache``, then copies of convolution and recurrent state."""
        tensors = super().read(slot, num_tokens).tensors
        return KVSnapshot(
            num_tokens, (*tensors, self._conv[:, slot].clone(), self._state[:, slot].clone())
        )

    def write(self, slot: int, snapshot: KVSnapshot, num_tokens: int) -> None:
        """Copy a snapshot into a slot, whole. Raises ``ValueError`` for a part of one."""
        if num_tokens != snapshot.num_tokens:
            raise ValueError(
                f"a recurrent state after {snapshot.num_tokens} tokens is not one after "
                f"{num_tokens}"
            )
        super().write(slot, snapshot, num_tokens)
        self._conv[:, slot] = snapshot.tensors[2]
        self._state[:, slot] = snapshot.tensors[3]

    def for_transformers(self, slot: int, num_tokens: int) -> Cache:
        """A slot as the cache object of one stock forward; ``num_tokens`` are in it already."""
        layers: list[Any] = []
        attention = recurrent = 0
        for is_attention in self._is_attention:
            if is_attention:
                layers.append(self.attention_layer(attention, slot, num_tokens))
                attention += 1
            else:
                conv, state = self._conv[recurrent, slot], self._state[recurrent, slot]
                layers.append(RecurrentSlotLayer(conv, state, has_tokens=num_tokens > 0))
                recurrent += 1
        return Cache(layers=layers)


class RecurrentSlotLayer(LinearAttentionLayer):
    """One recurrent layer of one slot: the stock class, on the slot's memory.

    The stock methods copy into ``conv_states`` and ``recurrent_states`` in place, so that the slot
    is what they update. Without tokens the slot's old content is never looked at.
    """

    def __init__(self, conv: Tensor, state: Tensor, *, has_tokens: bool) -> None:
        super().__init__()
        self.conv_states[0] = conv.unsqueeze(0)
        self.recurrent_states[0] = state.unsqueeze(0)
        self.is_conv_states_initialized[0] = self.is_recurrent_states_initialized[0] = True
        self.has_previous_state[0] = has_tokens
        self.conv_kernel_size[0] = conv.shape[-1]

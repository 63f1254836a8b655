"""One decode step of Qwen3-MoE without the overhead of the stock module tree.

Owns the arithmetic of attention and norms for one new token a sequence, on the weights of the
stock modules; routers, experts and dense MLPs are called as they are. The stock model is the
oracle in the tests. Knows nothing of sampling or scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.engine.cpu_linear import Projection
from inference.engine.kv_cache import KVCache


class _DecodeLayer:
    """Weights of one layer, arranged for decoding."""

    def __init__(self, layer: Any, num_heads: int, num_kv_heads: int) -> None:
        attention = layer.self_attn
        self.qkv = Projection(attention.q_proj, attention.k_proj, attention.v_proj)
        # Queries carry the attention scale, so that scores need no extra multiplication.
        self.qk_norm = torch.cat(
            [
                (attention.q_norm.weight.float() * attention.scaling).expand(num_heads, -1),
                attention.k_norm.weight.float().expand(num_kv_heads, -1),
            ]
        )
        self.o_proj = Projection(attention.o_proj)
        self.input_norm = layer.input_layernorm.weight.float()
        self.post_norm = layer.post_attention_layernorm.weight.float()
        self.mlp = layer.mlp
        self.routes = hasattr(layer.mlp, "experts")


class Qwen3MoeDecode:
    """Decode steps for a loaded ``Qwen3MoeForCausalLM`` over a ``KVCache``."""

    def __init__(self, model: Any, kv_cache: KVCache) -> None:
        config = model.config
        self._eps = float(config.rms_norm_eps)
        self._eps_1x1 = torch.full((1, 1), self._eps)
        self._num_kv_heads = kv_cache.shape.num_kv_heads
        self._num_heads = int(config.num_attention_heads)
        self._head_dim = kv_cache.shape.head_dim
        self._kv_cache = kv_cache
        self._layers = [
            _DecodeLayer(layer, self._num_heads, self._num_kv_heads) for layer in model.model.layers
        ]
        self._embedding: Tensor = model.model.embed_tokens.weight
        self._head = Projection(model.lm_head)
        self._norm: Tensor = model.model.norm.weight.float()
        positions = torch.arange(kv_cache.max_model_len).unsqueeze(0)
        cos, sin = model.model.rotary_emb(torch.zeros(()), position_ids=positions)
        half = self._head_dim // 2
        sign = torch.cat([-torch.ones(half), torch.ones(half)]).to(sin.dtype)
        self._cos, self._sin = cos[0].unsqueeze(1), (sin[0] * sign).unsqueeze(1)

    @staticmethod
    def supports(config: Any) -> bool:
        """Whether this path computes what the stock classes would for ``config``."""
        rope_type = config.rope_parameters["rope_type"]
        return (
            config.model_type == "qwen3_moe"
            and config.sliding_window is None
            and rope_type in ("default", "linear", "yarn", "llama3")  # same at every length
        )

    def forward(self, token_ids: Seq[int], slots: Seq[int], positions: Seq[int]) -> Tensor:
        """Append one token a sequence and return logits [batch, vocab_size].

        ``positions[i]`` is the index of the new token in ``slots[i]``; tokens before it must lie
        in the slot. Keys and values of the new tokens are written there.
        """
        batch = len(token_ids)
        if batch == 1:
            position = positions[0]
            hidden = self._embedding[token_ids[0]].unsqueeze(0).float()
            cos, sin = self._cos[position : position + 1], self._sin[position : position + 1]
        else:
            index = torch.tensor(positions)
            hidden = self._embedding[torch.tensor(token_ids)].float()
            cos, sin = self._cos[index], self._sin[index]
        for number, layer in enumerate(self._layers):
            normed = self._rms_norm(hidden, layer.input_norm)
            attended = self._attention(number, layer, normed, (cos, sin), slots, positions)
            hidden = layer.o_proj.added_to(hidden, attended)
            normed = self._rms_norm(hidden, layer.post_norm)
            if layer.routes:
                _, topk_weights, topk_ids = layer.mlp.gate(normed)
                hidden = hidden + layer.mlp.experts(normed, topk_ids, topk_weights)
            else:
                hidden = hidden + layer.mlp(normed.to(self._embedding.dtype)).float()
        return self._head.product(self._rms_norm(hidden, self._norm))

    def _rms_norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """RMS norm of [batch, hidden_size]; one row takes half the time by a dot product."""
        width = hidden.shape[1]
        if hidden.shape[0] > 1:
            return F.rms_norm(hidden, (width,), weight, self._eps)
        mean_square = torch.addmm(self._eps_1x1, hidden, hidden.t(), alpha=1 / width)
        return (hidden * weight).mul_(mean_square.rsqrt_())

    def _attention(
        self,
        number: int,
        layer: _DecodeLayer,
        normed: Tensor,
        rotary: tuple[Tensor, Tensor],
        slots: Seq[int],
        positions: Seq[int],
    ) -> Tensor:
        """Attention output before ``o_proj``: [batch, num_heads * head_dim]."""
        batch, heads, kv_heads, dim = (
            normed.shape[0],
            self._num_heads,
            self._num_kv_heads,
            self._head_dim,
        )
        qkv = layer.qkv.product(normed)
        split = qkv.view(batch, heads + 2 * kv_heads, dim)
        qk = F.rms_norm(split[:, : heads + kv_heads], (dim,), None, self._eps) * layer.qk_norm
        qk = torch.addcmul(qk * rotary[0], qk.roll(dim // 2, -1), rotary[1])
        outputs = []
        all_keys, all_values = self._kv_cache.keys[number], self._kv_cache.values[number]
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            keys, values = all_keys[slot], all_values[slot]
            keys[:, :, position] = qk[row, heads:]
            values[:, position] = split[row, heads + kv_heads :]
            queries = qk[row, :heads].view(kv_heads, heads // kv_heads, dim)
            scores = torch.bmm(queries, keys[:, :, : position + 1])
            mixed = torch.bmm(torch.softmax(scores, -1), values[:, : position + 1])
            outputs.append(mixed.view(1, heads * dim))
        return outputs[0] if batch == 1 else torch.cat(outputs)

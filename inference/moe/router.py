"""Which experts a token goes to, computed in FP32 whatever the model's dtype.

Owns the routing arithmetic of Qwen3-MoE: softmax over *all* experts, then top-k, then division
by the sum of the k weights where the config says so. Has the call contract of transformers'
``Qwen3MoeTopKRouter``, whose place it takes. Knows nothing of slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Router(nn.Module):
    """Router of one layer; ``weight`` [num_experts, hidden_size] is kept in fp32."""

    def __init__(self, weight: Tensor, *, num_experts_per_tok: int, norm_topk_prob: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().to(torch.float32), requires_grad=False)
        self.num_experts_per_tok = num_experts_per_tok
        self.norm_topk_prob = norm_topk_prob

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Route ``hidden_states`` [num_tokens, hidden_size].

        Returns ``router_logits`` fp32 [num_tokens, num_experts], ``topk_weights`` in the dtype of
        the input [num_tokens, k] and ``topk_ids`` int64 [num_tokens, k].
        """
        router_logits = F.linear(hidden_states.to(torch.float32), self.weight)
        probabilities = torch.softmax(router_logits, dim=-1)
        topk_weights, topk_ids = torch.topk(probabilities, self.num_experts_per_tok, dim=-1)
        if self.norm_topk_prob:
            topk_weights = topk_weights / topk_weights.sum(dim=-1, keepdim=True)
        return router_logits, topk_weights.to(hidden_states.dtype), topk_ids

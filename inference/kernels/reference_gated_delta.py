"""What ``gdn_step`` computes, in torch; the tests compare the kernel with it.

Owns the reference only. Written in the order of the formulas, one row at a time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.kernels.gated_delta import RecurrentLayer


def l2_norm(x: Tensor) -> Tensor:
    """x / |x| over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gdn_step(
    projected: Tensor,
    *,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    eps: float,
    states: RecurrentLayer,
    state_slots: Tensor,
    positions: Tensor,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
) -> Tensor:
    """As the kernel of the same name; changes ``states``, returns the output."""
    out = torch.zeros(projected.shape[0], num_v_heads * head_v_dim)
    keys, values = num_k_heads * head_k_dim, num_v_heads * head_v_dim
    for row, position in enumerate(positions.tolist()):
        if position < 0:
            continue
        slot = int(state_slots[row])
        inputs, z, b, a = torch.split(
            projected[row], [2 * keys + values, values, num_v_heads, num_v_heads]
        )
        if position == 0:
            states.conv[slot] = 0.0
            states.recurrent[slot] = 0.0
        states.conv[slot, :, position % 4] = inputs
        newest_last = states.conv[slot].roll(-(position + 1) % 4, dims=1)
        mixed = F.silu((newest_last * conv_weight).sum(1))
        query, key, value = torch.split(mixed, [keys, keys, values])
        group = num_v_heads // num_k_heads
        query = l2_norm(query.view(num_k_heads, head_k_dim)).repeat_interleave(group, 0)
        key = l2_norm(key.view(num_k_heads, head_k_dim)).repeat_interleave(group, 0)
        query = query * head_k_dim**-0.5
        decay = torch.exp(-A_log.exp() * F.softplus(a + dt_bias))
        state = states.recurrent[slot] * decay[:, None, None]
        recalled = torch.einsum("hkv,hk->hv", state, key)
        delta = (value.view(num_v_heads, head_v_dim) - recalled) * torch.sigmoid(b)[:, None]
        state = state + key[:, :, None] * delta[:, None, :]
        states.recurrent[slot] = state
        output = torch.einsum("hkv,hk->hv", state, query)
        scale = torch.rsqrt(output.square().mean(-1, keepdim=True) + eps)
        gated = output * scale * norm * F.silu(z.view(num_v_heads, head_v_dim))
        out[row] = gated.reshape(-1)
    return out

"""Attention in two halves equals attention with masks; with the real kernel on a GPU."""

import pytest
import torch

from models.training import shared_prefix
from models.training.data import Layout
from models.training.shared_prefix import FastAttention, MaskedAttention

LAYOUT = Layout(48, ((3, 16), (2, 32)), 0, prefixes=2)
PREFIXES = torch.tensor([37, 48])


def scores(queries, keys, causal):
    found = torch.einsum("qhd,khd->hqk", queries, keys) * queries.shape[-1] ** -0.5
    if causal:
        found = found.masked_fill(torch.ones_like(found[0]).tril().logical_not(), -torch.inf)
    return found


def segments(query_ends, key_ends):
    for number in range(len(query_ends) - 1):
        yield slice(*query_ends[number : number + 2]), slice(*key_ends[number : number + 2])


def forward(queries, keys, values, query_ends, key_ends, *limits):
    """What the flash kernel computes, a segment at a time in plain arithmetic."""
    causal = limits[3]
    out, sums = torch.zeros_like(queries), torch.zeros(queries.shape[1], len(queries))
    for asked, known in segments(query_ends, key_ends):
        found = scores(queries[asked], keys[known], causal)
        sums[:, asked] = found.logsumexp(-1)
        out[asked] = torch.einsum("hqk,khd->qhd", found.softmax(-1), values[known])
    nothing = torch.zeros(0)
    return out, sums, nothing, nothing, nothing


def backward(gradient, queries, keys, values, out, sums, query_ends, key_ends, *limits):
    """Its backward pass, from the output and log-sum-exp it is given; garbage where it has none."""
    causal, scale = limits[3], queries.shape[-1] ** -0.5
    of_queries = torch.zeros_like(queries)
    of_keys, of_values = torch.full_like(keys, torch.nan), torch.full_like(values, torch.nan)
    for asked, known in segments(query_ends, key_ends):
        shares = (scores(queries[asked], keys[known], causal) - sums[:, asked, None]).exp()
        mean = (gradient[asked] * out[asked]).sum(-1).t()[..., None]
        slope = torch.einsum("qhd,khd->hqk", gradient[asked], values[known])
        slope = shares * (slope - mean) * scale
        of_queries[asked] = torch.einsum("hqk,khd->qhd", slope, keys[known])
        of_keys[known] = torch.einsum("hqk,qhd->khd", slope, queries[asked])
        of_values[known] = torch.einsum("hqk,qhd->khd", shares, gradient[asked])
    return of_queries, of_keys, of_values


def test_two_halves_equal_masks(monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", backward)
    torch.manual_seed(0)
    start = torch.randn(3, LAYOUT.tokens, 2, 8)
    weights = torch.randn(start.shape[1:])
    weights[PREFIXES[0] : LAYOUT.prefix] = 0
    found = []
    for kind in (MaskedAttention, FastAttention):
        given = start.clone().requires_grad_()
        out = kind(PREFIXES, LAYOUT)(*given)
        (out * weights).sum().backward()
        found.append((out * (weights != 0), given.grad))
    for masks, halves in zip(*found, strict=True):
        torch.testing.assert_close(halves, masks, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
def test_the_flash_kernel_agrees_with_masks():
    assert shared_prefix.works(torch.device("cuda"), 4, 64) == ""

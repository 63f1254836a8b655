"""Which experts a token goes to, computed in FP32 whatever the model's dtype.

Owns the routing arithmetic of both architectures: softmax over *all* experts, then top-k, then
division by the sum of the k weights where the config says so; and two options, off by default,
that change the logits before it. Has the call contract of transformers' ``Qwen3MoeTopKRouter``,
whose place it takes. Knows nothing of expert slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class RouterOptions:
    """``gumbel_temperature`` t adds t times Gumbel noise to the logits: experts are then drawn
    instead of taken, the likeliest more often.

    ``fatigue_penalty``: when the k experts of a sequence in a layer were the same in
    ``fatigue_repeats`` decode steps in a row, their logits are this much lower in the next.
    """

    gumbel_temperature: float = 0.0
    fatigue_penalty: float = 0.0
    fatigue_repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gumbel_temperature < 0 or self.fatigue_penalty < 0 or self.fatigue_repeats < 1:
            raise ValueError(f"impossible router options: {self}")

    @property
    def active(self) -> bool:
        """Whether any option changes anything."""
        return self.gumbel_temperature > 0 or self.fatigue_penalty > 0


@dataclass
class RoutedTokens:
    """Whose tokens the rows of the running step are; one object for all routers of a model.

    ``positions[i]`` is the place of row i in its sequence. ``slots`` is ``None`` during prefill:
    fatigue counts decode steps only.
    """

    positions: Seq[int] = ()
    slots: Seq[int] | None = None


@dataclass
class _Run:
    """How often a sequence in ``slot`` used ``expert_ids`` in a row up to ``position``."""

    position: int
    expert_ids: list[int]
    length: int


@dataclass
class _Changes:
    options: RouterOptions
    layer: int
    tokens: RoutedTokens
    runs: dict[int, _Run] = field(default_factory=dict)


class Router(nn.Module):
    """Router of one layer; ``weight`` [num_experts, hidden_size] is kept in fp32."""

    def __init__(self, weight: Tensor, *, num_experts_per_tok: int, norm_topk_prob: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().to(torch.float32), requires_grad=False)
        self.num_experts_per_tok = num_experts_per_tok
        self.norm_topk_prob = norm_topk_prob
        self._changes: _Changes | None = None

    def configure(self, options: RouterOptions, *, layer: int, tokens: RoutedTokens) -> None:
        """Switch ``options`` on; inactive ones leave every bit of the results as it was."""
        self._changes = _Changes(options, layer, tokens) if options.active else None

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Route ``hidden_states`` [num_tokens, hidden_size].

        Returns ``router_logits`` fp32 [num_tokens, num_experts], ``topk_weights`` in the dtype of
        the input [num_tokens, k] and ``topk_ids`` int64 [num_tokens, k]. Options change weights
        and ids, not ``router_logits``.
        """
        router_logits = F.linear(hidden_states.to(torch.float32), self.weight)
        scores = router_logits
        if self._changes is not None:
            scores = _changed(router_logits, self._changes)
        probabilities = torch.softmax(scores, dim=-1)
        topk_weights, topk_ids = torch.topk(probabilities, self.num_experts_per_tok, dim=-1)
        if self.norm_topk_prob:
            topk_weights = topk_weights / topk_weights.sum(dim=-1, keepdim=True)
        if self._changes is not None:
            _note(topk_ids, self._changes)
        return router_logits, topk_weights.to(hidden_states.dtype), topk_ids


def configure_routers(
    routers: Iterable[tuple[int, Router]], options: RouterOptions
) -> RoutedTokens:
    """Configure the routers of a model, given with their layers.

    Returns the object in which the caller says, before each step, what its rows are.
    """
    tokens = RoutedTokens()
    for layer, router in routers:
        router.configure(options, layer=layer, tokens=tokens)
    return tokens


def _changed(router_logits: Tensor, changes: _Changes) -> Tensor:
    options, tokens = changes.options, changes.tokens
    assert len(tokens.positions) == router_logits.shape[0]
    scores = router_logits.clone()
    if options.gumbel_temperature > 0:
        noise = gumbel_noise(
            options.seed, changes.layer, tokens.positions, num_experts=router_logits.shape[1]
        )
        scores += options.gumbel_temperature * noise.to(scores.device)
    if options.fatigue_penalty > 0 and tokens.slots is not None:
        for row, (slot, position) in enumerate(zip(tokens.slots, tokens.positions, strict=True)):
            run = changes.runs.get(slot)
            # A sequence that does not go on where the run ends is another one.
            if run is not None and run.position + 1 == position:
                if run.length >= options.fatigue_repeats:
                    scores[row, run.expert_ids] -= options.fatigue_penalty
            else:
                changes.runs.pop(slot, None)
    return scores


def _note(topk_ids: Tensor, changes: _Changes) -> None:
    slots, positions = changes.tokens.slots, changes.tokens.positions
    if slots is None or not changes.options.fatigue_penalty:
        return
    rows = topk_ids.sort(dim=-1).values.tolist()
    for slot, position, expert_ids in zip(slots, positions, rows, strict=True):
        run = changes.runs.get(slot)
        repeated = run is not None and run.expert_ids == expert_ids
        length = run.length + 1 if run is not None and repeated else 1
        changes.runs[slot] = _Run(position, expert_ids, length)


def gumbel_noise(seed: int, layer: int, positions: Seq[int], *, num_experts: int) -> Tensor:
    """Standard Gumbel noise fp32 [len(positions), num_experts].

    A value depends on its arguments only, never on what was drawn before: a token gets the same
    noise alone and in a batch, at once and in chunks.
    """
    rows = torch.tensor(list(positions), dtype=torch.int64).unsqueeze(1)
    experts = torch.arange(num_experts, dtype=torch.int64).unsqueeze(0)
    start = torch.tensor(seed & _MASK, dtype=torch.int64)
    hashed = _mixed(_mixed(_mixed(start, torch.tensor(layer)), rows), experts)
    uniform = ((hashed >> 9).to(torch.float64) + 0.5) / 2.0**23
    return -(-uniform.log()).log().to(torch.float32)


def _mixed(hashed: Tensor, value: Tensor) -> Tensor:
    """Murmur3's finaliser over 32-bit values held in int64."""
    hashed = hashed ^ ((value * 0x9E3779B9 + 0x7F4A7C15) & _MASK)
    hashed = hashed ^ (hashed >> 16)
    hashed = (hashed * 0x85EBCA6B) & _MASK
    hashed = hashed ^ (hashed >> 13)
    hashed = (hashed * 0xC2B2AE35) & _MASK
    return hashed ^ (hashed >> 16)

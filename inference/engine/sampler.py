"""Choosing the next token of one sequence from its logits.

Owns penalties, temperature, top-k, top-p, min-p (in transformers' order) and the random
numbers. Greedy decoding is exact: penalties, then argmax. Knows nothing of masks or batches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from inference.config import ResolvedSampling
from inference.engine.logits import Candidates, Logits

_SHORT_LIST = 256


class Sampler:
    """Sampling state of one sequence; the same seed gives the same choices."""

    def __init__(self, sampling: ResolvedSampling, prompt_ids: Sequence[int]) -> None:
        self._sampling = sampling
        self._random = random.Random(sampling.seed)
        self._seen = set(prompt_ids) if sampling.repetition_penalty != 1.0 else set()
        self._generated: set[int] = set()

    def choose(self, logits: Logits) -> int:
        """Choose a token; the whole row is read only when the candidates cannot decide."""
        listed = logits.candidates
        best = None if listed is None else self._best(listed)
        if best is None:
            return self.sample(logits.row())
        values, ids = best
        if self._sampling.temperature == 0:
            return self._note(int(ids[0]))
        return self._draw(values / self._sampling.temperature, ids)

    def sample(self, logits: Tensor) -> int:
        """Choose a token from ``logits`` fp32 [vocab_size], which may be modified."""
        self._penalise(logits)
        if self._sampling.temperature == 0:
            return self._note(int(logits.argmax()))
        return self._draw(*self._candidates(logits / self._sampling.temperature))

    def _draw(self, values: Tensor, ids: Tensor) -> int:
        """Draw from ``values``, scaled logits in falling order, after top-p and min-p."""
        sampling = self._sampling
        probabilities = torch.softmax(values, dim=-1)
        keep = torch.ones_like(probabilities, dtype=torch.bool)
        if sampling.top_p < 1.0:
            keep &= probabilities.cumsum(-1) - probabilities < sampling.top_p
            probabilities = torch.where(keep, probabilities, 0.0)
            probabilities = probabilities / probabilities.sum()
        if sampling.min_p > 0.0:
            keep &= probabilities >= sampling.min_p * probabilities[0]
            probabilities = torch.where(keep, probabilities, 0.0)
        cumulative = probabilities.cumsum(-1)
        point = self._random.random() * float(cumulative[-1])
        choice = int(torch.searchsorted(cumulative, point, right=True))
        last = int(keep.nonzero()[-1])
        return self._note(int(ids[min(choice, last)]))

    def _best(self, listed: Candidates) -> tuple[Tensor, Tensor] | None:
        """The top-k (greedy: top-1) after penalties, or ``None`` when the list cannot tell.

        Entries outside the list are at most its last value, and penalties that only lower
        scores keep it so: what stays above that value after penalties is exact.
        """
        sampling, values, ids = self._sampling, listed.values, listed.ids
        needed = 1 if sampling.temperature == 0 else sampling.top_k
        if not 0 < needed <= values.shape[0]:
            return None
        if not self._has_penalties():
            return values[:needed], ids[:needed]
        if sampling.repetition_penalty < 1.0 or sampling.presence_penalty < 0.0:
            return None
        floor = float(values[-1])
        values = values.clone()
        self._penalise(values, ids.tolist())
        values, order = torch.sort(values, descending=True, stable=True)
        ids = ids[order]
        if float(values[needed - 1]) <= floor > -torch.inf:
            return None
        if sampling.temperature == 0:  # the lowest id among equals, as argmax has it
            return values[:1], ids[values == values[0]].min().reshape(1)
        return values[:needed], ids[:needed]

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits in falling order with their ids, cut to top-k.

        Without top-k, a short list is enough when it already holds ``top_p`` of the mass.
        """
        sampling, size = self._sampling, logits.shape[0]
        if 0 < sampling.top_k < size:
            return torch.topk(logits, sampling.top_k)
        if sampling.top_p < 1.0 and size > _SHORT_LIST:
            values, ids = torch.topk(logits, _SHORT_LIST)
            mass = torch.exp(torch.logsumexp(values, 0) - torch.logsumexp(logits, 0))
            if float(mass) >= sampling.top_p:
                rest = torch.log1p(-mass.clamp(max=1 - 1e-7)) + torch.logsumexp(logits, 0)
                # One more entry carries the mass of the tail; top-p always cuts it off.
                return torch.cat([values, rest.reshape(1)]), torch.cat([ids, ids[-1:]])
        return torch.sort(logits, descending=True)

    def _has_penalties(self) -> bool:
        """Whether any penalty applies by now."""
        sampling = self._sampling
        return bool(
            (sampling.repetition_penalty != 1.0 and self._seen)
            or (sampling.presence_penalty != 0.0 and self._generated)
        )

    def _penalise(self, logits: Tensor, token_ids: Sequence[int] | None = None) -> None:
        """Apply penalties in place; ``token_ids`` names the entries, ``None``: entry = id."""
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0 and self._seen:
            index = _places(self._seen, token_ids)
            seen = logits[index]
            logits[index] = torch.where(
                seen < 0, seen * sampling.repetition_penalty, seen / sampling.repetition_penalty
            )
        if sampling.presence_penalty != 0.0 and self._generated:
            logits[_places(self._generated, token_ids)] -= sampling.presence_penalty

    def _note(self, token_id: int) -> int:
        self.note(token_id)
        return token_id

    def note(self, token_id: int) -> None:
        """Count a token as generated (also one that was forced)."""
        self._generated.add(token_id)
        if self._sampling.repetition_penalty != 1.0:
            self._seen.add(token_id)


def _places(wanted: set[int], token_ids: Sequence[int] | None) -> Tensor:
    """Where the ``wanted`` tokens lie among ``token_ids``."""
    if token_ids is None:
        return torch.tensor(list(wanted), dtype=torch.int64)
    places = [place for place, token_id in enumerate(token_ids) if token_id in wanted]
    return torch.tensor(places, dtype=torch.int64)

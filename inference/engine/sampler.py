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

_SHORT_LIST = 256


class Sampler:
    """Sampling state of one sequence; the same seed gives the same choices."""

    def __init__(self, sampling: ResolvedSampling, prompt_ids: Sequence[int]) -> None:
        self._sampling = sampling
        self._random = random.Random(sampling.seed)
        self._seen = set(prompt_ids) if sampling.repetition_penalty != 1.0 else set()
        self._generated: set[int] = set()

    def sample(self, logits: Tensor) -> int:
        """Choose a token from ``logits`` fp32 [vocab_size], which may be modified."""
        sampling = self._sampling
        self._penalise(logits)
        if sampling.temperature == 0:
            return self._note(int(logits.argmax()))
        values, ids = self._candidates(logits / sampling.temperature)
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

    def _penalise(self, logits: Tensor) -> None:
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0 and self._seen:
            ids = torch.tensor(list(self._seen))
            seen = logits[ids]
            logits[ids] = torch.where(
                seen < 0, seen * sampling.repetition_penalty, seen / sampling.repetition_penalty
            )
        if sampling.presence_penalty != 0.0 and self._generated:
            logits[torch.tensor(list(self._generated))] -= sampling.presence_penalty

    def _note(self, token_id: int) -> int:
        self.note(token_id)
        return token_id

    def note(self, token_id: int) -> None:
        """Count a token as generated (also one that was forced)."""
        self._generated.add(token_id)
        if self._sampling.repetition_penalty != 1.0:
            self._seen.add(token_id)

"""Choosing from the best 64 must be choosing from all, for every setting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.engine.logits import Candidates, DenseLogits, DeviceLogits
from inference.engine.sampler import Sampler
from tests.inference.engine.test_sampler import sampling

VOCAB = 500


def device_logits(row: torch.Tensor) -> DeviceLogits:
    """What the kernels return: sorted by (-value, id)."""
    values, ids = torch.sort(row, descending=True, stable=True)
    return DeviceLogits(Candidates(ids[:64].to(torch.int32), values[:64]), row)


class CountingLogits(DeviceLogits):
    """Counts how often the whole row was asked for."""

    rows = 0

    def row(self) -> torch.Tensor:
        self.rows += 1
        return super().row()


def counting(row: torch.Tensor) -> CountingLogits:
    made = device_logits(row)
    assert made.candidates is not None
    return CountingLogits(made.candidates, row)


def random_row(seed: int, spread: float = 3.0) -> torch.Tensor:
    return spread * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.7},
        {"temperature": 0.0, "presence_penalty": -2.0},
        {"temperature": 0.0, "repetition_penalty": 0.7},
        {"top_k": 20, "top_p": 0.95, "temperature": 0.6},
        {"top_k": 20, "presence_penalty": 1.5},
        {"top_k": 64, "repetition_penalty": 1.2},
        {"top_k": 100},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {},
    ],
)
@pytest.mark.parametrize("spread", [3.0, 0.1])
def test_candidates_choose_what_the_row_chooses(changes: dict[str, Any], spread: float) -> None:
    prompt = list(range(40))
    by_list, by_row = Sampler(sampling(**changes), prompt), Sampler(sampling(**changes), prompt)
    for step in range(60):
        row = random_row(step, spread)
        assert by_list.choose(device_logits(row)) == by_row.sample(row.clone())


def test_ties_go_to_the_lowest_id() -> None:
    row = torch.zeros(VOCAB)
    row[[400, 30, 77]] = 2.0
    assert Sampler(sampling(temperature=0.0), []).choose(device_logits(row)) == 30
    sampler = Sampler(sampling(temperature=0.0, presence_penalty=1.0), [])
    assert [sampler.choose(device_logits(row)) for _ in range(4)] == [30, 77, 400, 30]


def test_the_row_is_read_only_when_the_list_cannot_tell() -> None:
    wide, flat = counting(random_row(1)), counting(torch.zeros(VOCAB))
    Sampler(sampling(temperature=0.0), []).choose(wide)
    Sampler(sampling(top_k=20), []).choose(wide)
    Sampler(sampling(temperature=0.0, repetition_penalty=1.1), [3]).choose(wide)
    assert wide.rows == 0
    Sampler(sampling(top_p=0.9), []).choose(wide)
    assert wide.rows == 1
    Sampler(sampling(temperature=0.0, repetition_penalty=1.1), [3]).choose(flat)
    assert flat.rows == 1


def test_few_allowed_tokens_and_penalties_need_no_row() -> None:
    row = torch.full((VOCAB,), -torch.inf)
    row[[7, 250]] = torch.tensor([1.0, 0.5])
    logits = counting(row)
    sampler = Sampler(sampling(top_k=20, presence_penalty=1.5, top_p=0.9), [])
    assert {sampler.choose(logits) for _ in range(50)} <= {7, 250}
    assert logits.rows == 0


def test_reading_a_row_leaves_the_device_copy_alone() -> None:
    row = random_row(2)
    device_logits(row).row().zero_()
    assert torch.equal(row, random_row(2))


def test_dense_logits_apply_the_mask_once_the_row_is_read() -> None:
    class NoSevens:
        def apply(self, logits: torch.Tensor) -> None:
            logits[7] = -torch.inf

        def packed(self, vocab_size: int) -> torch.Tensor:
            raise NotImplementedError

        def accept(self, token_id: int) -> None:
            raise NotImplementedError

    row = torch.zeros(VOCAB)
    row[7] = 5.0
    logits = DenseLogits(row, NoSevens())
    assert logits.candidates is None
    assert Sampler(sampling(temperature=0.0), []).choose(logits) == 0

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.checkpoint.loader import load_model
from inference.engine.model_runner import ModelRunner
from inference.moe.router import RoutedTokens, Router, RouterOptions, gumbel_noise


def router_of(weight: torch.Tensor, k: int = 1) -> Router:
    return Router(weight, num_experts_per_tok=k, norm_topk_prob=True)


def ids_of(router: Router, hidden: torch.Tensor) -> list[list[int]]:
    return router(hidden)[2].sort(-1).values.tolist()


def test_the_softmax_is_over_all_experts_and_the_weights_sum_to_one() -> None:
    torch.manual_seed(0)
    weight, hidden = torch.randn(8, 16), torch.randn(5, 16, dtype=torch.float16)
    logits, weights, ids = router_of(weight, 3)(hidden)
    assert logits.dtype is torch.float32
    assert weights.dtype is torch.float16
    expected = torch.softmax(hidden.float() @ weight.t(), -1).topk(3)
    assert torch.equal(ids, expected.indices)
    assert torch.allclose(
        weights.float(), expected.values / expected.values.sum(-1, keepdim=True), atol=1e-3
    )


def test_noise_has_the_gumbel_distribution_and_depends_on_its_arguments_only() -> None:
    noise = gumbel_noise(3, 1, range(500), num_experts=256)
    assert abs(float(noise.mean()) - 0.5772) < 0.02
    assert abs(float(noise.var()) - 1.6449) < 0.05
    rows = torch.corrcoef(noise[:64])
    assert float((rows - torch.eye(64)).abs().max()) < 0.35
    assert torch.equal(gumbel_noise(3, 1, [77, 5], num_experts=256), noise[[77, 5]])
    for seed, layer in ((4, 1), (3, 2)):
        assert not torch.equal(gumbel_noise(seed, layer, [7], num_experts=256)[0], noise[7])


def test_noise_draws_experts_by_their_probability() -> None:
    """The Gumbel-max trick: at temperature 1 an expert is chosen as often as softmax says."""
    weight = torch.tensor([[2.0], [1.0], [0.0], [-1.0]])
    router = router_of(weight)
    tokens = RoutedTokens(positions=range(20_000))
    router.configure(RouterOptions(gumbel_temperature=1.0, seed=9), layer=0, tokens=tokens)
    _, _, ids = router(torch.ones(20_000, 1))
    shares = torch.bincount(ids[:, 0], minlength=4) / 20_000
    assert torch.allclose(shares, torch.softmax(weight[:, 0], 0), atol=0.015)
    router.configure(RouterOptions(gumbel_temperature=0.1, seed=9), layer=0, tokens=tokens)
    assert float((router(torch.ones(20_000, 1))[2] == 0).float().mean()) > 0.99


def decode_ids(
    router: Router, tokens: RoutedTokens, position: int, slots: tuple[int, ...] = (0,)
) -> list[list[int]]:
    tokens.positions, tokens.slots = [position] * len(slots), slots
    return ids_of(router, torch.ones(len(slots), 1))


def tiring_router(penalty: float = 3.0) -> tuple[Router, RoutedTokens]:
    router = router_of(torch.tensor([[4.0], [3.0], [2.0], [1.0]]), 2)
    tokens = RoutedTokens()
    router.configure(RouterOptions(fatigue_penalty=penalty), layer=0, tokens=tokens)
    return router, tokens


def test_a_combination_used_five_times_in_a_row_is_passed_over_once() -> None:
    router, tokens = tiring_router()
    seen = [decode_ids(router, tokens, position)[0] for position in range(12)]
    assert seen == [[0, 1]] * 5 + [[2, 3]] + [[0, 1]] * 5 + [[2, 3]]


def test_a_small_penalty_lets_the_combination_stay() -> None:
    router, tokens = tiring_router(0.5)
    assert [decode_ids(router, tokens, position)[0] for position in range(8)] == [[0, 1]] * 8


def test_fatigue_is_counted_by_sequence() -> None:
    router, tokens = tiring_router()
    for position in range(3):
        decode_ids(router, tokens, position, (0,))
    for position in range(3, 5):
        assert decode_ids(router, tokens, position, (1, 0)) == [[0, 1]] * 2
    assert decode_ids(router, tokens, 5, (1, 0)) == [[0, 1], [2, 3]]
    # Another sequence took slot 1: it starts elsewhere, so nothing is held against it.
    for position in (100, 101, 102):
        assert decode_ids(router, tokens, position, (1,)) == [[0, 1]]


def test_prefill_knows_no_fatigue() -> None:
    router, tokens = tiring_router()
    tokens.positions, tokens.slots = range(20), None
    assert ids_of(router, torch.ones(20, 1)) == [[0, 1]] * 20


@pytest.mark.parametrize("name", ["gumbel_temperature", "fatigue_penalty"])
def test_impossible_options_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="impossible router options"):
        RouterOptions(**{name: -1.0})


def run(folder: Path, options: RouterOptions, *, chunk: int = 40) -> torch.Tensor:
    runner = ModelRunner(
        load_model(folder), max_num_seqs=2, max_model_len=128, router_options=options
    )
    prompt = [index * 7 % 640 for index in range(40)]
    for start in range(0, 40, chunk):
        logits = runner.prefill(prompt[start : start + chunk], 0, start)
    rows = [logits]
    for step in range(16):
        rows.append(runner.decode([5], [0], [40 + step])[0])
    return torch.stack(rows)


@pytest.mark.parametrize("fixture", ["tiny_model_dir", "tiny_hybrid_dir"])
def test_options_that_are_off_change_no_bit_and_those_that_are_on_do(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(fixture)
    plain = ModelRunner(load_model(folder), max_num_seqs=2, max_model_len=128)
    off = run(folder, RouterOptions(seed=7))
    prompt = [index * 7 % 640 for index in range(40)]
    rows = [plain.prefill(prompt, 0, 0)]
    rows += [plain.decode([5], [0], [40 + step])[0] for step in range(16)]
    assert torch.equal(off, torch.stack(rows))
    noisy = run(folder, RouterOptions(gumbel_temperature=0.5, seed=7))
    assert not torch.allclose(noisy[0], off[0], atol=1e-2)
    assert torch.equal(noisy, run(folder, RouterOptions(gumbel_temperature=0.5, seed=7)))
    assert not torch.equal(noisy, run(folder, RouterOptions(gumbel_temperature=0.5, seed=8)))
    chunked = run(folder, RouterOptions(gumbel_temperature=0.5, seed=7), chunk=15)
    assert torch.allclose(noisy, chunked, atol=2e-3)
    tired = run(folder, RouterOptions(fatigue_penalty=4.0, fatigue_repeats=1))
    assert torch.equal(tired[:2], off[:2])  # the prompt, and a first step that has no past
    assert not torch.allclose(tired[2:], off[2:], atol=1e-2)

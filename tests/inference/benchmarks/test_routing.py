from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.benchmarks.routing import (
    RoutedShape,
    Routing,
    calibrate,
    generate,
    predictions,
    simulate,
)

SHAPE = RoutedShape(num_layers=6, num_experts=64, num_experts_per_tok=4)


def test_tables_repeat_with_their_seed_and_hold_distinct_experts() -> None:
    routing = Routing(own=False, skew=0.8, reuse=0.3, seed=5)
    shape = RoutedShape(3, 16, 4, batch=2)
    table = generate(routing, shape, 50)
    assert table.shape == (50, 3, 8)
    assert np.array_equal(table, generate(routing, shape, 50))
    other = Routing(own=False, skew=0.8, reuse=0.3, seed=6)
    assert not np.array_equal(table, generate(other, shape, 50))
    rows = table.reshape(50, 3, 2, 4)
    assert all(len(set(row)) == 4 for row in rows.reshape(-1, 4))
    assert table.min() >= 0
    assert table.max() < 16


def repeated(skew: float, reuse: float) -> float:
    """Share of experts that the token before used too."""
    routing = Routing(own=False, skew=skew, reuse=reuse, seed=1)
    table = generate(routing, SHAPE, 400)
    pairs = [
        len(set(now) & set(before)) / 4
        for after, step in zip(table[1:], table[:-1], strict=True)
        for now, before in zip(after, step, strict=True)
    ]
    return float(np.mean(pairs))


def test_reuse_is_the_chance_of_a_repeated_expert() -> None:
    chance = 4 / 64
    for reuse in (0.0, 0.4, 1.0):
        wanted = reuse + (1 - reuse) * chance
        assert repeated(0.0, reuse) == pytest.approx(wanted, abs=0.03)


def test_skew_makes_few_experts_popular() -> None:
    shares = []
    for skew in (0.0, 1.0):
        table = generate(Routing(own=False, skew=skew, seed=2), SHAPE, 400)
        counts = np.sort(np.bincount(table[:, 0].ravel(), minlength=64))[::-1]
        shares.append(counts[:8].sum() / counts.sum())
    assert shares[0] < 0.2
    assert shares[1] > 0.4


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.85, 1.0])
def test_predictions_are_as_accurate_as_asked(accuracy: float) -> None:
    routing = Routing(own=False, skew=0.5, seed=9, accuracy=accuracy)
    shape = RoutedShape(4, 64, 4, batch=2)
    table = generate(routing, shape, 300)
    guesses = predictions(routing, shape, table)
    assert guesses.shape == table.shape
    pairs = zip(table.reshape(-1, 4).tolist(), guesses.reshape(-1, 4).tolist(), strict=True)
    shares = [len(set(used) & set(named)) / 4 for used, named in pairs]
    assert float(np.mean(shares)) == pytest.approx(accuracy, abs=0.02)
    assert all(len(set(named)) == 4 for named in guesses.reshape(-1, 4).tolist())


def reference(table: np.ndarray, slots: int, decay: float) -> tuple[int, int]:
    """One layer's hits and misses, written as plainly as the rule is stated."""
    frequency: dict[int, float] = {}
    resident: OrderedDict[int, None] = OrderedDict()
    hits = misses = 0
    for step in table[:, 0]:
        used = sorted(set(step.tolist()))
        missed = [expert for expert in used if expert not in resident]
        hits += len(used) - len(missed)
        misses += len(missed)
        for expert in frequency:
            frequency[expert] *= decay
        for expert in used:
            frequency[expert] = frequency.get(expert, 0.0) + 1.0
        for expert in missed:
            if len(resident) >= slots:
                candidates = [each for each in resident if each not in used]
                if not candidates:
                    continue
                del resident[min(candidates, key=lambda each: (frequency[each], each))]
            resident[expert] = None
    return hits, misses


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    slots=st.integers(2, 12),
    batch=st.integers(1, 4),
    reuse=st.floats(0, 1),
    decay=st.sampled_from([0.5, 0.9, 1.0]),
)
def test_the_simulated_cache_follows_the_rule(
    seed: int, slots: int, batch: int, reuse: float, decay: float
) -> None:
    shape = RoutedShape(1, 12, 2, batch)
    table = generate(Routing(own=False, skew=0.5, reuse=reuse, seed=seed), shape, 40)
    run = simulate(table, [slots], 12, decay=decay)
    assert (run.hits, run.misses) == reference(table, slots, decay)


def test_all_resident_misses_each_expert_once() -> None:
    table = generate(Routing(own=False, seed=3), SHAPE, 200)
    run = simulate(table, [64] * 6, 64, decay=0.9)
    assert run.misses == sum(len(np.unique(table[:, layer])) for layer in range(6))
    assert simulate(table, [64] * 6, 64, decay=0.9, warm_up=150).misses == 0


@pytest.mark.parametrize(("slots", "wanted"), [(12, 0.5), (12, 0.75), (24, 0.75)])
def test_calibration_reaches_the_wanted_hit_rate(slots: int, wanted: float) -> None:
    routing = Routing(own=False, skew=0.6, seed=4, wanted_hit_rate=wanted)
    found = calibrate(routing, SHAPE, [slots] * 6, decay=0.9)
    fresh = generate(found, SHAPE, 1000)
    rate = simulate(fresh, [slots] * 6, 64, decay=0.9, warm_up=200).hit_rate
    assert rate == pytest.approx(wanted, abs=0.02)


def test_calibration_lowers_the_skew_when_popularity_alone_hits_more() -> None:
    routing = Routing(own=False, skew=2.0, seed=4, wanted_hit_rate=0.5)
    found = calibrate(routing, SHAPE, [16] * 6, decay=0.9)
    assert found.reuse == 0.0
    assert found.skew < 2.0


def test_a_hit_rate_below_any_routing_is_refused() -> None:
    routing = Routing(own=False, skew=0.6, wanted_hit_rate=0.3)
    with pytest.raises(ValueError, match="lower gpu_memory_limit"):
        calibrate(routing, SHAPE, [60] * 6, decay=0.9)


def test_routing_is_read_and_written() -> None:
    assert Routing.parse("own").own
    read = Routing.parse("generated:skew=0.6,reuse=0.25,seed=7")
    assert read == Routing(False, 0.6, 0.25, 7)
    assert Routing.parse(str(read)) == read
    assert Routing.parse("generated:skew=1,hit=0.75,accuracy=1").wanted_hit_rate == 0.75


@pytest.mark.parametrize(
    "text",
    [
        "zipf",
        "generated:skew",
        "generated:skew=1,skew=2",
        "generated:reuse=2",
        "generated:reuse=0.1,hit=0.5",
        "own:seed=1",
    ],
)
def test_what_is_no_routing_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"generated:|shares from 0 to 1"):
        Routing.parse(text)

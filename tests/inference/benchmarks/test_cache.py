from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.benchmarks.cache import print_report, run_cpu, run_generated, slot_counts
from inference.geometry import ModelGeometry

SMALL = ModelGeometry.from_config(
    {
        "model_type": "qwen3_moe",
        "vocab_size": 64,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
    },
    group_size=32,
)


def test_counts_reach_from_one_token_to_all_experts() -> None:
    counts = slot_counts(256, 8)
    assert counts[0] == 8
    assert counts[-1] == 256
    assert counts == sorted(set(counts))
    assert 10 <= len(counts) <= 13
    assert slot_counts(4, 4) == [4]


def test_more_slots_hit_more_often_and_reuse_helps(capsys: pytest.CaptureFixture[str]) -> None:
    routings = ("generated:skew=0.5", "generated:skew=0.5,reuse=0.6")
    report = run_generated(SMALL, "small", routings=routings, counts=[4, 8, 16, 32], steps=240)
    rates = [[row.hit_rates[text] for row in report.rows] for text in routings]
    for curve in rates:
        assert curve == sorted(curve)
        assert curve[-1] == pytest.approx(1.0, abs=0.001)
    assert all(more > less for less, more in zip(rates[0][:-1], rates[1][:-1], strict=True))
    print_report(report)
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert record["slots"] == [4, 8, 16, 32]
    assert set(record["hit_rates"]) == set(routings)


@pytest.mark.parametrize("count", [3, 33])
def test_impossible_slots_are_named(count: int) -> None:
    with pytest.raises(ValueError, match="from 4 to 32"):
        run_generated(SMALL, "small", counts=[count], steps=10)


def test_a_wanted_hit_rate_needs_a_model() -> None:
    with pytest.raises(ValueError, match="give skew and reuse"):
        run_generated(SMALL, "small", routings=["generated:skew=1,hit=0.5"], counts=[8], steps=10)


def test_the_cpu_engine_is_measured_at_each_count(tiny_model_dir: Path) -> None:
    report = run_cpu(tiny_model_dir, counts=[2, 8], new_tokens=8, prompt_tokens=60)
    few, all_of_them = (row.hit_rates["own"] for row in report.rows)
    assert 0 < few < all_of_them <= 1

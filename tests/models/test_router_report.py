"""The router report: its counts on hand-made traces, and a trace of the fixture model."""

from pathlib import Path

import pytest

from models.training import router_report, router_texts
from models.training.router_report import Trace

FIXTURE = Path(__file__).parents[2] / "models" / "fixture-moe"


def test_lru_misses_and_hit_rate():
    tokens = [(0, 1), (1, 2), (0, 2), (3, 2)]
    assert router_report.lru(tokens, 2) == [[0, 1], [2], [0], [3]]
    assert router_report.hit_rate(tokens, 2) == 3 / 8
    assert router_report.hit_rate(tokens, 4) == 4 / 8


def test_repeat_rate_and_entropy():
    assert router_report.repeat_rate([(0, 1), (1, 2), (1, 2)]) == 3 / 4
    assert router_report.entropy([0.25] * 4) == pytest.approx(1.0)
    assert router_report.entropy([1.0, 0.0]) == 0.0
    assert router_report.shares([[[(0, 1), (0, 2)]]], 0, 4) == [0.5, 0.25, 0.25, 0.0]


def test_foretelling_over_all_uses_and_over_misses():
    used = [[(0,), (0,)], [(1,), (1,)]]
    foretold = [[], [(1,), (2,)]]
    trace = Trace(used, foretold)
    assert router_report.foretelling([trace], None, [1]) == 0.5
    assert router_report.foretelling([trace], 2, [1]) == 1.0


@pytest.mark.parametrize("kind", router_texts.KINDS)
def test_there_is_enough_text_of_each_kind(kind):
    found = router_texts.texts(kind, 4, 300)
    assert [len(text) for text in found] == [300] * 4
    assert len(set(found)) == 4
    assert found == router_texts.texts(kind, 4, 300)


@pytest.mark.model
def test_a_trace_of_the_fixture_model():
    tracer = router_report.Tracer(FIXTURE)
    trace = tracer.trace("华东区今年销售额")
    tokens = len(tracer.tokenizer.encode("<|im_start|>user\n华东区今年销售额<|im_end|>\n"))
    assert len(trace.used) == len(tracer.loaded.store.layers)
    assert all(len(picks) == tokens for picks in trace.used)
    assert all(len(set(experts)) == tracer.k for picks in trace.used for experts in picks)
    figures = router_report.measure([trace], tracer.num_experts)
    assert 0.2 < figures["foretold"] <= 1.0
    rates = list(figures["lru"].values())
    assert rates == sorted(rates)

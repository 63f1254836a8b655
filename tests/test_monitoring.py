"""What the dashboard and the alerts name is what /metrics really has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import redis
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app import exposition
from app.metrics import METRICS, Metrics
from app.store.presence import Presence

DEPLOY = Path(__file__).parents[1] / "deploy"
NAME = re.compile(r"\bhutong_\w+")
LABEL = re.compile(r"(hutong_\w+)\{([^}]*)\}")


def expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))
    dashboard = json.loads((DEPLOY / "grafana/dashboards/hutong.json").read_text("utf-8"))
    return [
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
        *(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]),
    ]


@pytest.fixture
def offered(redis_client: redis.Redis) -> dict[str, set[str]]:
    """Sample names of a scrape with everything counted once, with their labels."""
    metrics = Metrics(redis_client)
    for metric in METRICS:
        labels = dict.fromkeys(metric.labels, "x")
        if metric.kind == "counter":
            metrics.count(metric.name, **labels)
        else:
            metrics.observe(metric.name, 1.0, **labels)
    metrics.flush()
    facts = dict.fromkeys(exposition.ENGINE_GAUGES, 1)
    with Presence(redis_client, "turns", lambda: facts):
        text = exposition.text(redis_client, "corp", "7").decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_name_is_offered(offered: dict[str, set[str]]) -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(named) > 15
    assert named - offered.keys() == set()


def test_every_label_is_offered(offered: dict[str, set[str]]) -> None:
    for expression in expressions():
        for name, selectors in LABEL.findall(expression):
            labels = set(re.findall(r"(\w+)\s*[=!]", selectors))
            assert labels <= offered[name], expression


def test_nothing_counted_is_shown_nowhere() -> None:
    shown = " ".join(expressions())
    assert [metric.name for metric in METRICS if metric.name not in shown] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's package prometheus")
def test_promtool_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(DEPLOY / "alerts.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 rules found" in done.stdout

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
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs Debian's package prometheus"
)


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


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    assert "11 rules found" in promtool("check", DEPLOY / "alerts.yml")


@needs_promtool
def test_a_forgotten_hold_is_alerted_after_a_quarter_of_an_hour(tmp_path: Path) -> None:
    def expected(minute: int, *alerts: dict[str, object]) -> dict[str, object]:
        return {
            "eval_time": f"{minute}m",
            "alertname": "HutongSendingHeld",
            "exp_alerts": list(alerts),
        }

    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    held = next(rule for rule in rules if rule["alert"] == "HutongSendingHeld")
    summary = held["annotations"]["summary"].replace("{{ $value | humanizeDuration }}", "16m 0s")
    fires: dict[str, object] = {
        "exp_labels": {"severity": "warn"},
        "exp_annotations": {"summary": summary},
    }
    held_from_0_to_20: dict[str, object] = {
        "series": "hutong_sending_held_seconds",
        "values": "0+60x20 0x10",
    }
    cases: dict[str, object] = {
        "rule_files": [str(DEPLOY / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [held_from_0_to_20],
                "alert_rule_test": [expected(15), expected(16, fires), expected(22)],
            }
        ],
    }
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump(cases, allow_unicode=True), "utf-8")
    promtool("test", file)


def promtool(action: str, file: Path) -> str:
    """What ``promtool`` says to ``file`` of rules; fails with it unless it is content."""
    done = subprocess.run(
        ["promtool", action, "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

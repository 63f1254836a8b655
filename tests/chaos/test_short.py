"""The short form of ``make chaos``: the same run, small enough for every test session."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.disturbance import PARTS, Intensity
from tests.chaos.run import Load, fake_texts, run

SHORT = Intensity(kills=2, stops=1, restarts=1, longest_stop_s=5.0)
USERS = 50
EACH = 10


def test_no_promise_is_broken_while_every_process_is_killed(tmp_path: Path) -> None:
    worker = ("-m", "tests.chaos.fake_model", str(tmp_path))
    report = run(Load(fake_texts(USERS, EACH), worker, SHORT), tmp_path)
    shown = json.dumps(report.last_line()), report.disturbed, *report.verdict.examples
    assert report.verdict.ok, shown
    assert report.messages == USERS * EACH
    assert report.kills >= 8, shown
    assert all(report.disturbed[f"kill {part}"] == 2 for part in PARTS), shown
    assert report.deliveries > report.messages, "messages were delivered more than once"
    assert report.verdict.unacknowledged < report.messages / 5, shown
    answered = report.messages - report.verdict.unacknowledged
    assert report.verdict.statuses["done"] > 0.9 * answered, shown

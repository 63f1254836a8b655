"""Every attempt of ``make escape`` once, with short limits: nothing gets out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.escape.attempts import ATTEMPTS
from tools.sandbox import support

ROOT = Path(__file__).parents[3]


def test_there_are_many_different_attempts() -> None:
    assert len({attempt.code for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 60
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS)


@pytest.mark.skipif(sys.platform != "linux", reason="the traps read /proc")
def test_nothing_escapes_and_the_workers_live() -> None:
    command = [sys.executable, "-m", "tests.escape", "--once"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["escapes"] == 0
    assert result["traps"][0] == result["traps"][1] > 20
    expected = {"monty"} if support.missing() else {"monty", "native"}
    assert set(result["backends"]) == expected
    for numbers in result["backends"].values():
        assert numbers["attempts"] == len(ATTEMPTS)
        assert numbers["workers_lost"] == 0
    if "native" in expected:
        assert "native: benign 17 of 17, LLM-style 50 of 50" in done.stdout

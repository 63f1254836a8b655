"""Runs ``python -m app demo`` as a user does, with the shipped model, and reads its transcript."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_LIMIT_S = 300.0
ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "app", "demo")


@dataclass(frozen=True)
class Transcript:
    """What ``--ask`` printed: the status, and each question's replies as one text."""

    status: int
    answers: dict[str, str]
    progress: str


def clean_environment(data_dir: Path) -> dict[str, str]:
    """The environment of a newcomer: none of our settings but the data folder."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WECOM_", "HUTONG_")) and name not in ("REDIS_URL", "ADMIN_TOKEN")
    }
    return kept | {"HUTONG_DATA_DIR": str(data_dir)}


def ask(data_dir: Path, *questions: str) -> Transcript:
    """``python -m app demo --ask …`` for all ``questions`` in one conversation."""
    arguments = [part for question in questions for part in ("--ask", question)]
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=clean_environment(data_dir),
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S + 150 * len(questions),
        cwd=ROOT,
    )
    parts = re.split(r"^王芳（销售部）：(.*)$", done.stdout, flags=re.MULTILINE)
    answers = dict(zip(parts[1::2], parts[2::2], strict=True))
    return Transcript(done.returncode, answers, done.stderr)


@contextmanager
def serving(data_dir: Path) -> Iterator[str]:
    """``python -m app demo``; yields the address it says to open, stops it with SIGTERM."""
    log = data_dir / "terminal.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            COMMAND,
            env=clean_environment(data_dir),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
    try:
        limit = time.monotonic() + START_LIMIT_S
        while not (found := re.search(r"打开 (http://[\d.:]+/)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)

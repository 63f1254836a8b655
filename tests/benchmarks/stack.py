"""A demo stack in a throwaway folder, as the benchmarks drive it."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.demo.console import Console
from app.demo.processes import Processes
from app.demo.stack import Plan, running
from app.settings import load

QUESTIONS = Path(__file__).parents[1] / "e2e" / "bench_questions.txt"


def questions() -> list[str]:
    """The 20 benchmark questions, in the order they are meant to be asked."""
    return [line for line in QUESTIONS.read_text(encoding="utf-8").splitlines() if line.strip()]


@contextmanager
def fresh_stack() -> Iterator[tuple[Plan, Processes]]:
    """Everything `make demo` runs, with an empty Redis of its own; stopped at the end."""
    data_dir = load(os.environ).data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir) as fresh,
        running(Console(), Path(fresh), f"wwbench{secrets.token_hex(4)}", "log/bench") as stack,
    ):
        yield stack

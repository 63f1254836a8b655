"""The monty back end: its memory bound, and which of its errors are gaps."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pydantic_monty
import pytest

from tools.base import ToolError
from tools.sandbox.base import Job, SandboxGapError, SandboxMemoryError
from tools.sandbox.monty import ADDRESS_SPACE_BYTES, MontyBackend, bounded_binary

linux = pytest.mark.skipif(sys.platform != "linux", reason="bounded on Linux only")


@pytest.fixture(scope="module")
def monty() -> Iterator[MontyBackend]:
    backend = MontyBackend()
    yield backend
    backend.close()


def run(backend: MontyBackend, code: str) -> str:
    outcome = backend.run(Job(code, {"tables": ()}, datetime.date(2024, 11, 15), 2.0))
    return outcome.printed + (outcome.value or "")


@pytest.mark.parametrize(
    "code",
    [
        "x = []\nwhile True: x.append('a' * 1000)",
        "'a' * 10**9",
        "[0] * 10**9",
        "bytes(10**9)",
        "t = (1,)\nwhile True: t = t + t",
    ],
)
def test_memory_bombs_are_refused(monty: MontyBackend, code: str) -> None:
    with pytest.raises(SandboxMemoryError, match="64 MB"):
        run(monty, code)
    assert run(monty, "1 + 1") == "2"


@linux
def test_workers_are_bounded_by_the_kernel_and_have_no_environment(monty: MontyBackend) -> None:
    run(monty, "1")
    tasks = Path("/proc/self/task").glob("*/children")
    children = {pid for task in tasks for pid in task.read_text().split()}
    workers = [pid for pid in children if _name(pid) == "monty"]
    assert workers
    for pid in workers:
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        line = next(line for line in limits if line.startswith("Max address space"))
        assert int(line.split()[3]) == ADDRESS_SPACE_BYTES


def _name(pid: str) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


@linux
def test_the_kernel_stops_a_bomb_even_without_montys_own_limit(tmp_path: Path) -> None:
    limits = pydantic_monty.ResourceLimits(max_feed_duration_secs=20.0)
    code = "x = []\nwhile True: x.append('a' * 10_000_000)"
    binary = bounded_binary(tmp_path)
    with (
        pydantic_monty.Monty(binary_path=binary, min_processes=1) as pool,
        pytest.raises(pydantic_monty.MontyError),
        pool.checkout(limits=limits) as session,
    ):
        session.feed_run(code)


@pytest.mark.parametrize(
    "code",
    [
        "import statistics",
        "import numpy as np",
        "import pandas.core",
        "def f():\n    yield 1",
        "class A(dict): pass",
        "x = 1\ndel x",
        "import datetime\ndatetime.date(2024, 1, 1).isocalendar()",
        "import re\nre.sub('a', lambda m: 'b', 'a')",
        "str.maketrans('a', 'b')",
        "vars()",
        "from heapq import nlargest",
    ],
)
def test_gaps(monty: MontyBackend, code: str) -> None:
    with pytest.raises(SandboxGapError, match="换一种写法"):
        run(monty, code)


@pytest.mark.parametrize(
    "code",
    [
        "import socket",
        "import os\nos.system('id')",
        "import requests",
        "import math\nmath.nope",
        "import datetime\ndatetime.sys",
        "import re\nre.enum.sys",
        "'a'.nope()",
        "(1).__class__.__base__.__subclasses__()",
        "open('/etc/passwd')",
        "unknown",
        "1 + 'a'",
        "1 / 0",
    ],
)
def test_mistakes_are_no_gaps(monty: MontyBackend, code: str) -> None:
    with pytest.raises(ToolError) as caught:
        run(monty, code)
    assert not isinstance(caught.value, SandboxGapError)

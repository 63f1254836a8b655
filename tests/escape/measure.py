"""Runs attempts and ordinary programs on a back end, and counts."""

from __future__ import annotations

import dataclasses
import datetime
import os
import resource
import statistics
import subprocess
import sys
import time

from tests.escape import traps
from tests.escape.attempts import ATTEMPTS, Attempt
from tests.escape.snippets import BENIGN, LLM, Snippet
from tools.base import Table, ToolContext, ToolError, ToolUnavailableError
from tools.python_exec import PythonTool
from tools.sandbox.base import Backend, Job

TODAY = datetime.date(2024, 11, 15)
SALES = Table(
    ("产品", "地区", "月份", "销售额", "数量"),
    (
        ("甲", "华东", "2024-07", 1200.5, 10),
        ("乙", "华东", "2024-08", 800.0, 8),
        ("丙", "华北", "2024-07", 1500.0, 12),
        ("甲", "华北", "2024-09", 950.25, 9),
        ("丁", "华南", "2024-08", None, 0),
    ),
)
_WARM_RUNS = 30
_ALIVE_TIME_S = 30.0
_MAX_WORKERS = 2


@dataclasses.dataclass
class Report:
    """The counts of one back end."""

    attempts: int = 0
    runs: int = 0
    escapes: int = 0
    workers_lost: int = 0
    cold_ms: float = 0.0
    warm_ms: float = 0.0
    rss_growth_mb: float = 0.0
    rss_peak_mb: float = 0.0

    @property
    def sound(self) -> bool:
        """No escape, the back end always answered, the asker's memory is flat."""
        return not self.escapes and not self.workers_lost and self.rss_growth_mb < 8

    def numbers(self) -> dict[str, float]:
        """For the JSON line."""
        return {
            name: round(value, 2) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(self).items()
        }


def controls(around: traps.Traps) -> tuple[int, int, list[str]]:
    """Run harmless attempts without any sandbox: (sprung, run, names of traps that did not)."""
    silent = []
    chosen = [attempt for attempt in ATTEMPTS if attempt.control]
    for attempt in chosen:
        around.arm()
        command = [sys.executable, "-W", "ignore", "-c", around.fill(attempt.code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if not around.sprung(done.stdout + done.stderr, frozenset()):
            silent.append(attempt.name)
    around.arm()
    return len(chosen) - len(silent), len(chosen), silent


def try_all(
    backend: Backend, around: traps.Traps, repeats: int, time_s: float, only: str | None
) -> Report:
    """Every attempt ``repeats`` times, with a check that the back end still works after each."""
    report = Report()
    chosen = [a for a in ATTEMPTS if only is None or a.name.startswith(only)]
    report.attempts = len(chosen)
    report.cold_ms = _latency_ms(backend)
    report.warm_ms = statistics.median(_latency_ms(backend) for _ in range(_WARM_RUNS))
    first_rss = traps.rss_bytes()
    for attempt in chosen:  # the first round fills caches of the asker
        _try(attempt, backend, around, time_s, report)
    start_rss = traps.rss_bytes()
    for _ in range(repeats - 1):
        for attempt in chosen:
            _try(attempt, backend, around, time_s, report)
    if repeats == 1:
        for attempt in [a for a in chosen if a.name.startswith("flood")]:
            _try(attempt, backend, around, time_s, report)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.rss_peak_mb = (peak_kb * 1024 - first_rss) / 1e6
    report.rss_growth_mb = (traps.rss_bytes() - start_rss) / 1e6
    return report


def _try(
    attempt: Attempt, backend: Backend, around: traps.Traps, time_s: float, report: Report
) -> None:
    # An earlier user's table goes through the same worker; its content must not be found.
    earlier = Table(("密",), ((around.in_memory,),))
    _said(backend, "len(tables)", time_s, earlier)
    around.arm()
    said = _said(backend, around.fill(attempt.code), time_s)
    alive = _said(backend, "1 + 1", _ALIVE_TIME_S) == "2"
    effects = around.sprung(said, _workers(backend))
    report.runs += 1
    report.escapes += bool(effects)
    report.workers_lost += not alive
    if effects or not alive:
        print(f"  {backend.name} {attempt.name}: {effects or 'no answer afterwards'}: {said[:300]}")


def _workers(backend: Backend) -> frozenset[int]:
    """The processes a back end may keep: this process's own children, by their command.

    A retired worker, or an orphan that ended, stays a zombie until it is reaped: nothing runs.
    """
    mine = "zygote.py" if backend.name == "native" else "monty"
    children = traps.children(os.getpid())
    alive = {pid for pid in children if mine in traps.command_of(pid)}
    retired = {pid for pid in children if traps.is_zombie(pid)}
    return frozenset(retired | (alive if len(alive) <= _MAX_WORKERS else set()))


def _said(backend: Backend, code: str, time_s: float, *tables: Table) -> str:
    """All that comes back of a run, errors included."""
    try:
        outcome = backend.run(Job(code, {"tables": tables}, TODAY, time_s))
    except ToolUnavailableError as error:
        return f"unavailable: {error}"
    except ToolError as error:
        return str(error)
    return outcome.printed + (outcome.value or "")


def _latency_ms(backend: Backend) -> float:
    started_s = time.perf_counter()
    _said(backend, "sum(range(10))", 10.0)
    return (time.perf_counter() - started_s) * 1000


def pass_snippets(backends: dict[str, Backend]) -> dict[str, tuple[int, int]]:
    """Ordinary programs on each back end and on the tool (both together); prints and returns."""
    counts: dict[str, tuple[int, int]] = {}
    tools = {name: PythonTool(backends=[backend]) for name, backend in backends.items()}
    for name, tool in {**tools, "tool": PythonTool()}.items():
        failed = [snippet for snippet in (*BENIGN, *LLM) if not _passes(tool, snippet)]
        good = [sum(s not in failed for s in group) for group in (BENIGN, LLM)]
        counts[name] = (good[0], good[1])
        print(f"{name}: benign {good[0]} of {len(BENIGN)}, LLM-style {good[1]} of {len(LLM)}")
        if failed and name != "monty":
            print("  not:", "; ".join(snippet.code[-40:] for snippet in failed))
        tool.close()
    return counts


def _passes(tool: PythonTool, snippet: Snippet) -> bool:
    context = ToolContext("escape", TODAY, time.monotonic() + 30, (SALES,))
    try:
        return tool.run({"code": snippet.code}, context).content == snippet.content
    except ToolError:
        return False

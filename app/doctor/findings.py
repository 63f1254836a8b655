"""What a self-check says: one line a fact, a level and, unless it is fine, one remedy.

Owns the record and its forms. Knows no checks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail", "skip"]
_MARKS = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "·"}


@dataclass(frozen=True)
class Finding:
    """One line. ``name`` is stable (for scripts), ``fact`` and ``remedy`` are for people."""

    name: str
    level: Level
    fact: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.remedy or self.level in ("ok", "skip"), f"{self.name} names no remedy"


def ok(name: str, fact: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", fact)


def warn(name: str, fact: str, remedy: str) -> Finding:
    """It works, but not as well as it could, or not for long."""
    return Finding(name, "warn", fact, remedy)


def fail(name: str, fact: str, remedy: str) -> Finding:
    """Messages are not answered until this is mended."""
    return Finding(name, "fail", fact, remedy)


def skip(name: str, fact: str) -> Finding:
    """Not looked at, and why."""
    return Finding(name, "skip", fact)


def exit_status(findings: Sequence[Finding]) -> int:
    """0 unless something fails."""
    return int(any(finding.level == "fail" for finding in findings))


def as_text(findings: Sequence[Finding]) -> str:
    """For a terminal; the names are those that docs/operations.md speaks of."""
    lines = []
    width = max((len(finding.name) for finding in findings), default=0)
    for finding in findings:
        lines.append(f"{_MARKS[finding.level]} {finding.name:<{width}}  {finding.fact}")
        if finding.remedy:
            lines.append(f"    → {finding.remedy}")
    counts = {level: sum(f.level == level for f in findings) for level in _MARKS}
    lines.append(f"{counts['ok']} 项正常，{counts['warn']} 项警告，{counts['fail']} 项不通过")
    return "\n".join(lines) + "\n"


def as_json(findings: Sequence[Finding]) -> str:
    """For scripts: ``{"ok", "findings": [...]}`` on one line."""
    record = {
        "ok": not exit_status(findings),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(record, ensure_ascii=False) + "\n"

"""``python -m app doctor``: a self-check that says what to mend.

Owns the order of the checks. Each part may fail without keeping the others from being looked at.
"""

from __future__ import annotations

import sys

from app.doctor import engine_checks, host_checks, store_checks, wecom_checks
from app.doctor.findings import Finding, as_json, as_text, exit_status
from app.settings import Settings


def examine(settings: Settings) -> list[Finding]:
    """Every finding, the machine first."""
    return [
        *host_checks.check(settings),
        *engine_checks.check(settings),
        *store_checks.check(settings),
        *wecom_checks.check(settings),
    ]


def main(settings: Settings, *, json: bool) -> int:
    """Print the findings; 0 unless something fails."""
    findings = examine(settings)
    sys.stdout.write(as_json(findings) if json else as_text(findings))
    return exit_status(findings)

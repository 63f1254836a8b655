"""``make escape``: every attempt on every back end; last line JSON, exit 1 on any escape.

    python -m tests.escape [--once] [--backend monty|native] [--only NAME]

Printed first: how many traps spring without a sandbox (they must), then one line for each back
end, then how many ordinary programs pass on each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from tests.escape import traps
from tests.escape.measure import Report, controls, pass_snippets, try_all
from tools.sandbox.base import Backend
from tools.sandbox.monty import MontyBackend
from tools.sandbox.native import NativeBackend

_REPEATS = 3
_TIME_S, _SHORT_TIME_S = 0.5, 0.2


def main() -> int:
    """Exit status 0 when nothing escaped, every worker lived and every trap works."""
    options = _options()
    if traps.ENVIRONMENT_NAME not in os.environ:
        # /proc/PID/environ shows what a process was started with: start again with the secret.
        environment = os.environ | {traps.ENVIRONMENT_NAME: traps.secret()}
        command = [sys.executable, "-m", "tests.escape", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode
    time_s = _SHORT_TIME_S if options.once else _TIME_S
    repeats = 1 if options.once else _REPEATS
    backends: dict[str, Backend] = {"monty": MontyBackend(), "native": NativeBackend()}
    reports: dict[str, Report] = {}
    with traps.Traps() as around:
        fired, asked, silent = controls(around)
        print(f"without a sandbox {fired} of {asked} traps spring {silent or ''}", flush=True)
        for name, backend in backends.items():
            if options.backend not in (None, name):
                continue
            status = backend.status()
            print(f"{name}: {'on' if status.active else 'off'}, {status.reason}", flush=True)
            if status.active:
                reports[name] = try_all(backend, around, repeats, time_s, options.only)
                backend.close()
    if options.only is None:
        pass_snippets(backends)
    result = {
        "attempts": max((report.attempts for report in reports.values()), default=0),
        "runs": sum(report.runs for report in reports.values()),
        "escapes": sum(report.escapes for report in reports.values()),
        "traps": [fired, asked],
        "backends": {name: report.numbers() for name, report in reports.items()},
    }
    print(json.dumps(result))
    sound = bool(reports) and all(report.sound for report in reports.values())
    return 0 if sound and fired == asked else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.escape", description=__doc__)
    parser.add_argument("--once", action="store_true", help="each attempt once, shorter limits")
    parser.add_argument("--backend", choices=["monty", "native"])
    parser.add_argument("--only", help="attempts whose name starts so")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""``python -m app demo``: all of Hutong on one machine, with a simulated WeCom.

Owns which processes run, with which generated credentials, and the words on the terminal. Knows
nothing of what the processes do: they are the same commands that a real installation runs.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status. With ``--ask``: 0 only if every question was answered."""
    from app.demo.launcher import run

    return run(argv)

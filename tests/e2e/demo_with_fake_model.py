"""``python -m app demo`` with ``fake_turns`` in place of the model's process. Tests only."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from app.demo import launcher, stack
from app.demo.processes import Child, Processes


class FakeModelProcesses(Processes):
    """Starts another command for the one process that holds the model."""

    def start(self, name: str, title: str, argv: Sequence[str]) -> Child:
        if name == "turns":
            argv = [sys.executable, "-m", "tests.e2e.fake_turns"]
        return super().start(name, title, argv)


if __name__ == "__main__":
    stack.Processes = FakeModelProcesses  # type: ignore[misc]
    sys.exit(launcher.run(sys.argv[1:]))

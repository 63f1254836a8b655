"""The real turn process around a model that is none: ``python -m tests.chaos.fake_model FOLDER``.

What it does to a question follows from the question's text alone. ``FOLDER`` keeps what a killed
process must leave behind: which questions have crashed it before, and a line per run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from app import log
from app.settings import Settings, load
from inference.errors import EngineStoppedError
from inference.protocol import Message
from workers.agent.steps import AgentResult, ModelStep, Step, ToolStep
from workers.processes import LoadedAgent, serve_turns
from workers.turn import TurnLimits

LEASE_TTL_S = 3.0
LONG_LINES = 130
SLOW_S = 4.5


def line(question: str, run: str, number: int) -> str:
    """One line of an answer: says whose, of which run and which line it is."""
    return f"{question}r{run}l{number:03d} 销售额合计一万二千三百四十五元"


class ChaosAgent:
    """Answers after a random while; some questions take tools, some crash the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = (folder / "runs.txt").open("a", buffering=1)

    def run(
        self,
        question: str,
        history: Sequence[Message] = (),
        *,
        user: str,
        deadline_s: float,
        cancelled: Callable[[], bool],
        on_step: Callable[[Step], None],
    ) -> AgentResult:
        """As ``workers.agent.loop.Agent.run``."""
        self._runs.write(f"{user} {question}\n")
        fate = random.Random(question)
        self._hazard(question, fate.random())
        steps: list[Step] = []
        if fate.random() < 0.3:
            for _ in range(fate.randrange(1, 4)):
                self._pause(fate.uniform(0.01, 0.2), cancelled)
                step = ToolStep("sql_query", {"sql": "SELECT 1"}, "1", "", 1.0)
                steps.append(step)
                on_step(step)
        self._pause(SLOW_S if fate.random() < 0.004 else fate.uniform(0, 0.08), cancelled)
        run = os.urandom(3).hex()
        lines = LONG_LINES if fate.random() < 0.03 else fate.randrange(1, 4)
        answer = "\n".join(line(question, run, number) for number in range(lines))
        last = ModelStep(answer, "想", (), "stop", 10, 0, 5, 1.0, 2.0)
        on_step(last)
        said = (Message("user", question), Message("assistant", answer[:200]))
        return AgentResult(answer, "ok", (*steps, last), said)

    def _hazard(self, question: str, chance: float) -> None:
        """Crash this process, kill the engine or raise, for a few questions."""
        if chance < 0.0005:
            os.kill(os.getpid(), signal.SIGKILL)
        if 0.001 < chance < 0.002 and self._first_time(question):
            os.kill(os.getpid(), signal.SIGKILL)
        if 0.002 < chance < 0.003 and self._first_time(question):
            raise EngineStoppedError
        if 0.003 < chance < 0.008:
            raise RuntimeError("a bug by design")

    def _first_time(self, question: str) -> bool:
        try:
            (self._folder / question).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @staticmethod
    def _pause(seconds: float, cancelled: Callable[[], bool]) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not cancelled():
            time.sleep(min(0.02, seconds))


if __name__ == "__main__":
    folder = Path(sys.argv[1])

    @contextlib.contextmanager
    def build(_settings: Settings) -> Iterator[LoadedAgent]:
        yield LoadedAgent(ChaosAgent(folder))

    log.configure()
    sys.exit(serve_turns(load(os.environ), build, TurnLimits(lease_ttl_s=LEASE_TTL_S)))

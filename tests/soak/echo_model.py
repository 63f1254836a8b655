"""The real turn process around an agent that answers at once; started by ``tests.soak``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from app import log
from app.settings import Settings, load
from inference.protocol import Message
from workers.agent.steps import AgentResult, Step
from workers.processes import LoadedAgent, serve_turns


class EchoAgent:
    """Repeats the question."""

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
        said = (Message("user", question), Message("assistant", question))
        return AgentResult(f"{user}：{question}", "ok", messages=said)


@contextlib.contextmanager
def build(_settings: Settings) -> Iterator[LoadedAgent]:
    yield LoadedAgent(EchoAgent())


if __name__ == "__main__":
    log.configure("WARNING")
    sys.exit(serve_turns(load(os.environ), build))

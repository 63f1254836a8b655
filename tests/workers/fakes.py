"""A fake agent and a fake WeCom client for load and fault tests; no setting can select them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import redis

from app.wecom.client import SendResult
from inference.errors import EngineStoppedError
from inference.protocol import Message
from workers.agent.steps import AgentResult, ModelStep, Step

RUNS_KEY = "test:runs"


def model_step(text: str) -> ModelStep:
    """A step as the real loop records it."""
    return ModelStep(text, "想一想", (), "stop", 10, 0, 5, 1.0, 2.0)


class FakeAgent:
    """Answers ``答:<question>`` and obeys words: ``slow:<s>``, ``raise``, ``engine``, ``crash``.

    Runs are remembered here and, given a client, in Redis, where a killed process leaves them.
    """

    def __init__(self, client: redis.Redis | None = None) -> None:
        self.runs: list[tuple[str, str]] = []
        self.histories: list[list[Message]] = []
        self.cancelled = 0
        self._client = client
        self._lock = threading.Lock()

    def run(
        self,
        question: str,
        history: Sequence[Message],
        *,
        user: str,
        deadline_s: float,
        cancelled: Callable[[], bool],
        on_step: Callable[[Step], None],
    ) -> AgentResult:
        """As ``workers.agent.loop.Agent.run``."""
        with self._lock:
            self.runs.append((user, question))
            self.histories.append(list(history))
        if self._client:
            self._client.rpush(RUNS_KEY, f"{user} {question}")
        step = model_step(question)
        on_step(step)
        word, _, value = question.partition(":")
        if word == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "raise":
            raise RuntimeError("a bug with 秘密 in its text")
        if word == "engine":
            raise EngineStoppedError
        if word == "timeout":
            return AgentResult("", "timeout", (step,))
        if word == "markdown":
            return AgentResult(value, "ok", (step,))
        if word == "long":
            return AgentResult("长" * int(value), "ok", (step,))
        if word == "slow" and not self._wait(float(value), cancelled):
            return AgentResult("已停止。", "cancelled", (step,))
        answer = f"答:{question}"
        said = (Message("user", question), Message("assistant", answer))
        return AgentResult(answer, "ok", (step,), said)

    def _wait(self, seconds: float, cancelled: Callable[[], bool]) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if cancelled():
                self.cancelled += 1
                return False
            time.sleep(0.01)
        return True


class FakeWeCom:
    """Takes texts in memory; ``script`` holds what the next sends raise (None: nothing)."""

    def __init__(self, *script: Exception | None) -> None:
        self.sent: list[tuple[str, str]] = []
        self.checks: list[bool] = []
        self.markdown: list[str] = []
        self.uploads: list[bytes] = []
        self.script = list(script)
        self._lock = threading.Lock()

    def send_text(self, user: str, text: str, *, duplicate_check: bool = False) -> SendResult:
        """As ``app.wecom.client.WeComClient.send_text``."""
        with self._lock:
            self.checks.append(duplicate_check)
            self._play()
            self.sent.append((user, text))
            return SendResult(0, "ok", f"msg{len(self.sent)}", "")

    def send_markdown(self, user: str, text: str, *, duplicate_check: bool = False) -> SendResult:
        """As ``app.wecom.client.WeComClient.send_markdown``."""
        self.markdown.append(text)
        return self.send_text(user, text, duplicate_check=duplicate_check)

    def upload_image(self, filename: str, png: bytes) -> str:
        """As ``app.wecom.client.WeComClient.upload_image``; plays the script like a send."""
        with self._lock:
            self._play()
            self.uploads.append(png)
            return f"media{len(self.uploads)}"

    def send_image(self, user: str, media_id: str, *, duplicate_check: bool = False) -> SendResult:
        """As ``app.wecom.client.WeComClient.send_image``."""
        return self.send_text(user, media_id, duplicate_check=duplicate_check)

    def _play(self) -> None:
        error = self.script.pop(0) if self.script else None
        if error:
            raise error


def wait_for(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    """Wait until ``condition`` holds; fail after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)

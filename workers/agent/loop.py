"""The agent loop: model step, tool steps, until the model answers in words.

Owns the limits (steps, repairs, deadline) and what a failed turn says. Knows nothing of WeCom,
Celery or the store: model and tools are passed in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

from inference.errors import TokenLimitError
from inference.protocol import ChatModel, ChatOutput, Message, ToolCall, ToolSpec
from inference.sampling_params import SamplingParams
from tools.base import ToolContext, ToolError, ToolResult
from tools.schemas import ToolSchema
from workers.agent.answer import FIGURES_ONLY, compose, is_presentable, unfounded_figures
from workers.agent.context import fit_history
from workers.agent.steps import AgentResult, ModelStep, Status, Step, ToolStep

UNANSWERED = "抱歉，这个问题我没能查出结果。您可以换个说法，或补充时间、区域、指标再试。"
UNANSWERED_BECAUSE = "抱歉，这个问题我没能查出结果：{reason}。您可以换个说法再试。"
TOO_LONG = "您的消息太长了，我一次读不完（约{limit}字以内）。请精简后再发一次。"
TIMED_OUT = "抱歉，这次查询超过了时限，已停止。请缩小时间或范围后再试。"
CANCELLED = "已停止。"
SHORTEST_RESULT_LINES = 8
LONGEST_REASON = 80


class Tools(Protocol):
    """What the loop needs of a tool registry."""

    def specs(self, user: str) -> Sequence[ToolSchema]: ...

    def run(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult: ...


@dataclass(frozen=True)
class Limits:
    """Bounds of one turn. Tokens count as the model counts them."""

    max_steps: int = 8
    max_repairs: int = 2
    max_answer_tokens: int = 512
    history_tokens: int = 600


@dataclass
class _Turn:
    """State of one running turn."""

    user: str
    deadline_s: float
    cancelled: Callable[[], bool]
    on_step: Callable[[Step], None]
    tools: tuple[ToolSpec, ...]
    prompt: list[Message]
    new: list[Message]
    steps: list[Step] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    failures: int = 0
    last_error: str = ""

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self.on_step(step)


class Agent:
    """Answers questions with one model and a set of tools; safe to call from many threads."""

    def __init__(
        self,
        llm: ChatModel,
        tools: Tools,
        system: Callable[[date, str], str],
        today: Callable[[], date],
        limits: Limits | None = None,
        params: SamplingParams | None = None,
    ) -> None:
        self._llm = llm
        self._tools = tools
        self._system = system
        self._today = today
        self._limits = limits or Limits()
        self._params = params or SamplingParams(max_tokens=self._limits.max_answer_tokens)

    def run(
        self,
        question: str,
        history: Sequence[Message] = (),
        *,
        user: str,
        deadline_s: float,
        cancelled: Callable[[], bool] = lambda: False,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> AgentResult:
        """Answer ``question``. ``deadline_s`` is a ``time.monotonic()`` value.

        A tool's error becomes text for the model; every other exception is a bug and passes.
        """
        specs = tuple(
            ToolSpec(t.name, t.description, t.parameters) for t in self._tools.specs(user)
        )
        asked = Message("user", question)
        kept = fit_history(history, self._limits.history_tokens, self._count)
        words = "\n".join(m.content for m in (*kept, asked) if m.role == "user")
        system = Message("system", self._system(self._today(), words))
        turn = _Turn(user, deadline_s, cancelled, on_step, specs, [system, *kept], [asked])
        try:
            return self._loop(turn)
        except TokenLimitError as error:
            room = max(50, error.max_model_len - self._count([system]) - 200)
            return self._end(turn, TOO_LONG.format(limit=room), "failed")

    def _count(self, messages: Sequence[Message]) -> int:
        return self._llm.count_tokens(messages)

    def _loop(self, turn: _Turn) -> AgentResult:
        for _ in range(self._limits.max_steps):
            output = self._model_step(turn)
            if output.finish_reason == "cancelled" or turn.cancelled():
                return self._end(turn, CANCELLED, "cancelled")
            if output.finish_reason == "deadline" or time.monotonic() >= turn.deadline_s:
                return self._end(turn, TIMED_OUT, "timeout")
            if not output.tool_calls:
                return self._answer(turn, output)
            for call in output.tool_calls:
                self._tool_step(turn, call)
                if turn.cancelled():
                    return self._end(turn, CANCELLED, "cancelled")
            if turn.failures > self._limits.max_repairs:
                break
        return self._end(turn, _unanswered(turn), "failed")

    def _model_step(self, turn: _Turn) -> ChatOutput:
        output = self._chat(turn)
        calls = tuple({"name": c.name, "arguments": dict(c.arguments)} for c in output.tool_calls)
        turn.add(
            ModelStep(
                text=output.text,
                reasoning=output.reasoning,
                tool_calls=calls,
                finish_reason=output.finish_reason,
                prompt_tokens=output.prompt_tokens,
                cached_tokens=output.cached_tokens,
                completion_tokens=output.completion_tokens,
                time_to_first_token_ms=round(output.time_to_first_token_s * 1000, 1),
                duration_ms=round(output.duration_s * 1000, 1),
            )
        )
        turn.new.append(Message("assistant", output.text, output.tool_calls, output.reasoning))
        return output

    def _chat(self, turn: _Turn) -> ChatOutput:
        """One call of the model; when the context is full, again with less in front of it."""
        while True:
            try:
                output = self._llm.chat(
                    [*turn.prompt, *turn.new],
                    turn.tools,
                    self._params,
                    cancelled=turn.cancelled,
                    deadline_s=turn.deadline_s,
                )
            except TokenLimitError:
                if not _shrink(turn):
                    raise
                continue
            if output.finish_reason == "length" and _shrink(turn):
                continue
            return output

    def _tool_step(self, turn: _Turn, call: ToolCall) -> None:
        started = time.monotonic()
        tables = tuple(r.table for r in turn.results if r.table is not None)
        context = ToolContext(turn.user, self._today(), turn.deadline_s, tables, turn.cancelled)
        error, statement, scope = "", "", ""
        try:
            if _key(call) in turn.called:
                raise ToolError("这个调用刚才已经做过，结果相同；请直接根据结果回答")
            turn.called.add(_key(call))
            result = self._tools.run(call.name, call.arguments, context)
            turn.results.append(result)
            content, statement, scope = result.content, result.statement, result.scope
        except ToolError as failure:
            error, content = failure.code, f"错误: {failure}"
            turn.failures += 1
            turn.last_error = str(failure)
        took_ms = round((time.monotonic() - started) * 1000, 1)
        arguments = dict(call.arguments)
        turn.add(ToolStep(call.name, arguments, content, error, took_ms, statement, scope))
        turn.new.append(Message("tool", content))

    def _answer(self, turn: _Turn, output: ChatOutput) -> AgentResult:
        """Words without any tool result behind failed calls, or words cut short, are not sent."""
        unfounded = turn.failures and not turn.results
        whole = output.finish_reason == "stop" and not output.malformed_tool_call
        if unfounded or not whole or not is_presentable(output.text):
            return self._end(turn, _unanswered(turn), "failed")
        sentence = output.text
        if turn.results and unfounded_figures(sentence, _evidence(turn)):
            if turn.results[-1].table is None:
                return self._end(turn, _unanswered(turn), "failed")
            sentence = FIGURES_ONLY
        return self._end(turn, compose(sentence, turn.results), "ok")

    def _end(self, turn: _Turn, text: str, status: Status) -> AgentResult:
        if status == "ok":
            tables = [r.table for r in turn.results if r.table is not None]
            shown = tables[-1] if tables else None
            return AgentResult(text, status, tuple(turn.steps), tuple(turn.new), shown)
        # A turn that failed leaves only what was asked and what was said, not half a tool chain.
        said = (turn.new[0], Message("assistant", text))
        return AgentResult(text, status, tuple(turn.steps), said if status == "failed" else ())


def _shrink(turn: _Turn) -> bool:
    """Make the prompt shorter: first without history, then with fewer rows of the last result."""
    if len(turn.prompt) > 1:
        del turn.prompt[1:]
        return True
    if turn.new[-1].role != "tool":
        return False
    lines = turn.new[-1].content.splitlines()
    if len(lines) <= SHORTEST_RESULT_LINES:
        return False
    kept = [*lines[: len(lines) // 2], f"…（只列出一部分）{lines[-1]}"]
    turn.new[-1] = Message("tool", "\n".join(kept))
    return True


def _evidence(turn: _Turn) -> str:
    """All that the model has read and asked for before its last words."""
    calls = (c for m in turn.new for c in m.tool_calls)
    texts = [m.content for m in (*turn.prompt, *turn.new[:-1])]
    return "\n".join([*texts, *(_key(call) for call in calls)])


def _unanswered(turn: _Turn) -> str:
    reason = turn.last_error.splitlines()[0].rstrip("。") if turn.last_error else ""
    if not reason or turn.results or len(reason) > LONGEST_REASON:
        return UNANSWERED
    return UNANSWERED_BECAUSE.format(reason=reason)


def _key(call: ToolCall) -> str:
    return json.dumps([call.name, dict(call.arguments)], ensure_ascii=False, sort_keys=True)

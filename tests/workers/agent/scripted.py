"""A model that says what a test tells it to, and tools over fixed tables. For tests only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from inference.errors import TokenLimitError
from inference.protocol import ChatOutput, FinishReason, Message, ToolCall, ToolSpec
from inference.sampling_params import SamplingParams
from tools.base import ToolContext, ToolError, ToolResult
from tools.schemas import PYTHON_EXEC, SQL_QUERY, ToolSchema


def call(name: str, **arguments: Any) -> ChatOutput:
    return ChatOutput("", "tool_calls", tool_calls=(ToolCall(name, arguments),))


def say(text: str, finish_reason: FinishReason = "stop") -> ChatOutput:
    return ChatOutput(text, finish_reason)


class ScriptedModel:
    """Gives its outputs in order and keeps every prompt it was shown; one character a token."""

    def __init__(self, outputs: Iterable[ChatOutput], max_model_len: int = 100_000) -> None:
        self._outputs = iter(outputs)
        self._max_model_len = max_model_len
        self.prompts: list[list[Message]] = []
        self.tools: list[tuple[ToolSpec, ...]] = []

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        return sum(len(message.content) for message in messages)

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        params: SamplingParams | None = None,
        *,
        on_text: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        deadline_s: float | None = None,
    ) -> ChatOutput:
        if self.count_tokens(messages) > self._max_model_len:
            raise TokenLimitError(self.count_tokens(messages), self._max_model_len)
        self.prompts.append(list(messages))
        self.tools.append(tuple(tools))
        return next(self._outputs)


class FixedTools:
    """Answers each call from a mapping of tool name to a function of its arguments."""

    def __init__(self, **tools: Callable[[Mapping[str, Any]], ToolResult]) -> None:
        self._tools = tools
        self.contexts: list[ToolContext] = []

    def specs(self, user: str) -> Sequence[ToolSchema]:
        return [s for s in (SQL_QUERY, PYTHON_EXEC) if s.name in self._tools]

    def run(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.contexts.append(context)
        if name not in self._tools:
            raise ToolError(f"没有工具 {name}")
        return self._tools[name](arguments)

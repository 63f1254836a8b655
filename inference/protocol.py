"""What callers of the engine see: messages in, one chat output out.

Owns the vocabulary between the engine (in this process or behind an OpenAI-compatible URL)
and its callers. Knows nothing of torch, WeCom, Celery or any particular tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from inference.sampling_params import SamplingParams

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "deadline"]


@dataclass(frozen=True)
class ToolCall:
    """One call the model asks for; ``arguments`` already match the tool's JSON schema."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One chat message. ``reasoning`` is kept for the record and never rendered again."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_openai(self) -> dict[str, Any]:
        """The tool in the form of OpenAI's ``tools`` list."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ChatOutput:
    """One finished model step. Times in seconds, counts in tokens."""

    text: str
    finish_reason: FinishReason
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token_s: float = 0.0
    duration_s: float = 0.0
    malformed_tool_call: str = field(default="")
    """Raw text of a tool call that could not be parsed, empty when all calls were well formed."""


class ChatModel(Protocol):
    """A model that holds a conversation: the in-process engine or a remote one."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """Tokens of the rendered prompt, generation prompt included."""
        ...

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
        """Run one model step; blocks the calling thread, many threads may call at once.

        ``on_text`` gets visible text pieces as they are decoded (no thinking, no tool calls).
        ``cancelled`` is asked between tokens. ``deadline_s`` is a ``time.monotonic()`` value.
        Raises ``TokenLimitError`` when the prompt does not fit, ``EngineStoppedError`` when the
        engine is gone.
        """
        ...

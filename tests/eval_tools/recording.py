"""What a round did: the agent's model and tools with a note of everything that passed.

Owns the notes. Knows nothing of what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.protocol import ChatModel, ChatOutput, Message, ToolSpec
from inference.sampling_params import SamplingParams
from tools.base import ToolContext, ToolError, ToolResult
from tools.registry import ToolRegistry, fault
from tools.schemas import ToolSchema


@dataclass(frozen=True)
class Call:
    """One tool call. ``problem`` says why it is not valid, ``error`` why it failed."""

    name: str
    arguments: Mapping[str, Any]
    result: ToolResult | None
    error: str = ""
    problem: str = ""


class RecordingModel:
    """``ChatModel`` that keeps its outputs in ``outputs``."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.outputs: list[ChatOutput] = []

    @property
    def max_model_len(self) -> int:
        """As the model's."""
        return self._model.max_model_len

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """As the model's."""
        return self._model.count_tokens(messages, tools)

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
        """As the model's."""
        output = self._model.chat(
            messages, tools, params, on_text=on_text, cancelled=cancelled, deadline_s=deadline_s
        )
        self.outputs.append(output)
        return output


class RecordingTools:
    """A registry that keeps its calls in ``calls``."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self.calls: list[Call] = []

    def specs(self, user: str) -> Sequence[ToolSchema]:
        """As the registry's."""
        return self._registry.specs(user)

    def run(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """As the registry's."""
        schemas = {spec.name: spec.parameters for spec in self.specs(context.user)}
        problem = fault(arguments, schemas[name]) if name in schemas else "no such tool"
        try:
            result = self._registry.run(name, arguments, context)
        except ToolError as error:
            self.calls.append(Call(name, arguments, None, str(error), problem))
            raise
        self.calls.append(Call(name, arguments, result, "", problem))
        return result

"""Generated tokens -> visible text, thinking and tool calls.

Owns the splitting of one output by its control tokens, streaming included. Knows nothing of
how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inference.errors import ToolCallSyntaxError
from inference.logit_mask import ControlTokens
from inference.protocol import ChatOutput, FinishReason, ToolCall, ToolSpec
from inference.tokenizer import IncrementalDecoder, Tokenizer
from inference.tool_parser import CALL_START, ParsedMessage, parse_call, parse_message


@dataclass(frozen=True)
class RequestOutput:
    """What the engine knows of a finished request. Times in seconds, counts in tokens."""

    message: ParsedMessage
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    time_to_first_token_s: float
    duration_s: float

    def to_chat_output(self) -> ChatOutput:
        """The record callers of the engine see."""
        calls = self.message.tool_calls
        reason = self.finish_reason
        if reason == "stop" and (calls or self.message.malformed):
            reason = "tool_calls"
        return ChatOutput(
            text=self.message.text,
            finish_reason=reason,
            reasoning=self.message.reasoning,
            tool_calls=calls,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            time_to_first_token_s=self.time_to_first_token_s,
            duration_s=self.duration_s,
            malformed_tool_call=self.message.malformed,
        )


class OutputParser:
    """Takes tokens one at a time; gives visible text as it becomes certain.

    The pieces that ``push`` and ``finish`` return, joined, are the final text: white space at
    its ends is held back.
    """

    def __init__(
        self, tokenizer: Tokenizer, control: ControlTokens, *, starts_thinking: bool
    ) -> None:
        self._control = control
        self._decoder = IncrementalDecoder(tokenizer)
        self._state: Literal["text", "thinking", "call"] = "thinking" if starts_thinking else "text"
        self._text = ""
        self._held = ""
        self._reasoning: list[str] = []
        self._bodies: list[str] = []
        self._unfinished_call = False
        self.thinking_tokens = 0

    @property
    def thinking(self) -> bool:
        """Whether the next token belongs to the thinking."""
        return self._state == "thinking"

    def push(self, token_id: int) -> str:
        """Take the next token; returns visible text that became certain, often empty."""
        control = self._control
        if self._state == "text" and token_id == control.call_start:
            visible = self._show(self._decoder.flush())
            self._state, self._unfinished_call = "call", True
            self._bodies.append("")
            return visible
        if self._state == "text" and token_id == control.think_start:
            visible = self._show(self._decoder.flush())
            self._state = "thinking"
            return visible
        if self._state == "thinking" and token_id == control.think_end:
            self._reasoning.append(self._decoder.flush())
            self._state = "text"
            return ""
        if self._state == "call" and token_id == control.call_end:
            self._bodies[-1] += self._decoder.flush()
            self._state, self._unfinished_call = "text", False
            return ""
        return self._take(self._decoder.push(token_id))

    def finish(self) -> str:
        """No more tokens come; returns the last visible text."""
        return self._take(self._decoder.flush(), counted=False)

    def result(self, tools: Sequence[ToolSpec]) -> ParsedMessage:
        """The message so far; a call that was cut off counts as malformed."""
        reasoning = "".join(self._reasoning).strip()
        if not self._bodies and CALL_START in self._text:
            parsed = parse_message(self._text, tools)
            return ParsedMessage(parsed.text, reasoning, parsed.tool_calls, parsed.malformed)
        calls: list[ToolCall] = []
        malformed = ""
        for index, body in enumerate(self._bodies):
            try:
                if self._unfinished_call and index == len(self._bodies) - 1:
                    raise ToolCallSyntaxError("the call does not end")
                calls.append(parse_call(body, tools))
            except ToolCallSyntaxError:
                malformed = malformed or body or CALL_START
        return ParsedMessage(self._text, reasoning, tuple(calls), malformed)

    def _take(self, piece: str, *, counted: bool = True) -> str:
        if self._state == "thinking":
            self.thinking_tokens += counted
            self._reasoning.append(piece)
            return ""
        if self._state == "call":
            self._bodies[-1] += piece
            return ""
        return self._show(piece)

    def _show(self, piece: str) -> str:
        """Visible part of ``piece``; white space waits for what follows it."""
        text = self._held + piece
        if not self._text:
            text = text.lstrip()
        visible = text.rstrip()
        self._held = text[len(visible) :]
        self._text += visible
        return visible

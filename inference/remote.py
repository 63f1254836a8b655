"""A ``ChatModel`` behind an OpenAI-compatible endpoint: ``/v1/chat/completions``, streamed.

Owns the wire format and the mapping of foreign errors. Knows nothing of which server answers;
what a server leaves out (usage, reasoning) stays empty.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests

from inference.errors import EngineStepError, EngineStoppedError, TokenLimitError
from inference.protocol import ChatOutput, FinishReason, Message, ToolCall, ToolSpec
from inference.sampling_params import SamplingParams

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 120.0
_OPTIONAL = ("temperature", "top_p", "seed")
_OVERFLOW = ("context_length", "context length", "maximum context", "too long", "max_model_len")


@dataclass
class _Call:
    name: str = ""
    arguments: str = ""


@dataclass
class _Answer:
    """What has arrived so far."""

    started_s: float
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    finish_reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    first_s: float = 0.0


class RemoteModel:
    """One model of one endpoint. Thread-safe: every call has its own connection."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str = "", max_model_len: int = 32_768
    ) -> None:
        """``base_url`` as OpenAI's clients take it, with ``/v1``."""
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._max_model_len = max_model_len

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together, as told to the constructor."""
        return self._max_model_len

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """An estimate from above: the endpoint's tokenizer is not known, a third of the bytes."""
        texts = [m.content for m in messages]
        texts += [json.dumps(dict(c.arguments)) for m in messages for c in m.tool_calls]
        texts += [json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools]
        return sum(len(text.encode()) // 3 + 4 for text in texts)

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
        """See ``ChatModel.chat``. Also raises ``EngineStepError`` when the endpoint refuses."""
        body = _request(self._model, messages, tools, params or SamplingParams())
        answer = _Answer(time.monotonic())
        ended: FinishReason | None = None
        try:
            with requests.post(
                self._url,
                json=body,
                headers=self._headers,
                stream=True,
                timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
            ) as response:
                self._check(response, messages, tools)
                for event in _events(response):
                    _take(answer, event, on_text)
                    if cancelled is not None and cancelled():
                        ended = "cancelled"
                        break
                    if deadline_s is not None and time.monotonic() >= deadline_s:
                        ended = "deadline"
                        break
        except requests.RequestException as error:
            raise EngineStoppedError(f"{self._url} cannot be reached: {error}") from error
        return _output(answer, ended)

    def _check(
        self, response: requests.Response, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> None:
        if response.status_code == 200:
            return
        text = response.text[:500]
        if response.status_code == 400 and any(word in text.lower() for word in _OVERFLOW):
            raise TokenLimitError(self.count_tokens(messages, tools), self._max_model_len)
        if response.status_code >= 500:
            raise EngineStoppedError(f"{self._url} answered {response.status_code}: {text}")
        raise EngineStepError(f"{self._url} answered {response.status_code}: {text}")


def _request(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], params: SamplingParams
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": _messages(messages),
        "max_tokens": params.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = [tool.to_openai() for tool in tools]
    for name in _OPTIONAL:
        value = getattr(params, name)
        if value is not None:
            body[name] = value
    return body


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with call ids: a tool message answers the oldest call without an answer."""
    records: list[dict[str, Any]] = []
    open_ids: list[str] = []
    number = 0
    for message in messages:
        record: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            open_ids = [f"call_{number + i}" for i in range(len(message.tool_calls))]
            number += len(open_ids)
            record["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
                    },
                }
                for call_id, call in zip(open_ids, message.tool_calls, strict=True)
            ]
        if message.role == "tool":
            record["tool_call_id"] = open_ids.pop(0) if open_ids else "call_unknown"
        records.append(record)
    return records


def _events(response: requests.Response) -> Iterator[Mapping[str, Any]]:
    """The JSON of each server-sent event, until ``[DONE]``."""
    for line in response.iter_lines():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise EngineStepError(f"the endpoint sent no JSON: {data[:80]!r}") from error
        if "error" in event:
            raise EngineStepError(f"the endpoint reports {event['error']}")
        yield event


def _take(answer: _Answer, event: Mapping[str, Any], on_text: Callable[[str], None] | None) -> None:
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        answer.first_s = answer.first_s or time.monotonic()
        if delta.get("content"):
            answer.text.append(delta["content"])
            if on_text is not None:
                on_text(delta["content"])
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought:
            answer.reasoning.append(thought)
        for piece in delta.get("tool_calls") or ():
            call = answer.calls.setdefault(piece.get("index", 0), _Call())
            function = piece.get("function") or {}
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _output(answer: _Answer, ended: FinishReason | None) -> ChatOutput:
    calls: list[ToolCall] = []
    malformed = ""
    for _, call in sorted(answer.calls.items()):
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            arguments = None
        if call.name and isinstance(arguments, dict):
            calls.append(ToolCall(call.name, arguments))
        else:
            malformed = malformed or f"{call.name} {call.arguments}"
    reason: FinishReason = "tool_calls" if calls else "stop"
    if answer.finish_reason == "length":
        reason = "length"
    now = time.monotonic()
    details = answer.usage.get("prompt_tokens_details") or {}
    return ChatOutput(
        text="".join(answer.text).strip(),
        finish_reason=ended or reason,
        reasoning="".join(answer.reasoning),
        tool_calls=() if ended else tuple(calls),
        prompt_tokens=int(answer.usage.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        completion_tokens=int(answer.usage.get("completion_tokens") or 0),
        time_to_first_token_s=max(0.0, (answer.first_s or now) - answer.started_s),
        duration_s=now - answer.started_s,
        malformed_tool_call=malformed,
    )

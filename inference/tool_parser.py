"""Tool calls as the model writes them -> typed ``ToolCall`` values.

Owns both Qwen forms: JSON (Qwen3) and XML (Coder, 3.5, 3.6; values typed by the tool's
schema). Works on text; knows nothing of tokens. Strict inside a call, tolerant of prose
around it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import ToolCallSyntaxError
from inference.protocol import ToolCall, ToolSpec

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
THINK_START, THINK_END = "<think>", "</think>"

_FUNCTION = re.compile(r"<function=([^>\s]+)>\s*(.*?)\s*</function>", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|$)", re.DOTALL
)


@dataclass(frozen=True)
class ParsedMessage:
    """One model message taken apart. ``malformed`` is the raw text of the first bad call."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    malformed: str = ""


def parse_message(
    raw: str, tools: Sequence[ToolSpec] = (), *, starts_thinking: bool = False
) -> ParsedMessage:
    """Take a whole message apart; ``starts_thinking`` when the prompt ended with ``<think>``."""
    reasoning, rest = _split_thinking(raw, starts_thinking)
    pieces: list[str] = []
    calls: list[ToolCall] = []
    malformed = ""
    while True:
        before, start, after = rest.partition(CALL_START)
        pieces.append(before)
        if not start:
            break
        body, end, rest = after.partition(CALL_END)
        try:
            if not end:
                raise ToolCallSyntaxError("the call does not end")
            calls.append(parse_call(body, tools))
        except ToolCallSyntaxError:
            malformed = malformed or body
    text = "".join(pieces).strip()
    return ParsedMessage(text, reasoning, tuple(calls), malformed)


def _split_thinking(raw: str, starts_thinking: bool) -> tuple[str, str]:
    head = raw.lstrip()
    if head.startswith(THINK_START):
        head, starts_thinking = head.removeprefix(THINK_START), True
    if not starts_thinking:
        return "", raw
    reasoning, _, rest = head.partition(THINK_END)
    return reasoning.strip(), rest


def parse_call(body: str, tools: Sequence[ToolSpec] = ()) -> ToolCall:
    """The call between the two tags. Raises ``ToolCallSyntaxError``.

    A name that is not in ``tools`` is let through: the registry answers it with its own error.
    """
    text = body.strip()
    if text.startswith("{"):
        return _parse_json(text)
    if text.startswith("<function="):
        return _parse_xml(text, {tool.name: tool for tool in tools})
    raise ToolCallSyntaxError("neither a JSON object nor <function=...>")


def _parse_json(text: str) -> ToolCall:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ToolCallSyntaxError(f"not valid JSON: {error}") from error
    name, arguments = data.get("name"), data.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ToolCallSyntaxError("name is missing")
    if not isinstance(arguments, dict):
        raise ToolCallSyntaxError("arguments are not an object")
    return ToolCall(name, arguments)


def _parse_xml(text: str, tools: Mapping[str, ToolSpec]) -> ToolCall:
    match = _FUNCTION.fullmatch(text)
    if match is None:
        raise ToolCallSyntaxError("<function=...> is not closed")
    name, body = match[1], match[2]
    properties: Mapping[str, Any] = (
        tools[name].parameters.get("properties", {}) if name in tools else {}
    )
    arguments: dict[str, Any] = {}
    position = 0
    for parameter in _PARAMETER.finditer(body):
        if body[position : parameter.start()].strip():
            raise ToolCallSyntaxError("text between parameters")
        key = parameter[1]
        arguments[key] = _typed(parameter[2], properties.get(key, {}), key)
        position = parameter.end()
    if body[position:].strip():
        raise ToolCallSyntaxError("a parameter is not closed")
    return ToolCall(name, arguments)


def _typed(value: str, schema: Mapping[str, Any], key: str) -> Any:
    """``value`` as the schema's type; strings stay verbatim, everything else is JSON."""
    kinds = schema.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    text = value.strip()
    if "boolean" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "null" in kinds and text.lower() in ("null", "none"):
        return None
    if kinds == ["string"]:
        return value
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        if "string" in kinds:
            return value
        raise ToolCallSyntaxError(f"{key} is not of type {'/'.join(kinds)}") from error
    if not any(_is_kind(parsed, kind) for kind in kinds):
        if "string" in kinds:
            return value
        raise ToolCallSyntaxError(f"{key} is not of type {'/'.join(kinds)}")
    return parsed


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    types: dict[str, type | tuple[type, ...]] = {
        "integer": int,
        "number": (int, float),
        "array": list,
        "object": dict,
        "string": str,
        "null": type(None),
    }
    return kind in types and isinstance(value, types[kind])

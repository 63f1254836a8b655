"""Messages as JSON records, for the session store."""

from __future__ import annotations

from typing import Any

from inference.protocol import Message, ToolCall


def to_json(message: Message) -> dict[str, Any]:
    """A JSON-ready record of ``message``; thinking is left out, it never returns to a prompt."""
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        record["tool_calls"] = [
            {"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls
        ]
    return record


def from_json(record: dict[str, Any]) -> Message:
    """The message of a record written by :func:`to_json`."""
    calls = tuple(ToolCall(c["name"], c["arguments"]) for c in record.get("tool_calls", ()))
    return Message(record["role"], record["content"], calls)

"""Dialogs as text, cut where the training loss starts and stops.

Owns a fast equal of chat_template.jinja for the messages we train on (a test compares the two).
Knows nothing of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.protocol import Message, ToolCall
from models.training.dialogs import Prompt
from models.training.turns import Call, Turn
from tools.schemas import ToolSchema

CHAT_TEMPLATE = Path(__file__).parent / "chat_template.jinja"
_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


@dataclass(frozen=True)
class Piece:
    """A stretch of text; ``trained`` when the model must produce it; ``kind`` names the part."""

    text: str
    trained: bool = False
    kind: str = ""


def tool_json(tool: ToolSchema) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }


def prefix(prompt: Prompt) -> str:
    """The system message with its tools, up to and with its end and line break."""
    tools = "".join("\n" + json.dumps(tool_json(tool), ensure_ascii=False) for tool in prompt.tools)
    block = f"\n\n{_TOOLS_HEAD}{tools}{_TOOLS_TAIL}" if tools else ""
    return f"<|im_start|>system\n{prompt.system}{block}<|im_end|>\n"


def call_text(call: Call) -> str:
    """What the model writes to call a tool."""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n</tool_call>'


def pieces(turns: Sequence[Turn]) -> list[Piece]:
    """The conversation after the prefix. Joined, it is what the chat template renders."""
    out: list[Piece] = []
    for turn in turns:
        out.append(Piece(f"<|im_start|>user\n{turn.question}<|im_end|>\n<|im_start|>assistant\n"))
        for call in turn.calls:
            out.append(Piece(call_text(call) + "<|im_end|>", call.trained, call.name))
            out.append(
                Piece(
                    f"\n<|im_start|>user\n<tool_response>\n{call.content}\n</tool_response>"
                    "<|im_end|>\n<|im_start|>assistant\n"
                )
            )
        out.append(Piece(turn.answer + "<|im_end|>", True, "answer"))
        out.append(Piece("\n"))
    return out


def messages(prompt: Prompt, turns: Sequence[Turn]) -> list[Message]:
    """The same conversation as the agent's messages."""
    out = [Message("system", prompt.system)]
    for turn in turns:
        out.append(Message("user", turn.question))
        for call in turn.calls:
            out.append(Message("assistant", "", (ToolCall(call.name, call.arguments),)))
            out.append(Message("tool", call.content))
        out.append(Message("assistant", turn.answer))
    return out


def template_messages(found: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the chat template reads them."""
    return [
        {
            "role": message.role,
            "content": message.content,
            "tool_calls": [
                {"function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in message.tool_calls
            ],
        }
        for message in found
    ]

"""The record of a turn: typed steps, serialisable for the store and the admin page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from inference.protocol import Message

if TYPE_CHECKING:
    # The sender's image has no tools.
    from tools.base import Table

Status = Literal["ok", "failed", "cancelled", "timeout"]


@dataclass(frozen=True)
class ModelStep:
    """One call of the model. ``reasoning`` is its thinking: kept here, never sent."""

    text: str
    reasoning: str
    tool_calls: tuple[Mapping[str, Any], ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    time_to_first_token_ms: float
    duration_ms: float

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready record."""
        return {"kind": "model", **asdict(self)}


@dataclass(frozen=True)
class ToolStep:
    """One call of a tool. ``content`` is what the model read, ``error`` the error code or ''.

    ``statement`` is the query that ran and ``scope`` its period and filters in words, both for the
    user who asks for them.
    """

    name: str
    arguments: Mapping[str, Any]
    content: str
    error: str
    duration_ms: float
    statement: str = ""
    scope: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready record."""
        return {"kind": "tool", **asdict(self)}


Step = ModelStep | ToolStep


@dataclass(frozen=True)
class AgentResult:
    """What a turn gave: the text for the user and the messages that join the session.

    ``table`` is what the figures in the text are taken from; None when there are none.
    """

    text: str
    status: Status
    steps: tuple[Step, ...] = ()
    messages: tuple[Message, ...] = ()
    table: Table | None = None

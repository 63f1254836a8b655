"""The contract of a tool: a JSON schema in, a typed result out.

Owns the types every tool shares. Knows nothing of the model, of WeCom or of who calls.
"""

from __future__ import annotations

import datetime
import decimal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Value = str | int | float | bool | decimal.Decimal | datetime.date | datetime.datetime | None
ChartKind = Literal["bar", "line", "share", "none"]
Cancelled = Callable[[], bool]
"""Whether the user stopped the turn; cheap, and asked from several threads."""


class ToolError(Exception):
    """A tool could not do its work; the text is meant for the model and tells what to change.

    ToolError
    ├── ToolArgumentError     the arguments do not match the schema or are refused
    ├── ToolTimeoutError      stopped at its time limit
    ├── ToolCancelledError    stopped because its user stopped the turn
    ├── ToolForbiddenError    this user has no right to it
    └── ToolUnavailableError  not configured, or its back end is down (retryable)
    """

    retryable = False
    code = "tool_error"


class ToolArgumentError(ToolError):
    """The arguments do not match the schema or are refused."""

    code = "bad_arguments"


class ToolTimeoutError(ToolError):
    """The tool was stopped at its time limit."""

    code = "timeout"


class ToolCancelledError(ToolError):
    """The user stopped the turn while the tool was at work."""

    code = "cancelled"


class ToolForbiddenError(ToolError):
    """The user has no right to this tool or to the data it would touch."""

    code = "forbidden"


class ToolUnavailableError(ToolError):
    """The tool is not configured or its back end cannot be reached."""

    retryable = True
    code = "unavailable"


def never() -> bool:
    """Nobody stops this."""
    return False


@dataclass(frozen=True)
class Table:
    """Rows as the database returned them; exact values, nothing formatted."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    truncated: bool = False
    ordered_by: str = field(default="", compare=False)
    """The column that the query orders by, if any: what the result is about."""


@dataclass(frozen=True)
class Source:
    """Where a document passage comes from."""

    title: str
    section: str
    text: str
    score: float


@dataclass(frozen=True)
class ToolResult:
    """What one call gave. ``content`` is all that the model reads."""

    content: str
    table: Table | None = None
    chart: ChartKind | None = None
    scope: str = ""
    """Period and filters that were really applied, in words for the reader; may be empty."""
    statement: str = ""
    """The query that ran, laid out for a reader, in the database's dialect; may be empty."""
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class ToolContext:
    """Who asks and under which limits. ``deadline_s`` is a ``time.monotonic()`` value."""

    user: str
    today: datetime.date
    deadline_s: float
    tables: tuple[Table, ...] = field(default=())
    """Tables that earlier calls of this turn returned, oldest first."""
    cancelled: Cancelled = never

    def remaining_s(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline_s - time.monotonic())


class Tool(Protocol):
    """One tool. ``run`` raises ``ToolError``; any other exception is a bug."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult: ...

"""Evaluation items as they lie in files: prompts, conversations, right calls, facts.

Owns the JSON form. Knows nothing of how items are made or judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.protocol import Message, ToolCall, ToolSpec
from tools import schemas

CLASSES = (
    "values", "templates", "combinations", "no_tool", "tools", "schema", "followups",
)  # fmt: skip
PROMPTS = "prompts.jsonl"


@dataclass(frozen=True)
class StoredPrompt:
    """A system message and its tools. ``filling`` plans the database, empty: the demo's."""

    id: str
    system: str
    tools: tuple[str, ...]
    filling: Mapping[str, Any]

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the engine takes them."""
        known = {tool.name: tool for tool in schemas.ALL}
        return tuple(
            ToolSpec(name, known[name].description, known[name].parameters) for name in self.tools
        )


@dataclass(frozen=True)
class Step:
    """A call that is right, and what the tool answered."""

    name: str
    arguments: Mapping[str, Any]
    content: str


@dataclass(frozen=True)
class PastTurn:
    """A finished turn before the question."""

    question: str
    steps: tuple[Step, ...]
    answer: str


@dataclass(frozen=True)
class Item:
    """One question. ``facts`` are cells of the last result that a right answer names.

    ``chart_matters``: the question is about the chart, so its argument must be right as well.
    """

    id: str
    kind: str
    intent: str
    lang: str
    prompt: str
    history: tuple[PastTurn, ...]
    question: str
    steps: tuple[Step, ...]
    answer: str
    facts: tuple[str, ...]
    chart_matters: bool = False

    def messages(self, prompt: StoredPrompt) -> list[Message]:
        """The conversation up to and with the question."""
        out = [Message("system", prompt.system)]
        for turn in self.history:
            out.append(Message("user", turn.question))
            for step in turn.steps:
                out += after(step)
            out.append(Message("assistant", turn.answer))
        return [*out, Message("user", self.question)]


def after(step: Step) -> tuple[Message, Message]:
    """The messages of a call and its answer."""
    return (
        Message("assistant", "", (ToolCall(step.name, step.arguments),)),
        Message("tool", step.content),
    )


def write(path: Path, records: Iterable[Item | StoredPrompt]) -> None:
    """One JSON object a line."""
    lines = [json.dumps(asdict(record), ensure_ascii=False) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_prompts(folder: Path) -> dict[str, StoredPrompt]:
    """All prompts of a folder, by id."""
    found = [StoredPrompt(**{**r, "tools": tuple(r["tools"])}) for r in _lines(folder / PROMPTS)]
    return {prompt.id: prompt for prompt in found}


def read_items(folder: Path, kind: str) -> tuple[Item, ...]:
    """The items of one class, in order."""
    out = []
    for record in _lines(folder / f"{kind}.jsonl"):
        past = tuple(
            PastTurn(t["question"], tuple(Step(**s) for s in t["steps"]), t["answer"])
            for t in record["history"]
        )
        steps = tuple(Step(**s) for s in record["steps"])
        out.append(Item(**{**record, "history": past, "steps": steps,
                           "facts": tuple(record["facts"])}))  # fmt: skip
    return tuple(out)

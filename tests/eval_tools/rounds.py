"""The rounds of the benchmark: what a person says, and how its answer is judged.

Owns the reading of ``conversations/*.yaml``. Gold values are queries, run when the benchmark runs;
no figure is written down. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "conversations"
WORDS = {
    "amt": "SUM(quantity*price)",
    "qty": "SUM(quantity)",
    "n": "COUNT(*)",
    "s": "FROM sales_data WHERE",
    "Q3": "year=2024 AND quarter=3",
}
TOOLS = {
    "sql": ("sql_query",),
    "python": ("python_exec",),
    "docs": ("search_docs",),
    "both": ("sql_query", "python_exec"),
    "none": (),
}
_NEEDED = {
    "sql": {"sql"},
    "python": {"value"},
    "docs": {"title", "section"},
    "both": {"sql", "reduce"},
    "none": {"talk"},
}
_ALLOWED = {"ask", "tool", "sql", "value", "title", "section", "reduce", "talk", "ordered", "chart"}


@dataclass(frozen=True)
class Round:
    """One message of a person. ``kind`` is a key of ``TOOLS``.

    ``sql`` finds the right rows (``ordered``: in this order); ``value`` the right number;
    ``reduce`` (median, range, stdev) is taken of the last column of ``sql``; ``section`` of
    ``title`` holds the answer; ``talk`` is the family of right words; ``chart``, where given,
    must be seen in the answer (none: must not).
    """

    ask: str
    kind: str
    sql: str = ""
    value: str = ""
    title: str = ""
    section: str = ""
    reduce: str = ""
    talk: str = ""
    ordered: bool = False
    chart: str = ""

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that a right answer uses, in order."""
        return TOOLS[self.kind]


@dataclass(frozen=True)
class Conversation:
    """Rounds of one person, each with the ones before it as history."""

    name: str
    rounds: tuple[Round, ...]


def load(folder: Path = FOLDER) -> tuple[Conversation, ...]:
    """Every conversation, files in the order of their names. Raises ``ValueError``."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        for record in yaml.safe_load(path.read_text(encoding="utf-8")):
            rounds = tuple(_round(record["id"], turn) for turn in record["turns"])
            found.append(Conversation(record["id"], rounds))
    return tuple(found)


def _round(name: str, record: Mapping[str, Any]) -> Round:
    kind = record["tool"]
    missing = _NEEDED[kind] - record.keys()
    unknown = record.keys() - _ALLOWED
    if missing or unknown:
        raise ValueError(f"{name}: {record['ask']}: missing {missing}, unknown {unknown}")
    fields = {key: record[key] for key in record if key != "tool"}
    for key in ("sql", "value"):
        if key in fields:
            fields[key] = fields[key].format(**WORDS)
    return Round(kind=kind, **fields)

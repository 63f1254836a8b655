"""The independent questions: well formed, and every gold query finds something.

``questions_zh.jsonl`` and ``questions_en.jsonl`` were written without sight of the templates and
are never trained on. Fields: ``id``; ``question``; ``history``, the user's questions before it
(two-turn items); ``intent``; ``sql``, the gold query or null; ``expect``, the tool that must be
used (``none``: no tool); for some ``answer``, the number, or ``document``, the title that must be
found. Where ``expect`` is ``python`` and ``sql`` is given, the query comes first.

How to judge: gold queries select only what the question asks for, so a result that has more
columns is right when it has every gold cell in its row; the order of rows counts for the intents
in ``ORDERED`` only. Percentages are in percent, two decimals.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.demo_company.generate import generate

FOLDER = Path(__file__).parent
DOCUMENTS = FOLDER.parents[1] / "tools" / "demo_company" / "documents"
ORDERED = frozenset({"top", "bottom", "trend"})
Item = dict[str, Any]


def load(name: str) -> list[Item]:
    """The items of one file, in order."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


ITEMS = load("questions_zh.jsonl") + load("questions_en.jsonl")


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("company") / "company.db"
    generate(path)
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        yield database


def test_numbers_of_questions() -> None:
    assert len(load("questions_zh.jsonl")) == 120
    assert len(load("questions_en.jsonl")) == 30
    assert sum("history" in item for item in ITEMS) >= 15


def test_items_are_distinct_and_complete() -> None:
    assert len({item["id"] for item in ITEMS}) == len(ITEMS)
    assert len({(item["question"], *item.get("history", ())) for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        assert item["question"].strip() == item["question"] != ""
        assert item["expect"] in {"sql", "python", "docs", "none"}
        assert (item["sql"] is not None) >= (item["expect"] == "sql"), item["id"]
        assert item["sql"] is None or item["expect"] in {"sql", "python"}, item["id"]
        if item["expect"] == "docs":
            assert (DOCUMENTS / f"{item['document']}.md").is_file()


def test_gold_queries_find_rows_without_gaps(company: sqlite3.Connection) -> None:
    for item in ITEMS:
        if item["sql"] is not None:
            rows = company.execute(item["sql"]).fetchall()
            assert rows, item["id"]
            assert all(cell is not None for row in rows for cell in row), item["id"]


def test_gold_rankings_have_no_tie_at_the_cut(company: sqlite3.Connection) -> None:
    ranked = [item for item in ITEMS if item["sql"] and " LIMIT " in item["sql"]]
    assert len(ranked) >= 20
    for item in ranked:
        head, limit = item["sql"].rsplit(" LIMIT ", 1)
        rows = company.execute(f"{head} LIMIT {int(limit) + 1}").fetchall()
        values = [row[1] for row in rows]
        assert len(set(values)) == len(values) == int(limit) + 1, item["id"]

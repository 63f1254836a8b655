"""Makes the fixed evaluation files: ``python -m models.training.eval_files tests/models/eval``.

Owns what is asked in each class: training phrasings with real names (values), every held-out
phrasing (templates), held-out combinations, talk, tools, schemas with names that training never
shows, and follow-ups. The same seed gives the same bytes. Rows come from the demo company.
"""

from __future__ import annotations

import datetime
import json
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from inference.checkpoint import checksums
from models.training import (
    calc,
    combinations,
    dialogs,
    documents,
    fillings,
    lexicon,
    rendering,
    results,
    schema_jitter,
    sql,
    summaries,
    tokenizer,
    turns,
)
from models.training.dialogs import Dialog, Prompt, Sampler
from models.training.eval_items import (
    CLASSES,
    PROMPTS,
    Item,
    PastTurn,
    Step,
    StoredPrompt,
    write,
)
from models.training.schema_jitter import Schema
from models.training.templates import Template
from models.training.turns import SQL_INTENTS, TALK_INTENTS, Call, Turn
from tools import schemas
from workers.agent.context import system_prompt

SEED = 7
TODAY = datetime.date(2024, 11, 15)
FOLLOWS = (
    "follow_scope", "follow_metric", "follow_n", "follow_period", "follow_dim", "follow_chart",
)  # fmt: skip
SIZES = {"values": 240, "combinations": 170, "no_tool": 160, "tools": 180, "followups": 220}
NUM_SCHEMAS, QUESTIONS_A_SCHEMA = 40, 5
_A_COMBINATION = 12
MAX_TOKENS = 1950
"""Of a whole conversation: what the engine holds, with room for another answer."""


@dataclass(frozen=True)
class Place:
    """A prompt with the database that fits it."""

    stored: StoredPrompt
    prompt: Prompt
    database: sqlite3.Connection


class Maker:
    """Makes items of every class from one seed."""

    def __init__(self) -> None:
        self.tables = fillings.demo_tables()
        self.demo = self._demo("demo", 3)
        self.demo_all = self._demo("demo_all_tools", 5)
        self.prompts = [self.demo.stored, self.demo_all.stored]
        self._asked: set[str] = set()
        self._tokenizer = tokenizer.build()

    def _demo(self, name: str, num_tools: int) -> Place:
        shown = (schemas.SQL_QUERY, schemas.PYTHON_EXEC, schemas.SEARCH_DOCS)
        prompt = dialogs.demo_prompt(TODAY, shown if num_tools == 3 else tuple(schemas.ALL))
        stored = StoredPrompt(name, prompt.system, tuple(t.name for t in prompt.tools), {})
        return Place(stored, prompt, fillings.demo_database(self.tables))

    def names(self) -> dict[str, tuple[str, ...]]:
        """Names that occur in the demo company."""
        columns, rows = self.tables["sales_data"]
        found = {
            column: tuple(sorted({row[columns.index(column)] for row in rows}))
            for column in ("product_name", "customer", "salesperson")
        }
        columns, rows = self.tables["customers"]
        return found | {"city": tuple(sorted({row[columns.index("city")] for row in rows}))}

    def items(self, kind: str) -> tuple[Item, ...]:
        """All items of a class."""
        rng = random.Random(f"{SEED}/{kind}")
        maker = getattr(self, f"_{kind}")
        with lexicon.real_names(self.names()):
            found: list[Item] = []
            for item in maker(rng):
                if self._new(item):
                    found.append(replace(item, id=f"{kind}-{len(found) + 1:03d}"))
                if len(found) == SIZES.get(kind):
                    break
        return tuple(found)

    def _new(self, item: Item) -> bool:
        key = f"{item.prompt}/{[t.question for t in item.history]}/{item.question}"
        if key in self._asked:
            return False
        self._asked.add(key)
        return True

    def _values(self, rng: random.Random) -> Iterator[Item]:
        sampler = Sampler(rng)
        while True:
            dialog = sampler.dialog(self.demo.prompt, SQL_INTENTS)
            yield from self._item(rng, "values", self.demo, dialog)

    def _templates(self, rng: random.Random) -> Iterator[Item]:
        for template in self._held_out(SQL_INTENTS):
            for _ in range(60):
                found = list(self._from(rng, "templates", self.demo, template))
                if found:
                    yield found[0]
                    break

    def _held_out(self, intents: tuple[str, ...]) -> list[Template]:
        pool = dialogs.all_templates().held_out
        return [t for (_, intent), group in pool.items() if intent in intents for t in group]

    def _from(
        self, rng: random.Random, kind: str, place: Place, template: Template
    ) -> Iterator[Item]:
        with schema_jitter.using(place.prompt.schema):
            turn = turns.make(rng, template, TODAY)
        if turn.frame is not None and combinations.held_out(turn.frame):
            return
        yield from self._item(rng, kind, place, Dialog((turn,), template.lang))

    def _combinations(self, rng: random.Random) -> Iterator[Item]:
        sampler = Sampler(rng, "combinations")
        seen: Counter[tuple[str, ...]] = Counter()
        intents = (*combinations.BY_MEMBER, "trend")
        while True:
            dialog = sampler.dialog(self.demo.prompt, intents)
            frame = dialog.turns[-1].frame
            assert frame is not None
            key = combinations.of(frame)
            if seen[key] < _A_COMBINATION:
                for item in self._item(rng, "combinations", self.demo, dialog):
                    seen[key] += 1
                    yield item

    def _no_tool(self, rng: random.Random) -> Iterator[Item]:
        templates = self._held_out(TALK_INTENTS)
        while True:
            for template in templates:
                yield from self._from(rng, "no_tool", self.demo, template)

    def _tools(self, rng: random.Random) -> Iterator[Item]:
        groups = [self._held_out((i,)) for i in ("calc", "doc", "sql_python", "http")]
        while True:
            for group in groups:
                template = rng.choice(group)
                place = self.demo_all if template.intent == "http" else self.demo
                yield from self._from(rng, "tools", place, template)

    def _followups(self, rng: random.Random) -> Iterator[Item]:
        sampler = Sampler(rng, "held_out")
        while True:
            dialog = sampler.dialog(self.demo.prompt, (rng.choice(FOLLOWS),))
            yield from self._item(rng, "followups", self.demo, dialog)

    def _schema(self, rng: random.Random) -> Iterator[Item]:
        for number in range(1, NUM_SCHEMAS + 1):
            schema = schema_jitter.varied(rng, dialogs.demo_semantic(), unseen=True)
            text = system_prompt(schema.semantic, TODAY, documents.titles()[:3])
            prompt = Prompt(text, self.demo.prompt.tools, TODAY, schema)
            planned = fillings.plan(schema)
            stored = StoredPrompt(f"schema-{number:02d}", text, self.demo.stored.tools, planned)
            rows = fillings.fitted(self.tables, planned, f"{stored.id}/1")
            place = Place(stored, prompt, fillings.database(rows))
            self.prompts.append(stored)
            sampler, made = Sampler(rng), 0
            while made < QUESTIONS_A_SCHEMA:
                dialog = sampler.dialog(prompt, SQL_INTENTS)
                if not _reads_schema(schema, dialog.turns[-1]):
                    continue
                for item in self._item(rng, "schema", place, dialog):
                    made += 1
                    yield item
            place.database.close()

    def _tokens(self, place: Place, real: list[Turn]) -> int:
        text = rendering.prefix(place.prompt) + "".join(p.text for p in rendering.pieces(real))
        return len(self._tokenizer.encode(text).ids)

    def _item(self, rng: random.Random, kind: str, place: Place, dialog: Dialog) -> Iterator[Item]:
        """The item of a dialog, unless its queries find nothing to compare."""
        real = []
        with schema_jitter.using(place.prompt.schema):
            for turn in dialog.turns:
                found = _real(rng, place.database, turn)
                if found is None:
                    return
                real.append(found)
        if self._tokens(place, real) > MAX_TOKENS:
            return
        *past, last = real
        steps = _steps(last)
        yield Item(
            "", kind, last.intent, dialog.lang, place.stored.id,
            tuple(PastTurn(t.question, _steps(t), t.answer) for t in past),
            last.question, steps, last.answer, _facts(last), last.intent == "follow_chart",
        )  # fmt: skip


def _reads_schema(schema: Schema, turn: Turn) -> bool:
    """Whether the right query names something that the demo's schema has not."""
    frame = turn.frame
    assert frame is not None
    added = set(schema.vocabulary.dims) - set(lexicon.BASE_DIMS) | set(schema.vocabulary.metrics)
    if added & {frame.metric, frame.dim, frame.dim2, *(column for column, _ in frame.filters)}:
        return True
    return sql.build(frame).sql != _sql_of(turn)


def _sql_of(turn: Turn) -> str:
    return next((str(c.arguments["sql"]) for c in turn.calls if c.trained), "")


def _steps(turn: Turn) -> tuple[Step, ...]:
    return tuple(Step(c.name, dict(c.arguments), c.content) for c in turn.calls if c.trained)


def _facts(turn: Turn) -> tuple[str, ...]:
    """Cells of the result that the right answer names."""
    if not turn.calls or turn.calls[-1].name != "sql_query":
        return ()
    lines = turn.calls[-1].content.split("\n")[1:-1]
    cells = {cell for line in lines for cell in line.split("|") if len(cell) > 1}
    return tuple(sorted(cell for cell in cells if cell in turn.answer))


def _real(rng: random.Random, database: sqlite3.Connection, turn: Turn) -> Turn | None:
    """The turn with what the database really answers; None where that is nothing."""
    calls = [call for call in turn.calls if call.trained]
    if not calls or calls[0].name != "sql_query":
        return replace(turn, calls=tuple(calls))
    cursor = database.execute(str(calls[0].arguments["sql"]))
    columns = tuple(column[0] for column in cursor.description)
    rows = tuple(cursor.fetchall())
    if not rows or any(value is None for value in rows[0]):
        return None
    result = results.shown(columns, rows)
    first = replace(calls[0], content=result.content)
    if turn.frame is not None:
        answer = summaries.answer(rng, turn.frame, sql.build(turn.frame), result)
        return replace(turn, calls=(first,), answer=answer)
    if len(rows) < 3 or len(calls) < 2:
        return None
    code = str(calls[1].arguments["code"])
    try:
        printed = calc.run(code, [[dict(zip(columns, row, strict=True)) for row in rows]])
    except ZeroDivisionError:
        return None
    second = Call("python_exec", calls[1].arguments, printed)
    answer = turn.answer.replace(calls[1].content, printed)
    return replace(turn, calls=(first, second), answer=answer)


def main(argv: list[str] | None = None) -> int:
    """Write all files and their hashes."""
    out = Path((argv or sys.argv[1:] or ["tests/models/eval"])[0])
    out.mkdir(parents=True, exist_ok=True)
    maker = Maker()
    for kind in CLASSES:
        items = maker.items(kind)
        write(out / f"{kind}.jsonl", items)
        print(kind, len(items), json.dumps(Counter(item.intent for item in items)))
    write(out / PROMPTS, maker.prompts)
    checksums.write_list(out, sorted([PROMPTS, *(f"{kind}.jsonl" for kind in CLASSES)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whole dialogs: the prompt variant, one to three turns, and which templates feed them.

Owns the mixture of the training data. Knows nothing of tokens.
"""

from __future__ import annotations

import datetime
import functools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.training import combinations, documents, followups, schema_jitter, turns
from models.training.schema_jitter import Schema
from models.training.templates import Split, Template, load, split
from models.training.turns import Turn
from tools import schemas, semantic
from tools.schemas import ToolSchema
from workers.agent.context import system_prompt

Mode = Literal["train", "held_out", "combinations"]
SEMANTIC_FILE = Path(__file__).parents[2] / "tools" / "demo_company" / "semantic.yaml"
WEIGHTS: dict[str, float] = {
    "total": 8, "top": 11, "bottom": 4.5, "group": 6, "trend": 6, "peak_month": 1, "low_month": 1,
    "compare": 4.5, "yoy": 3.5, "mom": 3, "share": 5, "average": 3, "distinct": 2.5, "having": 4.5,
    "target": 3.5, "price": 2, "list": 3.5, "returns": 3.5, "inventory": 4, "staff": 3,
    "customers": 2, "calc": 9, "sql_python": 5.5, "doc": 12, "http": 3, "report": 2, "greet": 3,
    "help": 3, "thanks": 3, "clarify": 10, "out_of_scope": 15, "refuse_write": 8,
    "refuse_injection": 10.5,
}  # fmt: skip
DOUBLED = ("total", "top", "bottom", "share", "yoy", "mom", "target", "returns", "inventory",
           "distinct", "average", "staff", "doc", "calc", "refuse_write",
           "out_of_scope")  # fmt: skip
"""What the second question of a message may be."""
BY_TAG = ("calc", "sql_python", "http")
"""Intents whose kinds differ in what is called: rare kinds are drawn as often as common ones."""
NO_SCHEMA = ("calc", "doc", "http", "report", "greet", "help", "thanks", "clarify",
             "out_of_scope", "refuse_write", "refuse_injection")  # fmt: skip
"""Intents that read no schema; rarer where the schema is the point."""
FOLLOW_SHARE = 0.2
"""Part of the dialogs that end in a follow-up."""
FOLLOW_WEIGHTS: dict[str, float] = {
    "follow_scope": 20, "follow_period": 24, "follow_metric": 12, "follow_n": 36, "follow_dim": 18,
    "follow_chart": 14, "follow_both": 12, "follow_it": 16,
}  # fmt: skip
"""How often each kind of edit is asked for, where it makes sense."""
DOUBLE_SHARE = 0.03
"""Part of the other questions that ask for two things at once."""
HISTORY_SHARE = 0.1
"""Part of the other dialogs that begin with a finished turn about something else."""
ENGLISH_SHARE = 0.23
VARIED_SHARE = 0.45
"""Part of the prompts whose schema is not the demo's."""
_TABLE_OF = {"target": "targets", "returns": "returns", "inventory": "inventory",
             "staff": "staff", "customers": "customers"}  # fmt: skip
FIXTURE_TODAYS = (datetime.date(2023, 1, 1), datetime.date(2026, 12, 31))


@dataclass(frozen=True)
class Prompt:
    """What all dialogs of one batch share: the system text, the tools and today."""

    system: str
    tools: tuple[ToolSchema, ...]
    today: datetime.date
    schema: Schema


@dataclass(frozen=True)
class Dialog:
    """One conversation; its last turn is the one that is evaluated."""

    turns: tuple[Turn, ...]
    lang: str

    @property
    def intent(self) -> str:
        """Intent of the last turn."""
        return self.turns[-1].intent


@functools.cache
def demo_semantic() -> semantic.Semantic:
    """The demo company's semantic file."""
    return semantic.load(SEMANTIC_FILE)


@functools.cache
def all_templates() -> Split:
    """The repository's templates, split."""
    return split(load())


def make_prompt(rng: random.Random, *, vary_schema: bool | None = None) -> Prompt:
    """A prompt variant: a random day, document titles, tools and order of tables.

    With ``vary_schema`` (see ``schema_jitter``) tables and columns are renamed, added or left
    out; else the names are the demo company's. Training draws it for ``VARIED_SHARE``.
    """
    first, last = FIXTURE_TODAYS
    today = first + datetime.timedelta(days=rng.randrange((last - first).days + 1))
    if rng.random() < 0.15:
        today = datetime.date(2024, 11, 15)
    if vary_schema is None:
        vary_schema = rng.random() < VARIED_SHARE
    make = schema_jitter.varied if vary_schema else schema_jitter.plain
    schema = make(rng, demo_semantic())
    titles = list(documents.titles())
    if rng.random() < 0.6:
        titles = rng.sample(titles, min(len(titles), rng.randint(2, 6)))
        titles += [documents.invented_title(rng) for _ in range(rng.randint(0, 4))]
        rng.shuffle(titles)
    if schema.columns:
        titles = titles[:4]
    text = system_prompt(schema.semantic, today, tuple(titles))
    tools = list(schemas.ALL)
    if rng.random() < 0.55:
        optional = rng.sample((schemas.HTTP_API, schemas.REPORT), rng.randint(1, 2))
        tools = [tool for tool in tools if tool not in optional]
    return Prompt(text, tuple(tools), today, schema)


def demo_prompt(today: datetime.date, tools: tuple[ToolSchema, ...] | None = None) -> Prompt:
    """The prompt of the demo: all tables, all documents, the three tools that work today."""
    shown = tools or (schemas.SQL_QUERY, schemas.PYTHON_EXEC, schemas.SEARCH_DOCS)
    text = system_prompt(demo_semantic(), today, documents.titles())
    return Prompt(text, shown, today, Schema(demo_semantic()))


class Sampler:
    """Draws dialogs for prompts, from training templates or from held-out ones."""

    def __init__(self, rng: random.Random, mode: Mode = "train", source: Split | None = None):
        self._rng = rng
        source = source or all_templates()
        self._train = source.train
        self._asked = source.held_out if mode == "held_out" else source.train
        self._mode = mode
        self._wants_held_out = mode == "combinations"

    def dialog(self, prompt: Prompt, intents: tuple[str, ...] = ()) -> Dialog:
        """One dialog; the last turn is of one of ``intents`` if any are named."""
        with schema_jitter.using(prompt.schema):
            return self._dialog(prompt, intents)

    def _dialog(self, prompt: Prompt, intents: tuple[str, ...]) -> Dialog:
        rng = self._rng
        follow = any(i.startswith("follow") for i in intents) if intents else (
            rng.random() < FOLLOW_SHARE)  # fmt: skip
        while True:
            lang = "en" if rng.random() < ENGLISH_SHARE else "zh"
            made = self._followed(prompt, lang, intents) if follow else (
                self._single(prompt, lang, intents))  # fmt: skip
            if made is None or self._wrong_combination(made) or self._kept(made[-1]):
                continue
            return Dialog(made, lang)

    def _kept(self, turn: Turn) -> bool:
        """Whether training would say a talk question of the evaluation word for word."""
        if self._mode != "train" or turn.intent not in turns.TALK_INTENTS:
            return False
        return turns.plain(turn.question) in turns.kept_for_evaluation()

    def _wrong_combination(self, made: tuple[Turn, ...]) -> bool:
        """Whether a turn asks for a held-out combination, or the last one fails to when it must."""
        held = [turn.frame is not None and combinations.held_out(turn.frame) for turn in made]
        return not held[-1] if self._wants_held_out else any(held)

    def _single(
        self, prompt: Prompt, lang: str, intents: tuple[str, ...]
    ) -> tuple[Turn, ...] | None:
        template = self._template(self._asked, prompt, lang, intents)
        if template is None:
            return None
        last = turns.make(self._rng, template, prompt.today)
        if not intents and template.intent in turns.SQL_INTENTS and self._mode == "train":
            last = self._doubled(last, prompt, lang)
        if not intents and template.intent != "clarify" and self._rng.random() < HISTORY_SHARE:
            other = self._template(self._train, prompt, lang, ())
            if other is not None:
                before = turns.make(self._rng, other, prompt.today)
                if sum(len(call.content) for call in before.calls) < 300:
                    return (before, last)
        return (last,)

    def _doubled(self, first: Turn, prompt: Prompt, lang: str) -> Turn:
        """Now and then a second question in the same message; both are answered, in order."""
        if self._rng.random() > DOUBLE_SHARE or first.frame is None:
            return first
        template = self._template(self._train, prompt, lang, DOUBLED)
        other = template and turns.make(self._rng, template, prompt.today)
        size = sum(len(call.content) for turn in (first, other) if turn for call in turn.calls)
        if other is None or size > 400 or not self._allowed(other):
            return first
        return turns.joined(self._rng, first, other, lang)

    def _allowed(self, turn: Turn) -> bool:
        return turn.frame is None or not combinations.held_out(turn.frame)

    def _followed(
        self, prompt: Prompt, lang: str, intents: tuple[str, ...]
    ) -> tuple[Turn, ...] | None:
        rng = self._rng
        base = self._template(self._train, prompt, lang, followups.BASES)
        if base is None:
            return None
        made = [turns.make(rng, base, prompt.today)]
        for _ in range(2 if rng.random() < 0.25 else 1):
            frame = made[-1].frame
            choices = {}
            for (code, intent), group in self._asked.items():
                if code != lang or intent not in (intents or FOLLOW_WEIGHTS) or frame is None:
                    continue
                if intent in FOLLOW_WEIGHTS and (
                    fitting := [t for t in _one_each(rng, group) if followups.fits(t, frame)]
                ):
                    choices[intent] = fitting
            if frame is None or not choices:
                break
            weights = [FOLLOW_WEIGHTS[intent] for intent in choices]
            chosen = _by_tag(rng, rng.choices(tuple(choices.values()), weights)[0])
            frame = followups.about(chosen, made[-1])
            turn = frame and followups.follow(rng, chosen, frame, prompt.today)
            if turn is None:
                break
            made.append(turn)
        return tuple(made) if len(made) > 1 else None

    def _template(
        self, pool: dict[tuple[str, str], tuple[Template, ...]], prompt: Prompt, lang: str,
        intents: tuple[str, ...],
    ) -> Template | None:  # fmt: skip
        names = {tool.name for tool in prompt.tools}
        options = [
            (intent, group)
            for (code, intent), group in pool.items()
            if code == lang
            and intent in (intents or WEIGHTS)
            and turns.TOOL_OF.get(intent, "sql_query") in names
            and _TABLE_OF.get(intent) not in prompt.schema.dropped
        ]
        if not options:
            return None
        rare = NO_SCHEMA if prompt.schema.columns else ()
        weights = [WEIGHTS[intent] * (0.45 if intent in rare else 1) for intent, _ in options]
        intent, group = self._rng.choices(options, weights)[0]
        if intent in BY_TAG and self._rng.random() < 0.6:
            tag = self._rng.choice(sorted({template.tag for template in group}))
            group = tuple(template for template in group if template.tag == tag)
        if intent not in turns.TALK_INTENTS:
            return self._rng.choice(group)
        if prompt.schema.columns:
            # A varied schema may well have the figure that the demo lacks.
            group = tuple(template for template in group if template.tag != "data") or group
        return self._rng.choices(group, [_breadth(template) for template in group])[0]


@functools.cache
def _breadth(template: Template) -> float:
    """Templates that say many things are drawn more often than those that say one."""
    question = template.text.partition("=>")[0]
    return 1.0 + 1.5 * min(2, question.count("{")) + 0.75 * min(3, question.count("("))


def _by_tag(rng: random.Random, fitting: list[Template]) -> Template:
    """One of them; the plain kind as often as all others together."""
    plain = [t for t in fitting if not t.tag]
    return rng.choice(plain if plain and rng.random() < 0.5 else fitting)


def _one_each(rng: random.Random, group: tuple[Template, ...]) -> list[Template]:
    """A few templates of an intent: a plain one and one of each kind of edit."""
    chosen = {t.tag: t for t in rng.sample(group, min(len(group), 12))}
    return list(chosen.values())

"""Question templates: files, syntax, and the split into training and held-out ones.

Owns the template format. Knows nothing of what a slot means.

One template a line; ``#`` starts a comment; ``# kind: X`` names the kind of the lines below it.
``{slot}`` is filled by the generator, ``[x]`` is optional, ``(a|b)`` is a choice; both nest.
``question => answer`` gives the whole answer of a question that needs no tool.
A file is named after its intent, with details after it: ``top1_person.txt`` is intent ``top``,
variant ``1_person``; ``having_over.txt`` is intent ``having``, variant ``over``.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TEMPLATE_DIR = Path(__file__).parent / "templates"
LANGUAGES = ("zh", "en")
INTENTS = (
    "total", "top", "bottom", "group", "trend", "compare", "yoy", "mom", "share", "average",
    "distinct", "having", "peak_month", "low_month", "target", "price", "list", "returns", "inventory", "staff", "customers",  # noqa: E501
    "calc", "sql_python", "doc", "http", "report", "greet", "help", "clarify", "out_of_scope",
    "refuse_write", "refuse_injection", "thanks", "follow_scope", "follow_metric", "follow_n",
    "follow_period", "follow_dim", "follow_chart", "follow_both", "follow_it",
)  # fmt: skip
_BY_LENGTH = sorted(INTENTS, key=len, reverse=True)
_SLOT = re.compile(r"\{(\w+)\}")
_MARKS = re.compile(r"[\W_]+")
MAX_DRAWS = 30
_KIND = re.compile(r"#\s*kind:\s*(\w+)")


class TemplateError(Exception):
    """A template file cannot be read; the message names the file and line."""


@dataclass(frozen=True)
class Template:
    """One line of a template file."""

    lang: str
    intent: str
    variant: str
    kind: str
    text: str

    @property
    def slots(self) -> frozenset[str]:
        """Names of all slots that may appear."""
        return frozenset(_SLOT.findall(self.text))

    @property
    def tag(self) -> str:
        """The kind of its section, else the variant of its file."""
        return self.kind or self.variant

    @property
    def held_out(self) -> bool:
        """True for one template in ten, by a stable hash of its text: never trained on."""
        return _held_out(f"{self.lang}/{self.intent}/{self.text}")

    def choose(self, rng: random.Random) -> str:
        """The text with options and choices decided, slots still in braces.

        A trained template never comes out as a held-out one would.
        """
        for _ in range(MAX_DRAWS):
            text, end = _choose(self.text, 0, "", rng)
            assert end == len(self.text)
            if self.held_out or ("(" not in self.text and "[" not in self.text):
                break
            if bare(text) not in held_out_phrasings():
                break
        return text


@functools.cache
def _held_out(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] < 26


def bare(text: str) -> str:
    """The question of a template text without its answer, marks, spaces and case."""
    return _MARKS.sub("", text.partition("=>")[0].lower())


@functools.cache
def held_out_phrasings() -> frozenset[str]:
    """What the held-out templates of the repository say, slots by name."""
    rng = random.Random(0)
    held = [template for template in load() if template.held_out]
    return frozenset(bare(template.choose(rng)) for template in held for _ in range(60))


def _choose(text: str, start: int, closing: str, rng: random.Random) -> tuple[str, int]:
    """Expand ``text`` from ``start`` up to ``closing``; return the text and the end position."""
    choices: list[list[str]] = [[]]
    at = start
    while at < len(text) and not (closing and text[at] == closing):
        char = text[at]
        if char in "([" and _balanced(text, at):
            inner, at = _choose(text, at + 1, ")" if char == "(" else "]", rng)
            if char == "(" or rng.random() < 0.5:
                choices[-1].append(inner)
            at += 1
        elif char == "|" and closing == ")":
            choices.append([])
            at += 1
        else:
            choices[-1].append(char)
            at += 1
    return "".join(rng.choice(choices)), at


def _balanced(text: str, at: int) -> bool:
    """Whether the bracket at ``at`` is markup: ``[x]``, or ``(a|b)`` with a bar inside."""
    opening, closing = text[at], ")" if text[at] == "(" else "]"
    depth, bar = 0, False
    for char in text[at:]:
        depth += (char == opening) - (char == closing)
        bar = bar or (char == "|" and depth == 1)
        if depth == 0:
            return opening == "[" or bar
    return False


def intent_of(stem: str) -> tuple[str, str]:
    """Intent and variant of a file name without its extension."""
    for intent in _BY_LENGTH:
        if stem == intent or (stem.startswith(intent) and not stem[len(intent)].isalpha()):
            return intent, stem[len(intent) :].strip("_")
    raise TemplateError(f"{stem}.txt: no intent starts this name; intents are {INTENTS}")


def load_file(path: Path, lang: str) -> tuple[Template, ...]:
    """All templates of one file, in order, duplicates dropped."""
    intent, variant = intent_of(path.stem)
    kind, seen = "", {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if match := _KIND.match(text):
            kind = match[1]
        elif text and not text.startswith("#"):
            seen[text] = Template(lang, intent, variant, kind, text)
    return tuple(seen.values())


def load(root: Path = TEMPLATE_DIR) -> tuple[Template, ...]:
    """Every template of every language; a text seen twice within an intent counts once."""
    found: dict[tuple[str, str, str], Template] = {}
    for lang in LANGUAGES:
        for path in sorted((root / lang).glob("*.txt")):
            for template in load_file(path, lang):
                found.setdefault((lang, template.intent, template.text), template)
    if not found:
        raise TemplateError(f"no templates under {root}")
    return tuple(found.values())


@dataclass(frozen=True)
class Split:
    """Templates by (language, intent): those trained on and those only evaluated."""

    train: dict[tuple[str, str], tuple[Template, ...]]
    held_out: dict[tuple[str, str], tuple[Template, ...]]


def split(templates: Sequence[Template]) -> Split:
    """Divide by ``Template.held_out``; an intent of fewer than 5 lines is all trained on."""
    groups: dict[tuple[str, str], list[Template]] = defaultdict(list)
    for template in templates:
        groups[template.lang, template.intent].append(template)
    train, held = {}, {}
    for key, group in groups.items():
        kept = tuple(t for t in group if not t.held_out)
        if len(group) < 5 or not kept:
            train[key] = tuple(group)
            continue
        train[key] = kept
        if len(kept) < len(group):
            held[key] = tuple(t for t in group if t.held_out)
    return Split(train, held)

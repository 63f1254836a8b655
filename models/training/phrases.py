"""Values and filters as people say them, and the tidying of a filled template.

Owns word order and the small words between. Knows nothing of frames and slots.
"""

from __future__ import annotations

import random
import re

from models.training import lexicon


def say(rng: random.Random, column: str, value: str, lang: str) -> str:
    """A word for a value; names stay as they are."""
    if column in lexicon.VALUES:
        return rng.choice(lexicon.value_words(column, value, lang))
    if column in lexicon.FIXED and rng.random() < 0.85:
        return rng.choice(lexicon.fixed_words(value, lang))
    return value


def scope_phrase(rng: random.Random, filters: dict[str, str], lang: str) -> str:
    """Filters in words: 华东区手机 / 京东渠道的; ``in East China on JD``."""
    said = {column: _qualified(rng, column, say(rng, column, value, lang), lang)
            for column, value in filters.items()}  # fmt: skip
    if lang == "en":
        leads = {"region": ("in ", "in ", "for "), "category": ("for ", "of "),
                 "channel": ("on ", "via ", "through "), "product_name": ("for ", "of "),
                 "customer": ("for customer ", "to "), "salesperson": ("by ", "of ")}  # fmt: skip
        return " ".join(
            rng.choice(leads.get(column, ("with ", "for "))) + word for column, word in said.items()
        )
    columns = sorted(said, key=lambda column: column in ("category", "product_name"))
    text = ""
    for column in columns:
        if text and not text.endswith("的") and column not in ("category",):
            text += rng.choice(("", "", "的"))
        text += said[column]
        if column in ("customer", "salesperson") and rng.random() < 0.7:
            text += "的"
    if text and not text.endswith("的") and rng.random() < 0.35:
        text += "的"
    return text


def _qualified(rng: random.Random, column: str, word: str, lang: str) -> str:
    """A value of a column that the demo lacks is often named with its column."""
    if column in lexicon.BASE_DIMS or column not in lexicon.DIMS or rng.random() < 0.35:
        return word
    if lang == "en":
        return f"{lexicon.DIMS[column].en[0][0]} {word}"
    title = lexicon.DIMS[column].alias
    return rng.choice(
        (f"{title}为{word}的", f"{title}是{word}的", f"{word}{title}", f"{word}这个{title}")
    )


def tidy(text: str, lang: str) -> str:
    """Remove what empty slots leave behind: doubled spaces and marks."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"的的+", "的", text)
    text = re.sub(r"^[的，,、：:]+", "", text)
    if lang == "en":
        text = re.sub(r" ([?,.!:;)])", r"\1", text)
    return text.strip()

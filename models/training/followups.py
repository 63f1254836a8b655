"""Follow-up questions: an edit of the last question's frame.

Owns which edits make sense after which question. Knows nothing of SQL text.
"""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import replace

from models.training import lexicon, periods, sql
from models.training.frames import Filler, Frame
from models.training.templates import Template
from models.training.turns import Turn, query_turn

BASES = ("total", "top", "bottom", "group", "trend", "share")
_ADDITIVE = ("销售额", "销量", "订单数")
_HIGHEST = re.compile(r"最[高大多好]|highest|largest|best|biggest")
_LOWEST = re.compile(r"最[低小少差]|倒数|垫底|lowest|smallest|worst")
_CHARTS = {"bar": "bar", "line": "line", "share": "share", "none": "none"}


def fits(template: Template, frame: Frame) -> bool:
    """Whether this follow-up makes sense after this question."""
    intent, tag = template.intent, template.tag
    if intent == "follow_it":
        return _subject(frame) == tag
    if frame.intent not in BASES or frame.dim2 or frame.values or frame.kind in ("peak", "low"):
        return False
    if frame.excluded and intent in ("follow_scope", "follow_both", "follow_dim"):
        return False
    ranked = frame.intent in ("top", "bottom") and frame.limit > 1
    rules = {
        "follow_n": ranked,
        "follow_chart": frame.intent not in ("total",) and (ranked or frame.limit == 0),
        "follow_dim": frame.intent in ("total", "group", "trend", "top", "bottom", "share"),
    }
    if not rules.get(intent, True):
        return False
    if tag in ("yoy", "mom"):
        kinds = ("quarter", "month") if tag == "mom" else ("year", "quarter", "month", "half")
        return frame.metric in _ADDITIVE and frame.period.kind in kinds and frame.intent in (
            "total", "group")  # fmt: skip
    if tag == "share":
        return frame.intent == "group" and frame.metric in _ADDITIVE
    if tag == "total":
        return frame.intent in ("group", "trend", "share")
    if intent in ("follow_scope",) and tag == "all":
        return bool(frame.filters)
    if intent == "follow_period" and tag == "all":
        return frame.period.kind != "none"
    if intent == "follow_period" and tag in ("year_ago", "before", "after"):
        kinds = (
            ("quarter", "month") if tag != "year_ago" else ("quarter", "month", "half", "months")
        )
        return frame.period.kind in kinds and frame.intent != "trend"
    if intent == "follow_both":
        return frame.intent in ("total", "top", "bottom", "group") and (
            ranked or "{n}" not in template.text)  # fmt: skip
    return True


_THINGS = {"product_name": "thing", "salesperson": "person", "customer": "company"}


def _subject(frame: Frame) -> str:
    """What a pronoun in the next question means: a thing, a person, a company or nothing."""
    named = [column for column, _ in frame.filters if column in _THINGS]
    if frame.intent in ("top", "bottom") and frame.limit == 1 and not frame.dim2 and not named:
        return _THINGS.get(frame.dim, "")
    if frame.intent == "total" and len(named) == 1:
        return _THINGS[named[0]]
    return ""


def about(template: Template, turn: Turn) -> Frame | None:
    """The frame a pronoun question edits: a total of the thing that the last answer names."""
    frame = turn.frame
    if frame is None or frame.intent == "total" or template.intent != "follow_it":
        return frame
    lines = turn.calls[-1].content.split("\n")
    if len(lines) < 3:
        return None
    filters = dict(frame.filters) | {frame.dim: lines[1].split("|")[0]}
    if frame.dim == "product_name":
        filters.pop("category", None)
    ordered = tuple((c, filters[c]) for c in sorted(filters, key=lexicon.rank))
    return replace(frame, intent="total", kind="", dim="", limit=0, filters=ordered)


def follow(
    rng: random.Random, template: Template, last: Frame, today: datetime.date
) -> Turn | None:
    """The turn after ``last``, or None where the edit changes nothing."""
    filler = Filler(template, rng, today)
    filler.metric = last.metric
    if last.intent == "trend":
        filler.period_kinds = ("year", "quarter", "half", "years") if last.grain == "month" else (
            "year", "years")  # fmt: skip
        if last.grain == "year":
            filler.period_kinds = ("years",)
    elif template.intent in ("follow_period", "follow_both", "follow_it"):
        filler.period_kinds = tuple(k for k in periods.Kind.__args__ if k != "none")
        if template.intent != "follow_period":
            filler.period_kinds = ("year", "quarter", "month", "half", "months")
    if "{value}" in template.text:
        free = [c for c in ("region", "region", "category", "channel", "salesperson", "customer")
                if c != last.dim]  # fmt: skip
        if template.intent == "follow_it":
            free = ["region", "channel"]
        free += [c for c in lexicon.DIMS if c not in lexicon.BASE_DIMS and c != last.dim]
        used = [column for column, _ in last.filters if column in free]
        filler.dim = rng.choice(used if used and rng.random() < 0.7 else free)
    if "dim}" in template.text or "dims}" in template.text:
        taken = {column for column, _ in last.filters} | {last.dim}
        free = [c for c in lexicon.DIMS if c not in taken]
        filler.dim = rng.choice(free)
    question, asked = filler.fill()
    if template.intent in ("follow_both", "follow_it"):
        edited = _several(template, last, asked, filler)
        if edited is None or edited == last:
            return None
        turn = query_turn(rng, question, replace(edited, lang=template.lang))
        return replace(turn, intent=template.intent)
    chart: str | None = None
    if template.intent == "follow_chart":
        frame = last
        chart = _CHARTS.get(template.tag) or sql.build(last).chart or "bar"
    else:
        edited = _edit(template, last, asked, filler, question)
        if edited is None or edited == last:
            return None
        frame = edited
    turn = query_turn(rng, question, replace(frame, lang=template.lang), chart)
    return replace(turn, intent=template.intent)


def _several(
    template: Template, last: Frame, asked: Frame, filler: Filler
) -> Frame | None:  # fmt: skip
    """Every edit whose slot the template has, and what its kind says."""
    edited, slots = last, set(filler.said)
    if "value" in slots:
        filters = dict(last.filters) | {filler.dim: asked.values[0]}
        if filler.dim == "product_name":
            filters.pop("category", None)
        if filler.dim == "category" and "product_name" in filters:
            return None
        ordered = tuple((c, filters[c]) for c in sorted(filters, key=lexicon.rank))
        edited = replace(edited, filters=ordered)
    if "period" in slots:
        edited = replace(edited, period=asked.period)
    if "metric" in slots:
        edited = replace(edited, metric=asked.metric)
    if "n" in slots:
        edited = replace(edited, limit=asked.limit)
    if slots & {"dim", "dims"}:
        if filler.dim in dict(edited.filters) or edited.intent == "trend":
            return None
        intent = edited.intent if edited.limit > 1 else "group"
        edited = replace(edited, intent=intent, dim=filler.dim, grain="",
                         limit=edited.limit if intent != "group" else 0)  # fmt: skip
    return edited


def _edit(
    template: Template, last: Frame, asked: Frame, filler: Filler, question: str
) -> Frame | None:
    tag = template.tag
    match template.intent:
        case "follow_scope":
            if tag == "all":
                return replace(last, filters=())
            value = asked.values[0] if asked.values else ""
            filters = dict(last.filters)
            if tag == "without":
                if filler.dim in filters:
                    return None
                return replace(last, excluded=((filler.dim, value),))
            if filler.dim == "product_name":
                filters.pop("category", None)
            filters[filler.dim] = value
            ordered = tuple((c, filters[c]) for c in sorted(filters, key=lexicon.rank))
            return replace(last, filters=ordered)
        case "follow_metric":
            if last.intent == "share" and asked.metric not in _ADDITIVE:
                return None
            return replace(last, metric=asked.metric)
        case "follow_n":
            return _ranking(tag, last, asked, question)
        case "follow_period":
            moved = {"year_ago": last.period.year_before(), "before": last.period.previous(),
                     "after": last.period.following(), "all": periods.NONE}  # fmt: skip
            return replace(last, period=moved.get(tag, asked.period))
        case "follow_dim":
            return _breakdown(tag, last, asked, filler)
    return None


def _ranking(tag: str, last: Frame, asked: Frame, question: str) -> Frame:
    if tag == "reverse":
        return replace(last, intent="bottom" if last.intent == "top" else "top")
    limit, intent = 1 if tag == "one" else asked.limit, last.intent
    if _HIGHEST.search(question):
        intent = "top"
    elif _LOWEST.search(question):
        intent = "bottom"
    return replace(last, intent=intent, limit=limit)


def _breakdown(tag: str, last: Frame, asked: Frame, filler: Filler) -> Frame | None:
    match tag:
        case "grain" | "trend":
            grain = filler.grain or "month"
            fits = last.period.one_year or last.period.kind in ("none", "years")
            if not fits or (
                grain != "month" and last.period.kind in ("quarter", "month", "months")
            ):
                return None
            if last.period.kind == "month":
                return None
            return replace(last, intent="trend", dim="", limit=0, grain=grain)
        case "total":
            return replace(last, intent="total", dim="", grain="", limit=0)
        case "share":
            return replace(last, intent="share")
        case "yoy" | "mom":
            return replace(last, intent=tag)
        case "top":
            return replace(last, intent="top", dim=asked.dim, grain="", limit=asked.limit)
        case _:
            kept = last.intent == "share" or (last.intent in ("top", "bottom") and last.limit > 1)
            intent = last.intent if kept else "group"
            if not kept:
                return replace(last, intent=intent, dim=asked.dim, grain="", limit=0)
            return replace(last, intent=intent, dim=asked.dim, grain="")

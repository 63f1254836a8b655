"""Time phrases: what people say, the SQL condition it means, and how an answer names it.

Owns the resolution of a period without a year by the calendar line of the prompt. Knows
nothing of metrics and tables. Spans are in ``spans``, phrases for days in ``period_days``.
"""

from __future__ import annotations

import datetime
import random

from models.training.period_days import sample_dates, sample_day, sample_days, year_phrase
from models.training.spans import EN_MONTH, NONE, ZH_MONTH, ZH_QUARTER, Kind, Period

__all__ = ["EN_MONTH", "NONE", "Kind", "Period", "month_year", "quarter_year", "sample"]


def quarter_year(today: datetime.date, quarter: int) -> int:
    """Year of a quarter named without one: the latest that is complete."""
    return today.year if quarter < (today.month + 2) // 3 else today.year - 1


def month_year(today: datetime.date, month: int) -> int:
    """Year of a month named without one: the latest that is complete."""
    return today.year if month < today.month else today.year - 1


def sample(
    rng: random.Random, lang: str, today: datetime.date, kinds: tuple[Kind, ...]
) -> tuple[Period, str]:
    """A period of one of ``kinds`` and a phrase for it, as somebody asks on ``today``."""
    weights = {"none": 14, "year": 22, "quarter": 30, "month": 18, "half": 5, "months": 5,
               "years": 4, "days": 4, "day": 4, "dates": 3}  # fmt: skip
    kind = rng.choices(kinds, [weights[k] for k in kinds])[0]
    build = {
        "year": _year, "quarter": _quarter, "month": _month, "half": _half, "months": _months,
        "years": _years, "days": sample_days, "day": sample_day, "dates": sample_dates,
    }  # fmt: skip
    return (NONE, "") if kind == "none" else build[kind](rng, lang, today)


def _any_year(rng: random.Random, today: datetime.date) -> int:
    return today.year - rng.randint(0, 3) if rng.random() < 0.7 else rng.randint(2012, 2032)


def _year(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    if rng.random() < 0.1:
        phrases = {"zh": ("今年以来", "年初至今", "今年到现在", "今年全年", "本年度"),
                   "en": ("so far this year", "year to date")}  # fmt: skip
        return Period("year", today.year), rng.choice(phrases[lang])
    year = _any_year(rng, today)
    phrase = year_phrase(rng, lang, today, year)
    if lang == "zh":
        return Period("year", year), phrase + rng.choice(("", "", "", "", "全年", "整年"))
    relative = phrase.endswith("year")
    return Period("year", year), phrase if relative else rng.choice(("in ", "for ")) + phrase


def _quarter(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    now = (today.month + 2) // 3
    draw = rng.random()
    if draw < 0.2:
        current = Period("quarter", today.year, now)
        period = current if rng.random() < 0.45 else current.previous()
        zh = ("本季度", "这个季度", "本季", "当季", "季初至今") if period is current else (
            "上季度", "上个季度", "上季", "上一季度")  # fmt: skip
        en = ("this quarter",) if period is current else ("last quarter", "in the last quarter")
        return period, rng.choice(zh if lang == "zh" else en)
    quarter = rng.randint(1, 4)
    if lang == "en":
        ordinal = ("first", "second", "third", "fourth")[quarter - 1]
        word = rng.choice((f"Q{quarter}", f"Q{quarter}", f"q{quarter}", f"the {ordinal} quarter"))
    else:
        word = rng.choice((
            f"Q{quarter}", f"Q{quarter}", f"q{quarter}", f"第{ZH_QUARTER[quarter - 1]}季度",
            f"{ZH_QUARTER[quarter - 1]}季度", f"{quarter}季度", f"第{quarter}季度",
            f"{ZH_QUARTER[quarter - 1]}季",
        ))  # fmt: skip
    if draw < 0.55:
        phrase = word if lang == "zh" else f"in {word}"
        return Period("quarter", quarter_year(today, quarter), quarter), phrase
    year = _any_year(rng, today)
    said = year_phrase(rng, lang, today, year)
    period = Period("quarter", year, quarter)
    if lang == "en":
        return period, rng.choice((f"in {word} {said}", f"in {word} of {said}"))
    joiner = "年" if said.isdigit() and not word.lower().startswith("q") else ""
    styles = [said + joiner + word, said + joiner + word, said + joiner + word]
    if rng.random() < 0.3:
        styles = [f"{year}-Q{quarter}", f"{year}Q{quarter}", f"{year}年Q{quarter}"]
    return period, rng.choice(styles)


def _month(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    draw = rng.random()
    if draw < 0.22:
        current = Period("month", today.year, today.month)
        period = current if rng.random() < 0.4 else current.previous()
        zh = ("本月", "这个月", "当月", "月初至今", "本月至今", "这个月到现在") if (
            period is current) else ("上月", "上个月")  # fmt: skip
        en = ("this month", "month to date") if period is current else (
            "last month", "in the last month")  # fmt: skip
        return period, rng.choice(zh if lang == "zh" else en)
    month = rng.randint(1, 12)
    if lang == "en":
        word = rng.choice((EN_MONTH[month - 1], EN_MONTH[month - 1], EN_MONTH[month - 1][:3]))
    else:
        word = rng.choice((f"{month}月", f"{month}月", f"{month}月份", f"{ZH_MONTH[month - 1]}月"))
    if draw < 0.5:
        phrase = word if lang == "zh" else f"in {word}"
        return Period("month", month_year(today, month), month), phrase
    year = _any_year(rng, today)
    said = year_phrase(rng, lang, today, year)
    period = Period("month", year, month)
    if lang == "en":
        return period, f"in {word} {said}" if said.isdigit() else f"in {word} of {said}"
    if said.isdigit():
        return period, rng.choice((f"{year}年{word}", f"{year}-{month:02d}", f"{year}.{month}"))
    return period, said + word


def _half(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    half = rng.randint(1, 2)
    word = f"{'上' if half == 1 else '下'}半年"
    bare = rng.random() < 0.35
    year = quarter_year(today, half * 2) if bare else _any_year(rng, today)
    said = "" if bare else year_phrase(rng, lang, today, year)
    if lang == "en":
        word = rng.choice((f"H{half}", f"the {'first' if half == 1 else 'second'} half"))
        return Period("half", year, half), f"in {word}" if bare else f"in {word} of {said}"
    return Period("half", year, half), said + ("年" if said.isdigit() else "") + word


def _months(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    first = rng.randint(1, 11)
    last = rng.randint(first + 1, min(12, first + 5))
    bare = rng.random() < 0.35
    year = month_year(today, last) if bare else _any_year(rng, today)
    said = "" if bare else year_phrase(rng, lang, today, year)
    period = Period("months", year, first, last)
    if lang == "en":
        span = rng.choice((f"from {EN_MONTH[first - 1]} to {EN_MONTH[last - 1]}",
                           f"between {EN_MONTH[first - 1]} and {EN_MONTH[last - 1]}"))  # fmt: skip
        return period, span if bare else f"{span} {said}"
    span = rng.choice((f"{first}-{last}月", f"{first}到{last}月", f"{first}至{last}月",
                       f"{first}月到{last}月", f"{first}~{last}月"))  # fmt: skip
    return period, said + ("年" if said.isdigit() else "") + span


def _years(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    if rng.random() < 0.35:
        period = Period("years", today.year - 1, year_end=today.year)
        phrases = {"zh": ("这两年", "近两年", "最近两年", "去年和今年"),
                   "en": ("over the last two years", "last year and this year")}  # fmt: skip
        return period, rng.choice(phrases[lang])
    last = _any_year(rng, today)
    first = last - rng.randint(1, 4)
    period = Period("years", first, year_end=last)
    if lang == "en":
        return period, rng.choice((f"from {first} to {last}", f"between {first} and {last}"))
    return period, rng.choice((f"{first}到{last}年", f"{first}-{last}年", f"{first}年至{last}年"))

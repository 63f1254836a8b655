"""Time phrases: what people say, the SQL condition it means, and how an answer names it.

Owns the resolution of a period without a year by the calendar line of the prompt. Knows
nothing of metrics and tables.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal[
    "none", "year", "quarter", "month", "half", "months", "years", "days", "day", "dates"
]
ZH_QUARTER = "一二三四"
ZH_MONTH = ("一", "二", "三", "四", "五", "六", "七", "八", "九", "十", "十一", "十二")
EN_MONTH = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True)
class Period:
    """A span of time. ``part`` is the quarter, month or half (1, 2) within ``year``.

    ``part_end`` closes a range of months; ``year_end`` a range of years; ``days`` counts
    ``unit``s back from ``day``; ``day_end`` closes a range of days.
    """

    kind: Kind = "none"
    year: int = 0
    part: int = 0
    part_end: int = 0
    year_end: int = 0
    day: str = ""
    days: int = 0
    unit: str = "day"
    day_end: str = ""

    def conditions(self) -> list[str]:
        """SQL conditions over the columns date, year, quarter, month."""
        year = f"year={self.year}"
        match self.kind:
            case "none":
                return []
            case "year":
                return [year]
            case "quarter":
                return [year, f"quarter={self.part}"]
            case "month":
                return [year, f"month={self.part}"]
            case "half":
                return [year, f"quarter IN ({'1,2' if self.part == 1 else '3,4'})"]
            case "months":
                return [year, f"month BETWEEN {self.part} AND {self.part_end}"]
            case "years":
                return [f"year BETWEEN {self.year} AND {self.year_end}"]
            case "days":
                return [f"date>DATE('{self.day}','-{self.days} {self.unit}')"]
            case "day":
                return [f"date='{self.day}'"]
            case "dates":
                return [f"date BETWEEN '{self.day}' AND '{self.day_end}'"]

    def label(self, lang: str) -> str:
        """How an answer names the period; empty when there is none."""
        if lang == "en":
            return self._label_en()
        match self.kind:
            case "none":
                return ""
            case "year":
                return f"{self.year}年"
            case "quarter":
                return f"{self.year}年第{self.part}季度"
            case "month":
                return f"{self.year}年{self.part}月"
            case "half":
                return f"{self.year}年{'上' if self.part == 1 else '下'}半年"
            case "months":
                return f"{self.year}年{self.part}-{self.part_end}月"
            case "years":
                return f"{self.year}-{self.year_end}年"
            case "days":
                return f"最近{self.days}{_ZH_UNIT[self.unit]}"
            case "day":
                return self.day
            case "dates":
                return f"{self.day}至{self.day_end}"

    def _label_en(self) -> str:
        match self.kind:
            case "none":
                return ""
            case "year":
                return f"{self.year}"
            case "quarter":
                return f"{self.year} Q{self.part}"
            case "month":
                return f"{EN_MONTH[self.part - 1]} {self.year}"
            case "half":
                return f"H{self.part} {self.year}"
            case "months":
                return f"{self.year} months {self.part}-{self.part_end}"
            case "years":
                return f"{self.year}-{self.year_end}"
            case "days":
                return f"the last {self.days} {self.unit}s"
            case "day":
                return self.day
            case "dates":
                return f"{self.day} to {self.day_end}"

    def year_before(self) -> Period:
        """The same span a year earlier."""
        return replace(self, year=self.year - 1)

    def previous(self) -> Period:
        """The span just before: for a year, quarter, half or month."""
        size = {"quarter": 4, "month": 12, "half": 2}.get(self.kind)
        if size is None:
            return self.year_before()
        if self.part > 1:
            return replace(self, part=self.part - 1)
        return replace(self, year=self.year - 1, part=size)

    def following(self) -> Period:
        """The span just after: for a year, quarter, half or month."""
        size = {"quarter": 4, "month": 12, "half": 2}.get(self.kind)
        if size is None:
            return replace(self, year=self.year + 1)
        if self.part < size:
            return replace(self, part=self.part + 1)
        return replace(self, year=self.year + 1, part=1)

    @property
    def one_year(self) -> bool:
        """Whether all of it lies in one named year."""
        return self.kind in ("year", "quarter", "month", "half", "months")


NONE = Period()
_ZH_UNIT = {"day": "天", "month": "个月", "year": "年"}
_ZH_COUNT = {1: "一", 2: "两", 3: "三", 4: "四", 6: "六"}
_FEASTS = (
    ((11, 11), ("双十一", "双11", "双十一当天", "双11那天"), ("on Singles' Day", "on Double 11")),
    ((6, 18), ("618", "六一八", "618当天", "618大促"), ("on June 18",)),
    ((12, 12), ("双十二", "双12", "双十二当天"), ("on Double 12",)),
    ((1, 1), ("元旦", "元旦那天", "元旦当天"), ("on New Year's Day",)),
    ((5, 1), ("五一", "五一当天", "劳动节"), ("on May 1",)),
    ((10, 1), ("十一当天", "国庆节当天", "国庆当天"), ("on October 1",)),
)
"""((month, day), Chinese words, English words)."""


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
        "years": _years, "days": _days, "day": _day, "dates": _dates,
    }  # fmt: skip
    return (NONE, "") if kind == "none" else build[kind](rng, lang, today)


def _any_year(rng: random.Random, today: datetime.date) -> int:
    return today.year - rng.randint(0, 3) if rng.random() < 0.7 else rng.randint(2012, 2032)


def _year_phrase(rng: random.Random, lang: str, today: datetime.date, year: int) -> str:
    """How somebody names a year; relative words where they fit."""
    relative = {
        "zh": {0: ("今年", "本年", "今年"), 1: ("去年", "上年", "去年"), 2: ("前年",)},
        "en": {0: ("this year",), 1: ("last year",)},
    }[lang].get(today.year - year)
    if relative and rng.random() < 0.45:
        return rng.choice(relative)
    if lang == "en":
        return str(year)
    return rng.choice((f"{year}年", f"{year}年", f"{year}年", str(year), f"{year % 100:02d}年",
                       f"{year}年度"))  # fmt: skip


def _year(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    if rng.random() < 0.1:
        phrases = {"zh": ("今年以来", "年初至今", "今年到现在", "今年全年", "本年度"),
                   "en": ("so far this year", "year to date")}  # fmt: skip
        return Period("year", today.year), rng.choice(phrases[lang])
    year = _any_year(rng, today)
    phrase = _year_phrase(rng, lang, today, year)
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
    said = _year_phrase(rng, lang, today, year)
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
    said = _year_phrase(rng, lang, today, year)
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
    said = "" if bare else _year_phrase(rng, lang, today, year)
    if lang == "en":
        word = rng.choice((f"H{half}", f"the {'first' if half == 1 else 'second'} half"))
        return Period("half", year, half), f"in {word}" if bare else f"in {word} of {said}"
    return Period("half", year, half), said + ("年" if said.isdigit() else "") + word


def _months(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    first = rng.randint(1, 11)
    last = rng.randint(first + 1, min(12, first + 5))
    bare = rng.random() < 0.35
    year = month_year(today, last) if bare else _any_year(rng, today)
    said = "" if bare else _year_phrase(rng, lang, today, year)
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


def _days(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    if rng.random() < 0.35:
        return _units(rng, lang, today)
    days = rng.choice((7, 7, 10, 14, 15, 30, 30, 60, 90, rng.randint(3, 99)))
    period = Period("days", day=today.isoformat(), days=days)
    if lang == "en":
        return period, rng.choice((f"in the last {days} days", f"in the past {days} days"))
    words = [f"最近{days}天", f"近{days}天", f"过去{days}天"]
    if days == 7:
        words += ["近一周", "最近一周", "过去一周"]
    return period, rng.choice(words)


def _units(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    """The last few months or years, counted back from today."""
    count, unit = rng.choice(((1, "month"), (2, "month"), (3, "month"), (3, "month"), (6, "month"),
                              (1, "year"), (3, "year")))  # fmt: skip
    period = Period("days", day=today.isoformat(), days=count, unit=unit)
    if lang == "en":
        some = f"the last {count} {unit}s" if count > 1 else f"the past {unit}"
        return period, rng.choice((f"in {some}", f"over {some}"))
    shown = rng.choice((str(count), _ZH_COUNT[count]))
    said = f"{shown}{_ZH_UNIT[unit]}" if unit == "month" else f"{_ZH_COUNT[count]}年"
    if (count, unit) == (6, "month") and rng.random() < 0.6:
        said = "半年"
    return period, rng.choice(("最近", "近", "过去")) + said


def _day(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    draw = rng.random()
    if draw < 0.5:
        back = rng.choices((0, 1, 2, 3), (32, 40, 22, 6))[0]
        period = Period("day", day=(today - datetime.timedelta(days=back)).isoformat())
        zh = (("今天", "今日", "当天"), ("昨天", "昨日", "昨儿", "昨天一天"), ("前天", "前日"),
              ("大前天",))[back]  # fmt: skip
        en = (("today",), ("yesterday",), ("the day before yesterday",), ("3 days ago",))[back]
        return period, rng.choice(zh if lang == "zh" else en)
    if draw < 0.75:
        return _feast(rng, lang, today)
    day = today - datetime.timedelta(days=rng.randint(1, 1500))
    period = Period("day", day=day.isoformat())
    if lang == "en":
        return period, f"on {day.isoformat()}"
    words = [f"{day.year}年{day.month}月{day.day}日", day.isoformat(), f"{day.year}.{day.month}.{day.day}",  # noqa: E501
             f"{day.year}年{day.month}月{day.day}号"]  # fmt: skip
    if (today - day).days < 365:
        words += [f"{day.month}月{day.day}日", f"{day.month}月{day.day}号"] * 2
    return period, rng.choice(words)


def _feast(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    """A day people name: the latest one that has passed, or that of a named year."""
    (month, day), zh, en = rng.choice(_FEASTS)
    year = today.year if (month, day) <= (today.month, today.day) else today.year - 1
    word = rng.choice(zh if lang == "zh" else en)
    if rng.random() < 0.4:
        year = today.year - rng.randint(1, 2)
        said = _year_phrase(rng, lang, today, year)
        if lang == "en":
            word = f"{word} {said}" if said.isdigit() else f"{word} of {said}"
        else:
            word = said + ("年" if said.isdigit() else "") + word
    return Period("day", day=datetime.date(year, month, day).isoformat()), word


def _dates(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    """A range of days: a week, the first ten days of a month, a holiday, two named days."""
    draw = rng.random()
    monday = today - datetime.timedelta(days=today.weekday())
    if draw < 0.5:
        back = rng.choices((0, 1, 2), (30, 60, 10))[0]
        first = monday - datetime.timedelta(days=7 * back)
        last = today if back == 0 else first + datetime.timedelta(days=6)
        zh = (("本周", "这周", "这个星期", "这一周"), ("上周", "上个星期", "上一周", "上星期"),
              ("上上周",))[back]  # fmt: skip
        en = (("this week",), ("last week",), ("the week before last",))[back]
        return _range(first, last), rng.choice(zh if lang == "zh" else en)
    month = today.replace(day=1) if rng.random() < 0.4 else _month_start(rng, today)
    if draw < 0.62 and lang == "zh":
        year = today.year if today.month > 10 else today.year - 1
        word = rng.choice(("国庆", "国庆期间", "国庆黄金周", "国庆七天", "十一假期"))
        return _range(datetime.date(year, 10, 1), datetime.date(year, 10, 7)), word
    first, last = sorted(rng.sample(range(1, 29), 2))
    start, end = month.replace(day=first), month.replace(day=last)
    if lang == "en":
        return _range(start, end), rng.choice(
            (f"from {start} to {end}", f"between {start} and {end}")
        )
    year = "" if end < today and (today - start).days < 330 else f"{month.year}年"
    return _range(start, end), rng.choice((
        f"{year}{month.month}月{first}日到{month.month}月{last}日",
        f"{year}{month.month}月{first}号到{last}号", f"{year}{month.month}月{first}-{last}日",
        f"{start}到{end}",
    ))  # fmt: skip


def _month_start(rng: random.Random, today: datetime.date) -> datetime.date:
    """The first day of one of the twelve months before this one."""
    months = today.year * 12 + today.month - 1 - rng.randint(1, 11)
    return datetime.date(months // 12, months % 12 + 1, 1)


def _range(first: datetime.date, last: datetime.date) -> Period:
    return Period("dates", day=first.isoformat(), day_end=last.isoformat())

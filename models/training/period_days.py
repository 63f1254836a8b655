"""Phrases for days: 昨天, 双十一, 上周, 近三个月, 10月1日到7日.

Owns spans told by dates or counted back from today. Knows nothing of the periods of a calendar.
"""

from __future__ import annotations

import datetime
import random

from models.training.spans import ZH_UNIT, Period

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


def year_phrase(rng: random.Random, lang: str, today: datetime.date, year: int) -> str:
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


def sample_days(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    """The last few days, months or years."""
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
    said = f"{shown}{ZH_UNIT[unit]}" if unit == "month" else f"{_ZH_COUNT[count]}年"
    if (count, unit) == (6, "month") and rng.random() < 0.6:
        said = "半年"
    return period, rng.choice(("最近", "近", "过去")) + said


def sample_day(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
    """One day: told from today, by its name, or by its date."""
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
        said = year_phrase(rng, lang, today, year)
        if lang == "en":
            word = f"{word} {said}" if said.isdigit() else f"{word} of {said}"
        else:
            word = said + ("年" if said.isdigit() else "") + word
    return Period("day", day=datetime.date(year, month, day).isoformat()), word


def sample_dates(rng: random.Random, lang: str, today: datetime.date) -> tuple[Period, str]:
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

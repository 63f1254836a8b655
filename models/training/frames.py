"""The meaning of a question: a frame, sampled together with the words that express it.

Owns how slots are filled and what a template's words imply. Knows nothing of SQL text.
"""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import dataclass, field

from models.training import free_slots, lexicon, periods
from models.training.periods import Period
from models.training.phrases import say, scope_phrase, tidy
from models.training.templates import Template
from models.training.thresholds import threshold

Filter = tuple[str, str]
SALES_KINDS: tuple[periods.Kind, ...] = (
    "none", "year", "quarter", "month", "half", "months", "years", "days", "day", "dates",
)  # fmt: skip
_PERIOD_KINDS: dict[str, tuple[periods.Kind, ...]] = {
    "yoy": ("year", "quarter", "quarter", "month", "half"),
    "mom": ("quarter", "month"),
    "target": ("year", "quarter", "half"),
    "staff": ("year", "quarter", "month"),
    "customers": ("year", "quarter", "month"),
    "report": ("year", "quarter", "month"),
    "month": ("none", "year", "year", "half", "years", "quarter", "months"),
    "quarter": ("none", "year", "year", "years"),
    "year": ("none", "none", "years"),
}
_DIM_WEIGHTS = {
    "product_name": 34, "region": 20, "category": 15, "channel": 13, "salesperson": 10,
    "customer": 8,
}  # fmt: skip
_SCOPE_WEIGHTS = {
    "region": 42, "category": 26, "channel": 20, "product_name": 4, "salesperson": 4, "customer": 4,
}  # fmt: skip
_NAMED = {
    "region": "region", "category": "category", "channel": "channel", "product": "product_name",
    "person": "salesperson", "customer": "customer", "reason": "reason", "warehouse": "warehouse",
    "department": "department", "level": "level", "city": "city",
}  # fmt: skip
_VARIANT_METRIC = {"amount": "销售额", "orders": "订单数", "quantity": "销量", "units": "销量",
                   "aov": "客单价", "order": "客单价", "price": "均价", "avgprice": "均价"}  # fmt: skip  # noqa: E501
_METRIC_WEIGHTS = {"销售额": 50, "销量": 22, "订单数": 16, "客单价": 8, "均价": 4}
EXCLUDE_SHARE = 0.06
"""Part of the scopes that leave something out instead of naming it."""
_MAY_EXCLUDE = (
    "total", "top", "bottom", "group", "trend", "average", "having", "share", "distinct",
)  # fmt: skip
_WITHOUT = {
    "zh": (("剔除", "的"), ("剔除", "后的"), ("除了", "之外的"), ("除", "以外的"), ("不含", "的"), ("不算", "的"),  # noqa: E501
           ("排除", "的"), ("去掉", "后"), ("扣除", "后的"), ("不包括", "的"), ("刨去", "的"), ("抛开", "的"),  # noqa: E501
           ("除", "外"), ("不计", "的")),
    "en": (("excluding ", ""), ("without ", ""), ("except ", ""), ("not counting ", ""),
           ("leaving out ", ""), ("other than ", "")),
}  # fmt: skip
"""(before, after) the value that does not count."""
_GRAINS = ("month", "quarter", "year")
_SUMMED = re.compile(r"合计|[总共]|贡献|累计|加起来|total|sum|contribut|altogether|combined")
_MEASURED = re.compile(r"\{n\}[个款名家位项种类条笔单大件强]")
_ZH_N = "零一二三四五六七八九十"


@dataclass(frozen=True)
class Frame:
    """What is asked. ``threshold`` is (operator, SQL number); ``values`` belong to ``dim``;
    ``excluded`` are values of columns that do not count."""

    intent: str
    lang: str
    kind: str = ""
    metric: str = "销售额"
    dim: str = ""
    filters: tuple[Filter, ...] = ()
    period: Period = periods.NONE
    grain: str = ""
    limit: int = 0
    threshold: tuple[str, str] = ("", "")
    values: tuple[str, ...] = ()
    chart: str = ""
    dim2: str = ""
    period2: Period = periods.NONE
    excluded: tuple[Filter, ...] = ()

    def filter_value(self, column: str) -> str:
        """The value that ``column`` is restricted to, or ''."""
        return dict(self.filters).get(column, "")


@dataclass
class Filler:
    """Fills the slots of one template; the frame's parts gather in the fields."""

    template: Template
    rng: random.Random
    today: datetime.date
    metric: str = "销售额"
    dim: str = ""
    filters: dict[str, str] = field(default_factory=dict)
    period: Period = periods.NONE
    grain: str = ""
    limit: int = 0
    threshold: tuple[str, str] = ("", "")
    values: list[str] = field(default_factory=list)
    period_kinds: tuple[periods.Kind, ...] = ()
    chart: str = ""
    dim2: str = ""
    period2: Period = periods.NONE
    excluded: tuple[Filter, ...] = ()
    said: dict[str, str] = field(default_factory=dict)

    @property
    def lang(self) -> str:
        """Language of the question."""
        return self.template.lang

    def fill(self) -> tuple[str, Frame]:
        """The question, and what it means."""
        text = self.template.choose(self.rng)
        slots = set(re.findall(r"\{(\w+)\}", text))
        self._imply(text, slots)
        for slot in self._order(slots):
            self.said[slot] = self._word(slot, text, slots)
        filled = re.sub(r"\{(\w+)\}", lambda m: self.said[m[1]], text)
        question, _, answer = filled.partition("=>")
        self.said["answer"] = answer.strip()
        return tidy(question, self.lang), self.frame()

    def frame(self) -> Frame:
        """The frame of what was filled."""
        filters = tuple(
            (column, self.filters[column]) for column in sorted(self.filters, key=lexicon.rank)
        )
        return Frame(
            self.template.intent, self.lang, self.template.tag,
            self.metric, self.dim, filters, self.period, self.grain, self.limit, self.threshold,
            tuple(self.values), self.chart, self.dim2, self.period2, self.excluded,
        )  # fmt: skip

    def _order(self, slots: set[str]) -> list[str]:
        """Slots that restrict others come first; scope and period come last."""
        first = ["grain", "metric", "dim", "dims", "dim2", "value", "value2", *_NAMED]
        last = ["scope", "period", "period2"]
        middle = sorted(slots - set(first) - set(last))
        return [slot for slot in (*first, *middle, *last) if slot in slots]

    def _imply(self, text: str, slots: set[str]) -> None:
        """What the intent, the file's variant and the fixed words say without a slot."""
        intent, variant = self.template.intent, self.template.variant
        if intent == "trend" and variant in ("peak", "low"):
            self.limit = 1
        own = intent in ("returns", "inventory", "staff", "customers", "price", "list")
        for word in () if own else variant.split("_"):
            self.dim = _NAMED.get(word, self.dim)
            self.metric = _VARIANT_METRIC.get(word, self.metric)
        if intent in ("top", "bottom") and "n" not in slots:
            self.limit = 1 if variant.startswith("1") else 10
        if intent in ("top", "bottom") and not self.dim and not slots & {"dim", "dims"}:
            self.dim = "product_name"
        if intent == "having":
            self.threshold = (_operator(text, variant, self.lang), "")
        if "value" in slots and not self.dim:
            self.dim = _pick(self.rng, _scope_weights())
        if "grain" in slots or {"dim", "dims"} & slots or self.dim:
            return
        if intent in ("peak_month", "low_month"):
            self.grain, self.limit = "month", 1
        elif intent == "trend":
            self.grain = variant if variant in _GRAINS else _grain_of(text) or "month"
        elif intent == "sql_python" or (intent == "returns" and "trend" in self.template.tag):
            self.grain = _grain_of(text) or "month"
        elif intent in ("average", "returns"):
            self.grain = _grain_of(text)

    def _word(self, slot: str, text: str, slots: set[str]) -> str:
        rng, lang = self.rng, self.lang
        match slot:
            case "metric":
                additive = self.template.intent in (
                    "yoy",
                    "mom",
                    "share",
                    "average",
                    "sql_python",
                ) or bool(_SUMMED.search(text))
                names = tuple(n for n, m in lexicon.METRICS.items() if m.additive or not additive)
                self.metric = rng.choices(names, [_METRIC_WEIGHTS.get(n, 18) for n in names])[0]
                return rng.choice(lexicon.metric_words(self.metric, lang))
            case "dim" | "dims":
                return self._dim_word(slot)
            case "grain":
                if not self.grain:
                    weights = (60, 40, 0 if self.template.intent == "mom" else 20)
                    self.grain = rng.choices(("month", "quarter", "year"), weights)[0]
                return {"month": "月", "quarter": "季度", "year": "年"}[self.grain] if (
                    lang == "zh") else self.grain  # fmt: skip
            case "dim2":
                self.dim2 = _pick(rng, {c: w for c, w in _dim_weights().items() if c != self.dim})
                word = rng.choice(lexicon.dim_words(self.dim2, lang))
                return word if lang == "zh" else word[0]
            case "period2":
                period, phrase = self.period, ""
                while period == self.period:
                    period, phrase = periods.sample(rng, lang, self.today, (self.period.kind,))
                self.period2 = period
                return phrase
            case "value" | "value2":
                return self._value_word()
            case "n":
                return self._n_word(text)
            case "threshold":
                said, sql = threshold(rng, lang, self.metric)
                self.threshold = (self.threshold[0], sql)
                return said
            case "scope":
                return self._scope(slots)
            case "period":
                return self._period(slots)
            case _ if slot in _NAMED:
                column = _NAMED[slot]
                self.filters[column] = lexicon.member(rng, column)
                return say(rng, column, self.filters[column], lang)
        return free_slots.word(rng, slot, self.template.intent, lang)

    def _dim_word(self, slot: str) -> str:
        if not self.dim:
            weights = _dim_weights()
            if self.template.intent == "share":
                weights |= {"category": 30, "region": 30, "channel": 25, "product_name": 10}
            self.dim = _pick(self.rng, weights)
        word = self.rng.choice(lexicon.dim_words(self.dim, self.lang))
        return word if self.lang == "zh" else word[slot == "dims"]

    def _value_word(self) -> str:
        column = {"staff": "department", "inventory": "warehouse"}.get(self.template.intent)
        if column:
            self.filters[column] = lexicon.member(self.rng, column)
            return say(self.rng, column, self.filters[column], self.lang)
        value = lexicon.member(self.rng, self.dim)
        while value in self.values:
            value = lexicon.member(self.rng, self.dim)
        self.values.append(value)
        return say(self.rng, self.dim, value, self.lang)

    def _n_word(self, text: str) -> str:
        rng = self.rng
        if self.template.intent == "calc":
            return str(rng.randint(2, 10))
        self.limit = rng.choice((2, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7, 8, 9, 10, 10, 10, 12, 15, 20,
                                 rng.randint(2, 50)))  # fmt: skip
        latin = re.search(r"[A-Za-z] ?\{n\}", text)
        if self.lang == "zh" and self.limit <= 10 and not latin and rng.random() < 0.25:
            return "两" if self.limit == 2 and _MEASURED.search(text) else _ZH_N[self.limit]
        return str(self.limit)

    def _scope(self, slots: set[str]) -> str:
        taken = {self.dim, self.dim2, *self.filters, *(_NAMED[s] for s in slots if s in _NAMED)}
        if {"product_name", "category"} & {self.dim, self.dim2}:
            taken.add("product_name")
        count = self.rng.choices((0, 1, 2), (38, 46, 16))[0]
        if self.template.intent == "target":
            taken |= set(_scope_weights()) - {"region"}
        elif self.template.intent == "returns":
            taken |= set(_scope_weights()) - {"product_name"}
        if self.template.intent in _MAY_EXCLUDE and self.rng.random() < EXCLUDE_SHARE:
            return self._without(taken)
        chosen: list[str] = []
        for _ in range(count):
            weights = {c: w for c, w in _scope_weights().items() if c not in taken}
            if not weights:
                break
            chosen.append(_pick(self.rng, weights))
            taken.add(chosen[-1])
            if chosen[-1] in ("product_name", "category"):
                taken |= {"product_name", "category"}
        for column in chosen:
            self.filters[column] = lexicon.member(self.rng, column)
        return scope_phrase(self.rng, {c: self.filters[c] for c in chosen}, self.lang)

    def _without(self, taken: set[str]) -> str:
        """Everything but one value or two: 剔除抖音的, 不含手机和平板的."""
        weights = {c: w for c, w in _scope_weights().items() if c not in taken - {self.dim}}
        if not weights:
            return ""
        column = _pick(self.rng, weights)
        count = 2 if column in lexicon.VALUES and self.rng.random() < 0.2 else 1
        values: dict[str, None] = {}
        while len(values) < count:
            values[lexicon.member(self.rng, column)] = None
        self.excluded = tuple((column, value) for value in values)
        said = (" and " if self.lang == "en" else self.rng.choice("和、")).join(
            say(self.rng, column, value, self.lang) for value in values
        )
        before, after = self.rng.choice(_WITHOUT[self.lang])
        return f"{before}{said}{after}"

    def _period(self, slots: set[str]) -> str:
        kinds = self.period_kinds
        if not kinds:
            kinds = _PERIOD_KINDS.get(self.template.intent, ())
        if "period2" in slots or self.template.intent in ("peak_month", "low_month"):
            kinds = ("year", "quarter", "month", "half")
        if self.template.intent in ("peak_month", "low_month"):
            kinds = ("none", "year", "year", "year", "half")
        if self.template.intent == "mom" and self.grain:
            kinds = ("quarter",) if self.grain == "quarter" else ("month",)
        if not kinds and self.grain:
            kinds = _PERIOD_KINDS[self.grain]
        self.period, phrase = periods.sample(self.rng, self.lang, self.today, kinds or SALES_KINDS)
        return phrase


def _dim_weights() -> dict[str, int]:
    added = set(lexicon.DIMS.maps[0]) - set(lexicon.BASE_DIMS)
    return _DIM_WEIGHTS | dict.fromkeys(sorted(added), 25)


def _scope_weights() -> dict[str, int]:
    added = set(lexicon.DIMS.maps[0]) - set(lexicon.BASE_DIMS)
    return _SCOPE_WEIGHTS | dict.fromkeys(sorted(added), 30)


def _pick(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def _operator(text: str, variant: str, lang: str) -> str:
    """The comparison that a having template asks for."""
    del lang
    if re.search(r"未达|没达|没有达|达不到|没到|没卖到|没做到|不到", text):
        return "<"
    if re.search(r"不低于|不少于|至少|以上|不小于|达到|at least|or more|no less", text):
        return ">="
    if re.search(r"不超过|不高于|至多|以下|不多于|以内|at most|or less|no more than", text):
        return "<="
    under = r"低于|不足|不到|少于|小于|没到|没有?达|未达|没过|没超|under|below|less|fewer"
    return "<" if variant.startswith("under") or re.search(under, text) else ">"


def _grain_of(text: str) -> str:
    if re.search(r"季|quarter", text):
        return "quarter"
    if re.search(r"逐年|每年|历年|按年|各年|年度|yearly|each year|annual", text):
        return "year"
    return "month" if re.search(r"月|month", text) else ""

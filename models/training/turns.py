"""One turn of a dialog: a question, the tool calls that answer it, and the answer.

Owns the pairing of intents with tools. Knows nothing of prompts, tokens and batches.
"""

from __future__ import annotations

import datetime
import functools
import random
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.training import calc, documents, faults, lexicon, noise, results, sql, summaries
from models.training.frames import Filler, Frame
from models.training.free_slots import CURRENCIES
from models.training.lexicon import METRICS
from models.training.phrases import tidy
from models.training.sql import Query
from models.training.summaries import english, place, place_en
from models.training.templates import Template, load

SQL_INTENTS = (
    "total", "top", "bottom", "group", "trend", "peak_month", "low_month", "compare", "yoy", "mom",
    "share", "average", "distinct", "having", "target", "price", "list", "returns", "inventory",
    "staff", "customers",
)  # fmt: skip
TALK_INTENTS = (
    "greet",
    "help",
    "thanks",
    "clarify",
    "out_of_scope",
    "refuse_write",
    "refuse_injection",
)
MISNAMED_SHARE = 0.06
"""Part of the queries tried with a name that the data lacks, where the question names one."""
_PLACES = ("海外", "中南", "华西", "港澳", "浙江", "上海", "四川", "拉美", "苏宁", "快手", "小红书",
           "微店", "冰箱", "相机", "车载", "图书", "美妆", "唯品会", "直营店")  # fmt: skip
TOOL_OF = {"calc": "python_exec", "doc": "search_docs", "http": "http_api", "report": "report"}


@dataclass(frozen=True)
class Call:
    """A tool call and what came back. The model is not trained on a faulty call."""

    name: str
    arguments: Mapping[str, Any]
    content: str
    trained: bool = True


@dataclass(frozen=True)
class Turn:
    """A question, its calls and its answer; ``frame`` is what a follow-up edits."""

    question: str
    calls: tuple[Call, ...]
    answer: str
    intent: str
    frame: Frame | None = None

    @property
    def tools(self) -> frozenset[str]:
        """Names of the tools this turn needs."""
        return frozenset(call.name for call in self.calls)


def make(rng: random.Random, template: Template, today: datetime.date) -> Turn:
    """A turn that starts a topic. Follow-up templates belong to ``followups``."""
    filler = Filler(template, rng, today)
    if template.intent in SQL_INTENTS:
        question, frame = filler.fill()
        return query_turn(rng, question, frame)
    maker = {"calc": _calc, "sql_python": _statistic, "doc": _document, "http": _http,
             "report": _report}.get(template.intent, _talk)  # fmt: skip
    return maker(rng, filler)


def query_turn(rng: random.Random, question: str, frame: Frame, chart: str | None = None) -> Turn:
    """A question that one query answers; ``chart`` overrules the query's own."""
    query = sql.build(frame)
    wish, kind = "", query.chart if chart is None else chart
    if chart is None:
        wish, kind = noise.chart_wish(rng, frame.lang, query.chart)
    verbatim = has_names(frame)
    asked = noise.disturb(rng, question + wish, frame.lang, verbatim=verbatim)
    result = results.invent(rng, frame, query)
    call = sql_call(query.sql, kind, result.content)
    calls = (call,)
    answer = summaries.answer(rng, frame, query, result)
    turn = Turn(asked, calls, answer, frame.intent, frame)
    if rng.random() < 0.03:
        return replace(turn, calls=(faults.faulty(rng, query.sql, kind, sql_call), call))
    if rng.random() < MISNAMED_SHARE:
        return _misnamed(rng, turn)
    return turn


def _misnamed(rng: random.Random, turn: Turn) -> Turn:
    """The turn asked with a name or value that the data lacks, where it names one.

    A name is asked for again by the first near one; for one of a few values the user is asked.
    """
    assert turn.frame is not None
    for column, value in turn.frame.filters:
        title = lexicon.DIMS[column].alias if column in lexicon.DIMS else ""
        if not title or value not in turn.question:
            continue
        few = column in lexicon.VALUES
        wrong = rng.choice(_PLACES) if few else faults.misnamed(rng, value)
        call = turn.calls[0]
        tried = str(call.arguments["sql"]).replace(f"'{value}'", f"'{wrong}'")
        if wrong in lexicon.VALUES.get(column, ()) or wrong == value:
            continue
        asked = turn.question.replace(value, wrong)
        first = Call(call.name, dict(call.arguments) | {"sql": tried}, "")
        if not few:
            first = replace(first, content=faults.near_names(rng, title, wrong, value))
            return replace(turn, question=asked, calls=(first, call))
        values = tuple(lexicon.VALUES[column])
        first = replace(first, content=faults.listed(title, wrong, values))
        shown = "、".join(sorted(values))
        answer = f"{title}里没有“{wrong}”，有：{shown}。请问要看哪一个？"
        if turn.frame.lang == "en":
            answer = f"There is no {wrong}; the data has {shown}. Which one do you mean?"
        return Turn(asked, (first,), answer, turn.intent)
    return turn


def joined(rng: random.Random, first: Turn, second: Turn, lang: str) -> Turn:
    """One message that asks both; the calls one after the other, the answers in one."""
    between = {
        "zh": ("，另外", "，还有", "；", "，顺便看下", "，再查下", "？还有", "？另外", "，以及",
               "，然后", "。", "？", "，同时"),
        "en": (", and ", "; also ", ". And ", "? Also, ", ", plus "),
    }[lang]  # fmt: skip
    opening = re.sub(r"[？?。.！!～~]+$", "", first.question)
    question = opening + rng.choice(between) + second.question.lstrip()
    gap = " " if lang == "en" else ""
    answer = first.answer + gap + second.answer
    return Turn(question, (*first.calls, *second.calls), answer, first.intent)


def has_names(frame: Frame) -> bool:
    """Whether the question holds names that must be copied letter by letter."""
    free = ("product_name", "customer", "salesperson", "city")
    named = any(c in free for c, _ in (*frame.filters, *frame.excluded))
    return named or bool(frame.values and frame.dim in free)


def sql_call(text: str, chart: str, content: str, *, trained: bool = True) -> Call:
    """A call of sql_query, arguments in the order sql, chart."""
    arguments = {"sql": text} | ({"chart": chart} if chart else {})
    return Call("sql_query", arguments, content, trained)


def _talk(rng: random.Random, filler: Filler) -> Turn:
    question, frame = filler.fill()
    del frame
    intent, lang = filler.template.intent, filler.lang
    answer = filler.said.get("answer", "") or rng.choice(GENERAL_ANSWERS[lang][intent])
    asked = noise.disturb(rng, question, lang, verbatim=False)
    return Turn(asked, (), tidy(answer, lang), intent)


def plain(text: str) -> str:
    """Text without marks, spaces, case and width."""
    text = unicodedata.normalize("NFKC", text).lower()
    return re.sub(r"[\W_]+", "", text)


@functools.cache
def kept_for_evaluation() -> frozenset[str]:
    """What held-out talk phrasings say: a choice in a trained one may come to the same words."""
    rng = random.Random(0)
    held = [t for t in load() if t.held_out and t.intent in TALK_INTENTS]
    return frozenset(plain(t.choose(rng).partition("=>")[0]) for t in held for _ in range(40))


def _calc(rng: random.Random, filler: Filler) -> Turn:
    template, lang = filler.template, filler.lang
    question, code, written = "", "", ""
    while not code or not calc.usable(code):
        filler.said.clear()
        question, _ = filler.fill()
        code = calc.code_of(rng, template.tag, question, filler.said)
    if "expr" in filler.said:
        written = calc.written(rng, filler.said, lang)
        question = question.replace(filler.said["expr"], written)
    printed = calc.run(code)
    percent = "%" if template.tag in ("growth", "ratio") else ""
    if lang == "en":
        answer = rng.choice(
            (f"The result is {printed}{percent}.", f"It comes to {printed}{percent}.")
        )
    else:
        answer = rng.choice((f"结果是{printed}{percent}。", f"计算结果是{printed}{percent}。"))
    asked = noise.disturb(rng, question, lang, verbatim=True)
    return Turn(asked, (Call("python_exec", {"code": code}, printed),), answer, "calc")


def _statistic(rng: random.Random, filler: Filler) -> Turn:
    name = calc.statistic_of(filler.template.tag)
    while True:
        question, frame = filler.fill()
        query = sql.build(frame)
        result = results.invent(rng, frame, query)
        if len(result.rows) >= 3 or not result.rows:
            break
        filler.filters.clear()
        filler.grain = filler.dim = ""
    first = sql_call(query.sql, "", result.content)
    asked = noise.disturb(rng, question, frame.lang, verbatim=has_names(frame))
    if not result.rows:
        return Turn(asked, (first,), summaries.nothing(rng, frame), "sql_python")
    alias = METRICS[frame.metric].alias
    code = calc.STATISTICS[name].format(c=alias)
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    printed = calc.run(code, [rows])
    unit = {"growth": "%", "cagr": "%"}.get(name, "")
    if not unit and name not in ("cv", "gap", "pareto"):
        unit = summaries.unit(alias, frame.lang)
    title = calc.TITLES[name][0 if frame.lang == "zh" else 1]
    if frame.lang == "zh":
        answer = f"{place(frame)}{_steps(frame)}{alias}的{title}是{printed}{unit}。"
    else:
        answer = f"The {title} of {english(alias)}{place_en(frame)} is {printed}{unit}."
    second = Call("python_exec", {"code": code}, printed)
    return Turn(asked, (first, second), answer, "sql_python")


def _steps(frame: Frame) -> str:
    if frame.dim:
        return f"各{sql.DIMS[frame.dim].alias}"
    return {"month": "每月", "quarter": "每季度", "year": "每年"}.get(frame.grain, "")


def _document(rng: random.Random, filler: Filler) -> Turn:
    lang = filler.lang
    passage, topic = documents.asked(rng, lang)
    question, _ = filler.fill()
    spot = filler.template.choose(rng).replace("{topic}", topic)
    question = tidy(spot, lang)
    core = re.sub(r"[？?。！!]+$", "", question)
    call = Call("search_docs", {"query": core}, documents.found(rng, passage))
    answer = documents.quoted(rng, passage, lang)
    if rng.random() < 0.06:
        call, answer = replace(call, content=documents.NOTHING), documents.not_found(rng, lang)
    if rng.random() < 0.35:
        question = _polite(rng, question, lang)
    return Turn(question, (call,), answer, "doc")


def _polite(rng: random.Random, question: str, lang: str) -> str:
    if lang == "en":
        return rng.choice(("hi, ", "@Hutong ", "")) + question
    return rng.choice(("@胡同 ", "你好，", "")) + question + (
        rng.choice(("？", "", "，谢谢")) if question[-1:] not in "？?" else "")  # fmt: skip


def _http(rng: random.Random, filler: Filler) -> Turn:
    lang = filler.lang
    question, _ = filler.fill()
    said = filler.said
    if "topic" in said:
        return _http_topic(rng, filler, question)
    if "order_id" in said:
        name, params = "logistics", {"order_id": said["order_id"]}
    elif "approval_id" in said:
        name, params = "approval", {"approval_id": said["approval_id"]}
    else:
        name, params = "exchange_rate", {"currency": _code(said["currency"])}
    return _api_turn(rng, question, name, params, lang)


def _code(word: str) -> str:
    return next(c for c, (zh, en) in CURRENCIES.items() if word in zh or word in en)


def _http_topic(rng: random.Random, filler: Filler, question: str) -> Turn:
    lang = filler.lang
    kind = rng.choice(("logistics", "approval", "exchange_rate"))
    number = str(rng.randint(100001, 399999))
    params = {"logistics": {"order_id": number}, "approval": {"approval_id": f"AP{number}"},
              "exchange_rate": {"currency": rng.choice(tuple(CURRENCIES))}}[kind]  # fmt: skip
    value = next(iter(params.values()))
    zh, en = (rng.choice(words) for words in CURRENCIES.get(value, (("",), ("",))))
    topic = {
        "logistics": (f"订单{value}的物流", f"the parcel of order {value}"),
        "approval": (f"审批单{value}的进度", f"the state of approval {value}"),
        "exchange_rate": (f"{zh}汇率", f"the exchange rate of the {en}"),
    }[kind][0 if lang == "zh" else 1]
    chosen = filler.template.choose(rng).replace("{topic}", topic)
    del question
    return _api_turn(rng, tidy(chosen, lang), kind, params, lang)


def _api_turn(
    rng: random.Random, question: str, name: str, params: dict[str, str], lang: str
) -> Turn:
    value = next(iter(params.values()))
    state = rng.choice(("运输中", "已签收", "已发货", "派送中") if name == "logistics" else (
        "审批中", "已通过", "已驳回"))  # fmt: skip
    rate = f"{rng.uniform(0.04, 12):.4f}"
    content = f'{{"rate": {rate}}}' if name == "exchange_rate" else f'{{"status": "{state}"}}'
    fact = rate if name == "exchange_rate" else state
    if lang == "zh":
        answer = {"logistics": f"订单{value}当前状态：{fact}。", "approval": f"审批{value}当前状态：{fact}。",  # noqa: E501
                  "exchange_rate": f"{value}兑人民币汇率为{fact}。"}[name]  # fmt: skip
    else:
        answer = f"{value}: {fact}."
    call = Call("http_api", {"name": name, "params": params}, content)
    return Turn(noise.disturb(rng, question, lang, verbatim=True), (call,), answer, "http")


def _report(rng: random.Random, filler: Filler) -> Turn:
    question, frame = filler.fill()
    said, lang = filler.said, filler.lang
    if "topic" in said:
        from models.training.free_slots import REPORTS

        said["report"] = rng.choice(REPORTS[lang])
        question = tidy(filler.template.choose(rng).replace("{topic}", said["report"]).replace(
            "{period}", said.get("period", "")), lang)  # fmt: skip
    period = frame.period
    text = {"year": f"{period.year}", "quarter": f"{period.year}-Q{period.part}",
            "month": f"{period.year}-{period.part:02d}"}.get(period.kind, "")  # fmt: skip
    name = said.get("report", "经营报告")
    call = Call("report", {"name": name, "period": text}, f"已生成：{name}-{text or '最新'}.md")
    when = period.label(lang)
    answer = (
        f"{when}{name}已生成。"
        if lang == "zh"
        else f"The {name} is ready{f' for {when}' if when else ''}."
    )
    return Turn(noise.disturb(rng, question, lang, verbatim=True), (call,), answer, "report")


GENERAL_ANSWERS: dict[str, dict[str, tuple[str, ...]]] = {
    "zh": {
        "greet": ("您好，我是胡同，可以帮您查销售、库存、退货等数据，也能查公司文档。", "您好，请问要查什么数据或制度？"),  # noqa: E501
        "help": ("我可以查销售、目标、退货、库存、人员数据，画图，做计算，也能查公司制度和产品文档。",),  # noqa: E501
        "thanks": ("不客气，有需要随时找我。", "不用谢。"),
        "clarify": ("请问您想看哪个指标、哪段时间？例如“2024年Q3华东区销售额”。", "请补充一下指标、时间或范围。"),  # noqa: E501
        "out_of_scope": ("抱歉，这不在我的范围内，我只能查公司的数据和文档。", "抱歉，我只能回答公司数据和制度方面的问题。"),  # noqa: E501
        "refuse_write": ("抱歉，我只能查询，不能修改或删除数据。", "我只有只读权限，不能改动数据。"),  # noqa: E501
        "refuse_injection": ("抱歉，这个请求我不能执行，我只能查公司的数据和文档。", "抱歉，我不能这样做。"),  # noqa: E501
    },
    "en": {
        "greet": ("Hello, I'm Hutong. Ask me about sales, stock, returns or company documents.",),
        "help": ("I can query sales, targets, returns, stock and staff, calculate, and search documents.",),  # noqa: E501
        "thanks": ("You're welcome.",),
        "clarify": ("Which figure and which period do you mean?",),
        "out_of_scope": ("Sorry, I can only answer from the company's data and documents.",),
        "refuse_write": ("Sorry, I can only read data, not change it.",),
        "refuse_injection": ("Sorry, I can't do that.",),
    },
}  # fmt: skip


__all__ = ["SQL_INTENTS", "TALK_INTENTS", "Call", "Query", "Turn", "make", "query_turn", "sql_call"]

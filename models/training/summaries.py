"""Final answers: one sentence that names period, scope and metric and copies one or two facts.

Owns the wording of answers about query results. Figures come only from the result's cells.
"""

from __future__ import annotations

import random

from models.training import lexicon
from models.training.frames import Frame
from models.training.results import Result
from models.training.sql import Query

_UNITS = {"销售额": "元", "销量": "件", "订单数": "单", "客单价": "元", "均价": "元", "退货数量": "件",  # noqa: E501
          "人数": "人", "客户数": "家", "库存": "件", "安全库存": "件", "目标": "元", "实际": "元",
          "平均销售额": "元", "平均销量": "件", "平均订单数": "单", "金额": "元", "占比": "%", "完成率": "%",  # noqa: E501
          "同比": "%", "环比": "%", "退货率": "%", "产品数": "个", "区域数": "个", "品类数": "个",
          "渠道数": "个", "销售员数": "人"}  # fmt: skip


_SAID_ORDER = ("region", "channel", "customer", "salesperson", "category", "product_name", "reason",
               "warehouse", "department", "level", "city")  # fmt: skip


_EN = {
    "销售额": "sales", "销量": "units sold", "订单数": "number of orders",
    "客单价": "average order value", "均价": "average price", "退货数量": "units returned",
    "人数": "number of people", "客户数": "number of customers", "库存": "stock",
    "安全库存": "safety stock", "目标": "target", "实际": "actual sales", "占比": "share",
    "完成率": "completion rate", "退货率": "return rate", "金额": "amount",
}  # fmt: skip
_EN_COUNTS = {"产品数": "products", "区域数": "regions", "品类数": "categories",
              "渠道数": "channels", "客户数": "customers", "销售员数": "salespeople"}  # fmt: skip


def english(alias: str) -> str:
    """What an English answer calls a result column."""
    if alias in _EN:
        return _EN[alias]
    if alias in _EN_COUNTS:
        return f"number of {_EN_COUNTS[alias]}"
    if alias in lexicon.METRICS:
        return lexicon.METRICS[alias].en[0]
    if alias.startswith("平均"):
        return f"average {english(alias[2:]).removeprefix('average ')}"
    dims = {f"{dim.alias}数": dim.en[0][1] for dim in lexicon.DIMS.values()}
    return f"number of {dims[alias]}" if alias in dims else alias


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _said_rank(column: str) -> int:
    return _SAID_ORDER.index(column) if column in _SAID_ORDER else len(_SAID_ORDER)


def scope(frame: Frame, lang: str) -> str:
    """Filters in words: 华东区手机; the bare values in English."""
    words = []
    for column, value in sorted(frame.filters, key=lambda item: _said_rank(item[0])):
        known = value in lexicon.BASE_VALUES.get(column, ())
        word = f"{value}区" if column == "region" and known else f"{value}渠道" if (
            column == "channel" and known and value != "门店") else value  # fmt: skip
        words.append(word if lang == "zh" else value)
    if frame.excluded:
        left_out = [value for _, value in frame.excluded]
        words.append(
            f"除{'、'.join(left_out)}外" if lang == "zh" else f"all but {' and '.join(left_out)}"
        )
    return "".join(words) if lang == "zh" else ", ".join(words)


def place(frame: Frame) -> str:
    """Period and scope in front of a Chinese sentence."""
    if frame.period2.kind != "none":
        return scope(frame, "zh")
    return frame.period.label("zh") + scope(frame, "zh")


def place_en(frame: Frame) -> str:
    """`` for 华东 in 2024 Q3``, empty when nothing restricts."""
    words, period = scope(frame, "en"), frame.period.label("en")
    text = f" for {words}" if words else ""
    if not period or frame.period2.kind != "none":
        return text
    joiner = "on" if frame.period.kind == "day" else "over" if frame.period.kind == "days" else "in"
    return f"{text} {joiner} {period}"


def unit(alias: str, lang: str) -> str:
    """The unit written after a figure: percent always, others in Chinese only."""
    found = _UNITS.get(alias, "")
    return found if lang == "zh" or found == "%" else ""


def answer(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    """One sentence about the result."""
    if not result.rows or all(value is None for value in result.rows[0]):
        return nothing(rng, frame)
    if frame.lang == "en":
        return _english(rng, frame, query, result)
    writer = {"one": _one, "best": _best, "time": _time, "names": _names, "orders": _orders,
              "people": _people, "person": _person}.get(query.shape, _rows)  # fmt: skip
    return writer(rng, frame, query, result)


def nothing(rng: random.Random, frame: Frame) -> str:
    """The answer to an empty result."""
    if frame.lang == "en":
        return rng.choice(
            (f"No matching data{place_en(frame)}.", f"There is no data{place_en(frame)}.")
        )
    where = place(frame)
    return rng.choice((f"{where}没有符合条件的数据。", f"没有查到{where}符合条件的数据。"))


def _cell(query: Query, row: tuple[str, ...], index: int, lang: str = "zh") -> str:
    return row[index] + unit(query.columns[index].alias, lang)


def _one(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    row, where = result.cells[0], place(frame)
    names = [column.alias for column in query.columns]
    if frame.intent == "share" and frame.values:
        return f"{where}{frame.values[0]}的{names[0]}为{_cell(query, row, 0)}，占比{_cell(query, row, 1)}。"  # noqa: E501
    if len(row) == 1:
        joiner = rng.choice(("为", "是", "共" if names[0][0] not in "均平客" else "为"))
        return f"{where}{names[0]}{joiner}{_cell(query, row, 0)}。"
    if names[-1] in ("同比", "环比"):
        before = "去年同期" if names[-1] == "同比" else "上期"
        money = [cell + unit(frame.metric, "zh") for cell in row[:2]]
        return (f"{where}{frame.metric}为{money[0]}，{before}{money[1]}，"
                f"{names[-1]}{change(row[2])}。")  # fmt: skip
    first, second = _cell(query, row, 0), _cell(query, row, 1)
    if names[0] == "目标":
        return f"{where}销售目标{first}，实际{second}，完成率{row[2]}%。"
    return f"{where}{names[0]}{first}，{names[1]}{second}，{names[2]}{row[2]}%。"


def change(rate: str) -> str:
    """增长3.5% / 下降3.5%, the figure copied."""
    if rate.startswith("-"):
        return f"下降{rate[1:]}%"
    return f"增长{rate}%"


def _rows(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    first, where = result.cells[0], place(frame)
    names = [column.alias for column in query.columns]
    count = len(result.rows)
    if frame.dim2:
        key = f"{names[0]}{first[0]}中{first[1]}"
        return f"{where}共{count}行结果，{key}的{names[2]}为{_cell(query, first, 2)}。"
    if names[-1] in ("同比", "环比"):
        return (
            f"{where}各{names[0]}{frame.metric}{names[-1]}中，{first[0]}最高，{change(first[-1])}。"
        )
    if names[-1] == "完成率":
        return f"{where}{count}个区域中，完成率最高的是{first[0]}，为{first[-1]}%。"
    if names[-1] == "占比":
        return rng.choice((
            f"{where}{names[1]}中{first[0]}占比最高，为{first[2]}%。",
            f"{where}各{names[0]}{names[1]}占比最高的是{first[0]}，占{first[2]}%。",
        ))  # fmt: skip
    if len(names) == 4:
        return f"共{count}条低于安全库存，最少的是{first[0]}（{first[1]}），库存{first[2]}。"
    value, name, title = _cell(query, first, 1), first[0], names[1]
    if frame.intent == "compare":
        other = result.cells[-1]
        return f"{where}{name}的{title}为{value}，{other[0]}为{_cell(query, other, 1)}。"
    if frame.intent == "having":
        return f"{where}共{count}个{names[0]}符合条件，最高的是{name}，{title}{value}。"
    low = " ASC" in query.sql
    if " LIMIT 1" in query.sql and frame.limit <= 1:
        return f"{where}{title}{'最低' if low else '最高'}的{names[0]}是{name}，{title}{value}。"
    if " LIMIT " in query.sql:
        span = f"{title}最低的{count}个{names[0]}" if low else f"{title}前{count}的{names[0]}"
        rank = "最低" if low else "第1名"
        return f"{where}{span}中，{rank}是{name}，{title}{value}。"
    return rng.choice((
        f"{where}各{names[0]}中{name}的{title}最高，为{value}。",
        f"{where}{count}个{names[0]}里，{title}最高的是{name}，{value}。",
    ))  # fmt: skip


def step(cell: str, ref: str) -> str:
    """A time step in words: 3月, 第2季度, 2024年."""
    return {"month": f"{cell}月", "quarter": f"第{cell}季度", "year": f"{cell}年"}.get(ref, cell)


def _time(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    ref, title = query.columns[0].ref, query.columns[1].alias
    where = place(frame)
    first, last = result.cells[0], result.cells[-1]
    del rng
    if result.cut:
        return f"{where}{title}共{len(result.rows)}个时间点，第1个是{step(first[0], ref)}，为{_cell(query, first, 1)}。"  # noqa: E501
    return (f"{where}{title}从{step(first[0], ref)}的{_cell(query, first, 1)}到{step(last[0], ref)}的"  # noqa: E501
            f"{_cell(query, last, 1)}，共{len(result.rows)}个时间点。")  # fmt: skip


def _best(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    del rng
    row, ref = result.cells[0], query.columns[0].ref
    word = "最低" if " ASC " in query.sql else "最高"
    title = query.columns[1].alias
    return f"{place(frame)}{title}{word}的是{step(row[0], ref)}，为{_cell(query, row, 1)}。"


def _names(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    del rng
    names = [row[0] for row in result.cells]
    title = query.columns[0].alias
    if len(names) > 5:
        return f"{place(frame)}共有{len(names)}个{title}，包括{'、'.join(names[:3])}等。"
    return f"{place(frame)}共有{len(names)}个{title}：{'、'.join(names)}。"


def _orders(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    del rng
    first, count = result.cells[0], len(result.rows)
    word = {"biggest": "金额最大", "smallest": "金额最小"}.get(frame.kind, "最近")
    return f"{place(frame)}{word}的{count}笔订单中，第1笔是{first[0]}的{first[1]}，金额{_cell(query, first, 4)}。"  # noqa: E501


def _people(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    del rng
    names = [row[0] for row in result.cells]
    word = "位员工" if query.columns[0].alias == "姓名" else "家客户"
    if len(names) > 4:
        return f"{place(frame)}共{len(names)}{word}，包括{'、'.join(names[:3])}等。"
    return f"{place(frame)}共{len(names)}{word}：{'、'.join(names)}。"


def _person(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    del rng, frame
    row = result.cells[0]
    if query.columns[0].alias == "姓名":
        return f"{row[0]}在{row[1]}，入职日期是{row[2]}。"
    return f"{row[0]}是{row[1]}客户，在{row[2]}，注册日期是{row[3]}。"


def _english(rng: random.Random, frame: Frame, query: Query, result: Result) -> str:
    first, last, where = result.cells[0], result.cells[-1], place_en(frame)
    names = [column.alias for column in query.columns]
    said = [english(name) for name in names]
    count = len(result.rows)
    if query.shape == "one":
        if frame.intent == "share":
            return f"{frame.values[0]} has {first[0]}, a share of {first[1]}%{where}."
        if len(first) == 1:
            return f"{_capital(said[0])}{where}: {first[0]}."
        if names[-1] in ("同比", "环比"):
            return f"{_capital(english(frame.metric))}{where}: {first[0]} against {first[1]} before, a change of {first[2]}%."  # noqa: E501
        return (f"{_capital(said[0])} {first[0]}, {said[1]} {first[1]}, {said[2]} {first[2]}%"
                f"{where}.")  # fmt: skip
    if query.shape == "time":
        if result.cut:
            return f"{_capital(said[1])}{where} has {count} points; the first is {first[1]} ({first[0]})."  # noqa: E501
        return (f"{_capital(said[1])}{where} went from {first[1]} ({first[0]}) to {last[1]} "
                f"({last[0]}).")  # fmt: skip
    if query.shape in ("names", "people"):
        return f"There are {count}{where}, such as {', '.join(row[0] for row in result.cells[:3])}."
    if query.shape == "person":
        return f"{first[0]}: {', '.join(first[1:])}."
    if query.shape == "orders":
        return f"{count} orders{where}; the first is {first[1]} on {first[0]}, {first[4]}."
    if frame.intent == "compare":
        return f"{first[0]} has {first[1]} and {last[0]} has {last[1]}{where}."
    if names[-1] in ("同比", "环比", "占比", "完成率"):
        return f"Of {count} rows{where}, {first[0]} is first with {first[-1]}%."
    if frame.dim2 or len(names) == 4:
        return f"{count} rows{where}; the first is {first[0]}, {first[1]}, {first[2]}."
    word = "lowest" if " ASC" in query.sql else "highest"
    return rng.choice((
        f"Of {count} rows{where}, {first[0]} has the {word} {said[1]}: {first[1]}.",
        f"{first[0]} has the {word} {said[1]}{where}, {first[1]} ({count} rows).",
    ))  # fmt: skip

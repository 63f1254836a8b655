"""Slots that no query needs: numbers, expressions, names of reports, parcels and currencies.

Owns their values. Knows nothing of what is done with them.
"""

from __future__ import annotations

import random

from models.training.world_words import WORLD

ZH_OPERATORS = {"+": ("加", "加上"), "-": ("减", "减去"), "*": ("乘以", "乘"), "/": ("除以",)}
EN_OPERATORS = {"+": ("plus",), "-": ("minus",), "*": ("times",), "/": ("divided by", "over")}
REPORTS = {
    "zh": ("销售周报", "销售月报", "销售季报", "经营报告", "周报", "月报", "季报", "年报", "区域销售报告",  # noqa: E501
           "库存报告", "退货报告", "业绩报告", "经营分析报告", "日报", "销售日报", "业务周报", "业务月报", "月度报告",  # noqa: E501
           "季度报告", "年度报告", "销售年报", "经营分析"),
    "en": ("sales report", "weekly report", "monthly report", "business report", "stock report",
           "returns report", "quarterly report", "daily report", "annual report",
           "weekly sales report", "monthly sales report"),
}  # fmt: skip
CURRENCIES = {
    "USD": (("美元", "美金"), ("US dollar", "dollar")), "EUR": (("欧元",), ("euro",)),
    "JPY": (("日元", "日币"), ("Japanese yen", "yen")), "GBP": (("英镑",), ("pound", "British pound")),  # noqa: E501
    "HKD": (("港币", "港元"), ("Hong Kong dollar",)), "KRW": (("韩元", "韩币"), ("Korean won", "won")),  # noqa: E501
    "AUD": (("澳元",), ("Australian dollar",)), "SGD": (("新加坡元", "新币"), ("Singapore dollar",)),  # noqa: E501
    "CAD": (("加元", "加币"), ("Canadian dollar",)), "CHF": (("瑞士法郎",), ("Swiss franc",)),
    "THB": (("泰铢",), ("Thai baht", "baht")),
}  # fmt: skip


def number(rng: random.Random) -> str:
    """A figure as people type it into a calculation."""
    return rng.choice((
        str(rng.randint(1, 99)), str(rng.randint(10, 9999)), str(rng.randint(100, 999999)),
        str(rng.randint(1, 99) * 100), f"{rng.randint(0, 99)}.{rng.randint(1, 9)}",
        f"{rng.randint(0, 9999)}.{rng.randint(1, 99):02d}", f"0.{rng.randint(1, 99):02d}",
    ))  # fmt: skip


def expression(rng: random.Random, depth: int = 0) -> str:
    """Arithmetic in Python's notation."""
    count = rng.choices((2, 3, 4), (50, 35, 15))[0]
    text = _operand(rng, depth)
    for _ in range(count - 1):
        operator = rng.choice("++--***/")
        operand = _operand(rng, depth)
        if operator == "/" and (operand[0] == "(" or float(operand) == 0):
            operand = str(rng.randint(2, 99))
        text += operator + operand
    return text


def _operand(rng: random.Random, depth: int) -> str:
    if depth == 0 and rng.random() < 0.22:
        return f"({expression(rng, 1)})"
    return number(rng)


def as_written(rng: random.Random, expression: str, lang: str) -> str:
    """An expression the way somebody writes it: symbols, spaces, or words."""
    style = rng.random()
    if style < 0.12 and "(" not in expression:
        words = ZH_OPERATORS if lang == "zh" else EN_OPERATORS
        gap = " " if lang == "en" else ""
        return "".join(gap + rng.choice(words[c]) + gap if c in words else c for c in expression)
    if style < 0.3:
        expression = expression.replace("*", "×").replace("/", "÷")
    if style > 0.85:
        expression = "".join(f" {c} " if c in "+-*/×÷" else c for c in expression)
    if lang == "zh" and rng.random() < 0.15:
        expression = expression.replace("(", "（").replace(")", "）")
    return expression


def word(rng: random.Random, slot: str, intent: str, lang: str) -> str:
    """A value for a free slot. Raises KeyError for a slot nobody knows."""
    del intent
    match slot:
        case "x" | "y" | "z":
            return number(rng)
        case "p":
            return rng.choice(
                (str(rng.randint(1, 99)), f"{rng.randint(1, 20)}.{rng.randint(1, 9)}")
            )
        case "d":
            return str(rng.choice((rng.randint(1, 9), rng.randint(51, 99))))
        case "expr":
            return expression(rng)
        case "report":
            return rng.choice(REPORTS[lang])
        case "order_id":
            return str(rng.randint(100001, 399999))
        case "approval_id":
            return rng.choice(("AP", "SP", "OA", "")) + str(rng.randint(10000, 20241231999))
        case "currency":
            return rng.choice(rng.choice(tuple(CURRENCIES.values()))[0 if lang == "zh" else 1])
        case "topic":
            return ""
    return rng.choice(WORLD[slot.rstrip("2")][lang])

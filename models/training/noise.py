"""How people really type: mentions, courtesy, full width, case, stray marks, wishes for a chart.

Owns changes that leave the meaning as it is, and the chart wish, which changes one argument.
"""

from __future__ import annotations

import random

from models.training import lexicon

_ZH_BEFORE = (
    "请问", "请问一下", "帮我看看", "帮我查下", "麻烦", "你好，", "您好，", "@胡同 ", "@胡同", "胡同，", "在吗，",  # noqa: E501
    "老板要，", "急，", "那个，", "对了，", "辛苦，", "hi，", "小胡，", "嗨，", "再问下，", "想问问，",  # noqa: E501
)  # fmt: skip
_ZH_AFTER = (
    "？", "?", "。", "呢", "呀", "啊", "谢谢", "，谢谢", "！", "～", "~", "，急", "，多谢", " 谢谢", "吧", "哈",  # noqa: E501
    "，辛苦了", "[抱拳]", "🙏", "。。",
)  # fmt: skip
_EN_BEFORE = ("hi, ", "hello, ", "hey ", "please, ", "@Hutong ", "ok, ", "so ", "quick one: ")
_EN_AFTER = ("?", ".", " please", ", thanks", " thx", "!", " asap")
CHART_WISHES = {
    "zh": {
        "none": ("，不要图", "，不用画图", "，别画图", "，不要图表", "（不要图）", "，只要数字"),
        "line": ("，用折线图", "，画折线图", "，画成折线图", "，要折线图"),
        "bar": ("，用柱状图", "，画柱状图", "，画成柱状图", "，要条形图"),
        "share": ("，用饼图", "，画饼图", "，画成占比图"),
    },
    "en": {
        "none": (", no chart", " without a chart", ", numbers only"),
        "line": (" as a line chart", ", line chart please"),
        "bar": (" as a bar chart", ", bar chart please"),
        "share": (" as a pie chart",),
    },
}
_FULL_WIDTH = {ord(char): ord(char) + 0xFEE0 for char in "0123456789QqTOPtop"}


def disturb(rng: random.Random, text: str, lang: str, *, verbatim: bool) -> str:
    """``text`` as somebody might type it; ``verbatim`` keeps every letter and digit."""
    if rng.random() < 0.5:
        return text
    before, after = (_ZH_BEFORE, _ZH_AFTER) if lang == "zh" else (_EN_BEFORE, _EN_AFTER)
    if rng.random() < 0.4:
        text = rng.choice(before + lexicon.words("prefixes", lang)) + text
    if rng.random() < 0.5 and text[-1:] not in "？?。！":
        text += rng.choice(after + lexicon.words("suffixes", lang))
    if not verbatim:
        text = _retyped(rng, text, lang)
    if rng.random() < 0.06:
        mention = rng.choice(lexicon.words("mentions", lang))
        text = mention + text if rng.random() < 0.85 else f"{text} {mention.strip(' ，')}"
    if rng.random() < 0.03:
        text = " " + text
    return text


def _retyped(rng: random.Random, text: str, lang: str) -> str:
    draw = rng.random()
    if draw < 0.06 and lang == "zh":
        return text.translate(_FULL_WIDTH)
    if draw < 0.12 and lang == "zh":
        return text.replace("top", "TOP").replace("q", "Q")
    if draw < 0.16 and lang == "en":
        return text.lower()
    if draw < 0.19 and lang == "en":
        return text[:1].upper() + text[1:]
    if draw < 0.22 and lang == "zh":
        return text.replace("，", " ").replace("的", "", 1)
    if draw < 0.25 and lang == "zh":
        at = rng.randint(1, max(1, len(text) - 1))
        return text if text[at - 1].isalnum() and text[at - 1].isascii() else (
            text[:at] + " " + text[at:])  # fmt: skip
    return text


def chart_wish(rng: random.Random, lang: str, default: str) -> tuple[str, str]:
    """(words, chart argument): an explicit wish now and then, else no words."""
    if rng.random() > 0.05:
        return "", default
    wish = rng.choice(("none", "none", "line", "bar", "share"))
    return rng.choice(CHART_WISHES[lang][wish]), wish

"""How people really type: mentions, courtesy, full width, case, stray marks, wishes for a chart.

Owns changes that leave the meaning as it is, and the chart wish, which changes one argument.
"""

from __future__ import annotations

import random
import re

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
_SAME = {
    "zh": (
        ("有哪些", "都有哪些", "有哪几个", "是哪些"), ("哪些", "哪几个", "哪一些"),
        ("分别", "各自"), ("每个", "各个", "每一个"), ("最高", "最大"), ("最低", "最小"),
        ("排名", "排行", "排序"), ("走势", "趋势", "变化趋势"), ("比较", "对比", "比一比"),
        ("怎么样", "如何", "咋样", "怎样"), ("是多少", "有多少"), ("一共", "总共"),
        ("哪个", "哪一个"), ("低于", "少于", "小于", "不到"),
        ("超过", "大于", "高于", "多于", "超出"), ("不低于", "不少于", "大于等于"),
        ("卖得最好", "卖得最火", "最好卖", "最畅销", "最热销"),
        ("卖得最差", "最难卖", "最不好卖", "卖得最不好"), ("列出", "列一下", "列举", "罗列"),
        ("完成率", "达成率"), ("增长率", "增速", "增长幅度"),
        ("增长了多少", "涨了多少", "增加了多少"), ("现在", "目前", "当前"),
        ("平均每个月", "每个月平均", "月均", "平均每月"), ("总库存", "库存总量"),
        ("退货最多", "退得最多", "退货数量最多"),
    ),
    "en": (
        ("show me", "give me", "let me see"), ("highest", "largest", "biggest", "greatest"),
        ("lowest", "smallest"), ("best selling", "top selling", "best-selling", "hottest"),
        ("in terms of", "measured by", "judged by"), ("percentage", "percent", "proportion"),
        ("break down", "split up", "split"), ("compared with", "compared to", "versus", "against"),
        ("year over year", "year on year", "YoY"), ("month over month", "month on month", "MoM"),
        ("each", "every"), ("worst", "weakest", "poorest"), ("more than", "above"),
    ),
}  # fmt: skip
"""Words of one meaning, in every question they stand in."""
_IMPERATIVES = (
    "查一下", "查下", "查查", "看一下", "看下", "看看", "统计一下", "统计下", "查询一下", "查询",
    "给我看看", "帮我查", "帮忙查下", "我想看", "我想知道", "想知道", "想看下",
)  # fmt: skip
_SWAPS = {lang: {word: group for group in groups for word in group}
          for lang, groups in _SAME.items()}  # fmt: skip
_SWAP = {
    "zh": re.compile("|".join(sorted(_SWAPS["zh"], key=len, reverse=True))),
    "en": re.compile(rf"\b(?:{'|'.join(sorted(_SWAPS['en'], key=len, reverse=True))})\b"),
}
_LEAD = re.compile("|".join(sorted(_IMPERATIVES, key=len, reverse=True)))
_FULL_WIDTH = {ord(char): ord(char) + 0xFEE0 for char in "0123456789QqTOPtop"}


def disturb(rng: random.Random, text: str, lang: str, *, verbatim: bool) -> str:
    """``text`` as somebody might type it; ``verbatim`` keeps every letter and digit."""
    if rng.random() < 0.35:
        text = _SWAP[lang].sub(lambda match: rng.choice(_SWAPS[lang][match[0]]), text)
        if lang == "zh" and (verb := _LEAD.match(text)):
            text = rng.choice(_IMPERATIVES) + text[verb.end() :]
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

"""Figures in questions: 30万, 两百万, half a million, and the product that SQL writes for them.

Owns the ways people say a threshold. Knows nothing of questions.
"""

from __future__ import annotations

import random


def threshold(rng: random.Random, lang: str, metric: str) -> tuple[str, str]:
    """A figure as people say it, and the same as SQL, never multiplied out."""
    if rng.random() < 0.22 and metric not in ("客单价", "均价"):
        return _spelled(rng, lang)
    if metric in ("客单价", "均价") or (metric != "销售额" and rng.random() < 0.6):
        number = rng.choice(
            (rng.randint(1, 99) * 100, rng.randint(11, 9999), rng.randint(1, 9) * 1000)
        )
        return str(number), str(number)
    number = rng.choice((
        str(rng.randint(1, 9) * 10), str(rng.randint(1, 9) * 100), str(rng.randint(1, 999)),
        str(rng.randint(1, 99)), f"{rng.randint(1, 99)}.{rng.randint(1, 9)}",
    ))  # fmt: skip
    if lang == "en":
        unit, factor = rng.choice((("k", 1000), (" thousand", 1000), (" million", 1000000),
                                   ("m", 1000000), ("万", 10000)))  # fmt: skip
    else:
        unit, factor = rng.choice((("万", 10000),) * 7 + (("万元", 10000), ("w", 10000), ("W", 10000),  # noqa: E501
                                   ("千", 1000), ("亿", 100000000)))  # fmt: skip
    if rng.random() < 0.12:
        plain = str(rng.randint(1, 999) * 1000)
        return plain, plain
    return f"{number}{unit}", f"{number}*{factor}"


def _spelled(rng: random.Random, lang: str) -> tuple[str, str]:
    """A round figure in words: 两百万 is 200*10000, half a million is 500*1000."""
    if lang == "en":
        return rng.choice(_EN_ROUND)
    digit = rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9))
    word = "两" if digit == 2 and rng.random() < 0.8 else _ZH_N[digit]
    units = (("百万", 100), ("百万", 100), ("十万", 10), ("千万", 1000), ("万", 1))
    unit, factor = rng.choice(units)
    if unit == "十万":
        word = "" if digit == 1 else "二" if digit == 2 else word
    draw = rng.random()
    if draw < 0.15 and unit != "万":
        half = rng.choice((1, 2, 3, 4, 5))
        tail = {"百万": ("百", "十万", 10), "千万": ("千", "百万", 100)}.get(unit)
        if tail is not None:
            return f"{word or '一'}{tail[0]}{_ZH_N[half]}{tail[1]}", (
                f"{digit * factor + half * tail[2]}*10000")  # fmt: skip
    if draw < 0.3 and unit in ("百万", "千万"):
        return f"{digit}{unit}", f"{digit * factor}*10000"
    if draw < 0.65 and unit in ("百万", "千万") and digit == 1:
        word = ""
    return f"{word}{unit}{rng.choice(('', '', '元'))}", f"{digit * factor}*10000"


_ZH_N = "零一二三四五六七八九"
_EN_ROUND = (
    ("half a million", "500*1000"), ("a million", "1*1000000"), ("one million", "1*1000000"),
    ("two million", "2*1000000"), ("five million", "5*1000000"), ("ten million", "10*1000000"),
    ("three million", "3*1000000"), ("a hundred thousand", "100*1000"),
    ("two hundred thousand", "200*1000"), ("five hundred thousand", "500*1000"),
    ("fifty thousand", "50*1000"), ("ten thousand", "10*1000"), ("a thousand", "1*1000"),
)  # fmt: skip

# ruff: noqa: E501
"""Made-up columns and tables: titles, names and values that no list holds.

Owns how they are put together from stems. A fixed list would be learned by heart; of these there
are too many, so that reading them from the prompt is what is learned. Knows nothing of schemas.
"""

from __future__ import annotations

import random

from models.training import lexicon, schema_words
from models.training.schema_names import held_out, invented_name

Dimension = tuple[str, str, tuple[str, str], tuple[str, ...]]
Figure = tuple[str, str, str, str]
_STEMS = (
    ("门店", "store", "mendian"), ("渠道", "channel", "qudao"), ("会员", "member", "huiyuan"),
    ("合作", "partner", "hezuo"), ("促销", "promo", "cuxiao"), ("物流", "shipping", "wuliu"),
    ("服务", "service", "fuwu"), ("结算", "settlement", "jiesuan"), ("包装", "package", "baozhuang"),
    ("项目", "project", "xiangmu"), ("线索", "lead", "xiansuo"), ("签约", "signing", "qianyue"),
    ("定制", "custom", "dingzhi"), ("售后", "aftersale", "shouhou"), ("仓配", "fulfilment", "cangpei"),
    ("采买", "sourcing", "caimai"), ("直播", "live", "zhibo"), ("社群", "community", "shequn"),
    ("授权", "licence", "shouquan"), ("税务", "tax", "shuiwu"), ("货主", "owner", "huozhu"),
    ("车型", "vehicle", "chexing"), ("楼层", "floor", "louceng"), ("赛道", "track", "saidao"),
    ("机型", "machine", "jixing"), ("面料", "fabric", "mianliao"), ("口味", "flavor", "kouwei"),
    ("课程", "course", "kecheng"), ("设备", "equipment", "shebei"), ("活动", "event", "huodong"),
    ("院区", "campus", "yuanqu"), ("码头", "port", "matou"), ("航线", "route", "hangxian"),
    ("批次", "batch", "pici"), ("版本", "version", "banben"), ("预约", "booking", "yuyue"),
)  # fmt: skip
_KINDS = (
    ("类型", "type", "leixing"), ("等级", "grade", "dengji"), ("来源", "source", "laiyuan"),
    ("标签", "label", "biaoqian"), ("模式", "mode", "moshi"), ("状态", "state", "zhuangtai"),
    ("名称", "name", "mingcheng"), ("组别", "group", "zubie"), ("性质", "nature", "xingzhi"),
    ("档位", "band", "dangwei"), ("阶段", "stage", "jieduan"), ("归属", "home", "guishu"),
    ("方式", "method", "fangshi"), ("系列", "series", "xilie"), ("层级", "layer", "cengji"),
)  # fmt: skip
_MEASURES = (
    ("费", "fee", "fei", "元"), ("费用", "cost", "feiyong", "元"), ("补贴", "subsidy", "butie", "元"),
    ("次数", "count", "cishu", "次"), ("时长", "hours", "shichang", "小时"), ("收入", "income", "shouru", "元"),
    ("押金", "deposit", "yajin", "元"), ("工时", "labor", "gongshi", "小时"), ("件数", "pieces", "jianshu", "件"),
    ("积分", "points", "jifen", ""), ("里程", "mileage", "licheng", "公里"), ("损耗", "loss", "sunhao", ""),
    ("奖励", "reward", "jiangli", "元"), ("面积", "area", "mianji", "平米"), ("人次", "visits", "renci", ""),
)  # fmt: skip
_LOGS = (("记录", "log", "jilu"), ("台账", "ledger", "taizhang"), ("明细", "detail", "mingxi"),
         ("档案", "file", "dangan"), ("汇总", "summary", "huizong"), ("登记", "register", "dengji"))  # fmt: skip
_TAILS = ("", "", "组", "类", "型", "级", "号", "区", "线", "款", "店", "队")
_KEPT_TITLES = frozenset(
    option[1] for option in (*schema_words.DIMENSIONS, *schema_words.FIGURES) if held_out(option[0])
)

_TAKEN = frozenset(("渠道", "门店", "会员", "活动", "渠道名称"))
"""Words that mean something in the demo's own columns."""


def _named(rng: random.Random, first: tuple[str, ...], second: tuple[str, ...]) -> str:
    """A column name for the pair: English, pinyin, initials, Chinese in part, or made up."""
    english, pinyin = f"{first[1]}_{second[1]}", f"{first[2]}_{second[2]}"
    name = rng.choice((
        english, english, pinyin, pinyin.replace("_", ""), f"{first[2]}_{second[1]}",
        f"{first[1][:3]}_{second[1][:3]}", f"{first[2][0]}{second[2][0]}_{rng.randint(1, 99)}",
        f"{first[1]}{second[1].capitalize()}", f"{english}_{rng.randint(1, 9)}", first[1],
        f"{first[1][0]}_{second[1]}",
    ))  # fmt: skip
    if rng.random() < 0.3:
        return invented_name(rng, name)
    return f"{name}_{rng.randint(1, 99)}" if held_out(name) or len(name) < 3 else name


def values(rng: random.Random) -> tuple[str, ...]:
    """Three to seven values of one column, alike in form."""
    style, tail, count = rng.random(), rng.choice(_TAILS), rng.randint(3, 7)
    made: dict[str, None] = {}
    while len(made) < count:
        if style < 0.55:
            word = rng.choice(lexicon.HANZI) + rng.choice(lexicon.HANZI) + tail
        elif style < 0.7:
            word = rng.choice(lexicon.HANZI) + (tail or "系")
        elif style < 0.85:
            word = rng.choice("ABCDEFGHKMPRSTX") + str(rng.randint(1, 30)) + tail
        else:
            word = rng.choice(_STEMS)[0] + tail
        made[word] = None
    return tuple(made)


def dimension(rng: random.Random) -> Dimension:
    """(column, title, English words, values) of a column to group and filter by."""
    while True:
        first, second = rng.choice(_STEMS), rng.choice(_KINDS)
        title = first[0] + second[0] if rng.random() < 0.75 else first[0]
        if title not in _KEPT_TITLES and title not in _TAKEN:
            break
    words = f"{first[1]} {second[1]}" if title != first[0] else first[1]
    return _named(rng, first, second), title, (words, f"{words}s"), values(rng)


def figure(rng: random.Random) -> Figure:
    """(column, title, English word, unit) of a column to add up."""
    while True:
        first, second = rng.choice(_STEMS), rng.choice(_MEASURES)
        title = first[0] + second[0]
        if title not in _KEPT_TITLES:
            return _named(rng, first, second), title, f"{first[1]} {second[1]}", second[3]


def other_table(rng: random.Random) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """(name, title, columns) of a table that no question is about."""
    first, second = rng.choice(_STEMS), rng.choice(_LOGS)
    columns: dict[str, str] = {}
    for _ in range(rng.randint(2, 5)):
        near = rng.choice(tuple(schema_words.COLUMNS.values()))
        name, title = rng.choice(near)
        if rng.random() < 0.5:
            made = figure(rng) if rng.random() < 0.5 else dimension(rng)
            name, title = made[0], made[1]
        columns[f"{name}_{rng.randint(1, 9)}" if held_out(name) else name] = title
    return _named(rng, first, second), first[0] + second[0], tuple(columns.items())


def title(rng: random.Random, word: str) -> str:
    """A title of a known column as another company might write it."""
    return rng.choice(("所属", "归口", "业务", "对应", "当前", "一级", "统计", "实际")) + word

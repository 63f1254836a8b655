"""Words for metrics, dimensions and values, and invented names for everything else.

Owns vocabulary: built-in words, widened by lexicon.yaml where that file exists. Knows nothing
of templates and SQL structure.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

LEXICON_FILE = Path(__file__).parent / "lexicon.yaml"


@dataclass(frozen=True)
class Metric:
    """A figure over sales_data: ``sql`` computes it, ``per_row`` is what one order adds."""

    alias: str
    sql: str
    per_row: str
    zh: tuple[str, ...]
    en: tuple[str, ...]

    @property
    def additive(self) -> bool:
        """Whether values of parts add up to the value of the whole."""
        return bool(self.per_row)


@dataclass(frozen=True)
class Dim:
    """A column of sales_data that people group and filter by."""

    column: str
    alias: str
    zh: tuple[str, ...]
    en: tuple[tuple[str, str], ...]
    """(singular, plural) words."""


@dataclass(frozen=True)
class Vocabulary:
    """Words that only one prompt's schema has: dimensions, metrics, values of columns."""

    dims: Mapping[str, Dim] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = field(
        default_factory=dict
    )


BASE_METRICS: dict[str, Metric] = {
    m.alias: m
    for m in (
        Metric(
            "销售额", "SUM(quantity*price)", "quantity*price",
            ("销售额", "销售额", "销售额", "销售金额", "营业额", "业绩", "销售收入", "营收", "成交额",  # noqa: E501
             "流水", "GMV", "销售业绩", "销售总额"),
            ("sales", "sales", "revenue", "sales amount", "turnover", "sales revenue", "GMV"),
        ),
        Metric(
            "销量", "SUM(quantity)", "quantity",
            ("销量", "销量", "销量", "销售量", "销售数量", "卖出件数", "出货量", "件数", "售出数量"),  # noqa: E501
            ("units sold", "sales volume", "quantity sold", "number of units", "units"),
        ),
        Metric(
            "订单数", "COUNT(*)", "1",
            ("订单数", "订单数", "订单量", "单量", "订单数量", "成交单数", "单数", "笔数"),
            ("orders", "number of orders", "order count", "order volume"),
        ),
        Metric(
            "客单价", "SUM(quantity*price)/COUNT(*)", "",
            ("客单价", "客单价", "单均金额", "平均每单金额", "笔单价", "每单均价"),
            ("average order value", "AOV", "sales per order", "average order amount"),
        ),
        Metric(
            "均价", "SUM(quantity*price)/SUM(quantity)", "",
            ("均价", "均价", "平均单价", "平均售价", "件均价", "成交均价"),
            ("average price", "average unit price", "average selling price"),
        ),
    )
}  # fmt: skip
BASE_DIMS: dict[str, Dim] = {
    d.column: d
    for d in (
        Dim("region", "区域", ("区域", "区域", "地区", "大区", "片区"),
            (("region", "regions"), ("area", "areas"))),
        Dim("category", "品类", ("品类", "品类", "类别", "产品类别", "类目", "商品类别"),
            (("category", "categories"), ("product category", "product categories"))),
        Dim("channel", "渠道", ("渠道", "渠道", "销售渠道", "平台", "销售平台"),
            (("channel", "channels"), ("sales channel", "sales channels"))),
        Dim("product_name", "产品", ("产品", "产品", "产品", "商品", "单品", "货品"),
            (("product", "products"), ("item", "items"))),
        Dim("customer", "客户", ("客户", "客户", "买家", "客户公司"),
            (("customer", "customers"), ("client", "clients"))),
        Dim("salesperson", "销售员", ("销售员", "销售员", "业务员", "销售人员", "销售"),
            (("salesperson", "salespeople"), ("sales rep", "sales reps"))),
    )
}  # fmt: skip
FILTER_ORDER = (
    "region", "category", "channel", "product_name", "customer", "salesperson", "reason",
    "warehouse", "department", "level", "city",
)  # fmt: skip
BASE_VALUES: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "region": {
        "华东": (("华东区", "华东", "华东地区", "华东大区"), ("East China", "华东")),
        "华南": (("华南区", "华南", "华南地区", "华南大区"), ("South China", "华南")),
        "华北": (("华北区", "华北", "华北地区", "华北大区"), ("North China", "华北")),
        "华中": (("华中区", "华中", "华中地区", "华中大区"), ("Central China", "华中")),
        "西南": (("西南区", "西南", "西南地区", "西南大区"), ("Southwest China", "西南")),
        "东北": (("东北区", "东北", "东北地区", "东北大区"), ("Northeast China", "东北")),
        "西北": (("西北区", "西北", "西北地区", "西北大区"), ("Northwest China", "西北")),
    },
    "category": {
        "手机": (("手机", "手机类"), ("phones", "mobile phones", "smartphones")),
        "电脑": (("电脑", "电脑类"), ("computers", "PCs", "laptops")),
        "家电": (("家电", "家电类", "家用电器"), ("appliances", "home appliances")),
        "平板": (("平板", "平板类", "平板电脑"), ("tablets",)),
        "穿戴": (("穿戴", "穿戴类", "穿戴设备", "可穿戴"), ("wearables", "wearable devices")),
        "配件": (("配件", "配件类"), ("accessories",)),
    },
    "channel": {
        "天猫": (("天猫", "天猫渠道", "天猫上"), ("Tmall",)),
        "京东": (("京东", "京东渠道", "京东上"), ("JD", "JD.com")),
        "抖音": (("抖音", "抖音渠道", "抖音上"), ("Douyin",)),
        "拼多多": (("拼多多", "拼多多渠道", "拼多多上"), ("Pinduoduo", "PDD")),
        "门店": (("门店", "门店渠道", "线下门店"), ("offline stores", "the stores")),
    },
}  # fmt: skip
DEPARTMENTS = ("销售部", "市场部", "研发部", "财务部", "人事部", "客服部", "物流部", "行政部")
EN_DEPARTMENTS = {
    "销售部": "sales", "市场部": "marketing", "研发部": "R&D", "财务部": "finance",
    "人事部": "HR", "客服部": "customer service", "物流部": "logistics", "行政部": "administration",
}  # fmt: skip
REASONS = ("七天无理由", "质量问题", "物流损坏", "与描述不符", "发错货")
LEVELS = ("普通", "银牌", "金牌", "钻石")
WAREHOUSES = ("上海仓", "广州仓", "北京仓", "武汉仓", "成都仓")
FIXED = {
    "reason": REASONS, "warehouse": WAREHOUSES, "department": DEPARTMENTS, "level": LEVELS,
}  # fmt: skip
EN_FIXED = {
    "七天无理由": "no-reason return", "质量问题": "quality problems", "物流损坏": "shipping damage",
    "与描述不符": "not as described", "发错货": "wrong item", "普通": "regular", "银牌": "silver",
    "金牌": "gold", "钻石": "diamond", "上海仓": "Shanghai warehouse", "广州仓": "Guangzhou warehouse",  # noqa: E501
    "北京仓": "Beijing warehouse", "武汉仓": "Wuhan warehouse", "成都仓": "Chengdu warehouse",
    **EN_DEPARTMENTS,
}  # fmt: skip

METRICS: ChainMap[str, Metric] = ChainMap({}, BASE_METRICS)
DIMS: ChainMap[str, Dim] = ChainMap({}, BASE_DIMS)
VALUES: ChainMap[str, Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = ChainMap(
    {}, {**BASE_VALUES}
)
"""The built-in words under those of the prompt in hand; see ``speaking``."""


@contextlib.contextmanager
def speaking(vocabulary: Vocabulary) -> Iterator[None]:
    """Within the block, METRICS, DIMS and VALUES hold the words of one prompt's schema."""
    fronts = (METRICS.maps[0], DIMS.maps[0], VALUES.maps[0])
    METRICS.maps[0] = dict(vocabulary.metrics)
    DIMS.maps[0] = dict(vocabulary.dims)
    VALUES.maps[0] = dict(vocabulary.values)
    try:
        yield
    finally:
        METRICS.maps[0], DIMS.maps[0], VALUES.maps[0] = fronts


def rank(column: str) -> int:
    """Place of a column's condition in canonical SQL."""
    return FILTER_ORDER.index(column) if column in FILTER_ORDER else len(FILTER_ORDER)


_PRODUCT_HEADS = (
    "星云青鸟远山鹿鸣凌峰墨舟磐石云阶暖阳雪原晴川微风清泉画屏书童流光竹简脉动听澜童行知更织网指尖"
    "疾电灵犀蓝鲸飞鱼长风明月朝露白鹭松涛海棠极光银河赤兔玄武青松沧海归雁逐日追风破晓山岚雨燕北辰"
    "千寻万象初见半夏木棉紫荆金石铁马春晓秋水冬青夏荷"
)
_PRODUCT_TAILS = {
    "手机": ("手机", "折叠手机", "手机", "老人机"),
    "电脑": ("笔记本", "轻薄本", "游戏本", "台式机", "一体机", "工作站", "显示器"),
    "家电": ("空调", "冰箱", "洗衣机", "扫地机", "净水器", "电视", "烤箱", "风扇", "电饭煲", "加湿器"),  # noqa: E501
    "平板": ("平板", "学习平板", "迷你平板", "阅读器", "绘图板"),
    "穿戴": ("手表", "手环", "耳机", "耳机Pro", "电话手表", "眼镜", "手表2", "手环5"),
    "配件": ("路由器", "键盘", "充电宝", "快充头", "鼠标", "数据线", "音箱", "摄像头", "支架", "硬盘"),  # noqa: E501
}  # fmt: skip
_SURNAMES = "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛叶阎"  # noqa: E501
_GIVEN = (
    "伟芳娜敏静磊洋艳勇军杰娟涛超霞平刚桂英建华志强晓明雨桐子轩思远佳怡浩然梦洁文博欣妍俊若曦海燕立新"
    "春梅国栋一鸣婉清景行秀兰丽红玉龙鹏飞云天宁波安康宇航诗涵可心乐彤嘉琪"
)
_CITIES = (
    "上海杭州南京苏州宁波合肥广州深圳东莞厦门南宁北京天津太原武汉长沙郑州成都重庆昆明贵阳沈阳大连长春西安兰州"
    "银川青岛济南无锡佛山温州"
)
_BRAND_FIRST = "云海星辰天恒嘉瑞盛鼎宏博远信华诚安泰锦佳明永德启腾汇金中新东方大正"
_BRAND_SECOND = "帆川途源和达森逸朗峰舟禾维晟业科创石盈杰通利丰成"
_COMPANY_KINDS = ("科技", "商贸", "电子", "数码", "电器", "实业", "集团", "贸易", "网络", "家居")
HANZI = tuple(
    bytes((0xA0 + row, 0xA0 + cell)).decode("gb2312")
    for row in range(16, 56)
    for cell in range(1, 95)
    if not (row == 55 and cell > 89)
)
"""The 3,755 common characters: GB2312, level 1."""


def _pair(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) // 2) * 2
    return text[at : at + 2]


def product(rng: random.Random, category: str = "") -> str:
    """An invented product name, such as 星云X1手机 or 墨舟轻薄本."""
    tails = _PRODUCT_TAILS.get(category) or rng.choice(tuple(_PRODUCT_TAILS.values()))
    head = _pair(rng, _PRODUCT_HEADS)
    if rng.random() < 0.45:
        head = rng.choice(HANZI) + rng.choice(HANZI)
    letter = rng.choice("ABCDEFGHKLMNPRSTUVWXYZ")
    code = rng.choice(("", "", f"{letter}{rng.randint(1, 9)}", str(rng.randint(2, 99)),
                       f"{letter}{rng.randint(10, 999)}"))  # fmt: skip
    suffix = rng.choice(("",) * 12 + ("Pro", "Max", "Air", "青春版", "2", "SE"))
    return f"{head}{code}{rng.choice(tails)}{suffix}"


def person(rng: random.Random) -> str:
    """An invented Chinese name."""
    stock = _GIVEN if rng.random() < 0.7 else HANZI
    given = rng.choice(stock) + (rng.choice(stock) if rng.random() < 0.5 else "")
    return rng.choice(_SURNAMES) + given


def customer(rng: random.Random) -> str:
    """An invented company name, such as 杭州云帆科技."""
    brand = rng.choice(_BRAND_FIRST) + rng.choice(_BRAND_SECOND)
    if rng.random() < 0.3:
        brand = rng.choice(HANZI) + rng.choice(HANZI)
    return f"{_pair(rng, _CITIES)}{brand}{rng.choice(_COMPANY_KINDS)}"


def city(rng: random.Random) -> str:
    """A Chinese city."""
    return _pair(rng, _CITIES)


_real_names: dict[str, tuple[str, ...]] = {}


@contextlib.contextmanager
def real_names(names: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Within the block, members of these columns are drawn from ``names``: for evaluation."""
    _real_names.update(names)
    try:
        yield
    finally:
        _real_names.clear()


def member(rng: random.Random, column: str) -> str:
    """A value that the column may hold."""
    if column in _real_names and column not in VALUES.maps[0]:
        return rng.choice(_real_names[column])
    if column in VALUES:
        return rng.choice(tuple(VALUES[column]))
    if column in FIXED:
        return rng.choice(FIXED[column])
    names = {"product_name": product, "customer": customer, "salesperson": person, "city": city}
    return names[column](rng)


@functools.cache
def _extra() -> Mapping[str, Any]:
    if not LEXICON_FILE.is_file():
        return {}
    return yaml.safe_load(LEXICON_FILE.read_text(encoding="utf-8")) or {}


@functools.cache
def _more(section: str, key: str, lang: str) -> tuple[Any, ...]:
    """Synonyms of lexicon.yaml at ``section: {key: {lang: [...]}}``; English pairs as tuples."""
    entry = _extra().get(section, {}).get(key, {})
    found = entry.get(lang, ()) if isinstance(entry, Mapping) else ()
    return tuple(tuple(word) if isinstance(word, list) else word for word in found)


@functools.cache
def words(section: str, lang: str) -> tuple[str, ...]:
    """A plain list of lexicon.yaml, such as topics or prefixes; empty where there is none."""
    entry = _extra().get(section, {})
    found = entry.get(lang, ()) if isinstance(entry, Mapping) else ()
    return tuple(word for word in found if isinstance(word, str))


def metric_words(alias: str, lang: str) -> tuple[str, ...]:
    """What people call a metric, common words more often."""
    own: tuple[str, ...] = getattr(METRICS[alias], lang)
    return own + _more("metrics", alias, lang)


def dim_words(column: str, lang: str) -> tuple[Any, ...]:
    """What people call a dimension; (singular, plural) pairs in English."""
    own: tuple[Any, ...] = getattr(DIMS[column], lang)
    return own + _more("dimensions", column, lang)


def fixed_words(value: str, lang: str) -> tuple[str, ...]:
    """What people call a reason, warehouse, department or level."""
    own = EN_FIXED.get(value, value) if lang == "en" else value
    return (own, own, *_more("values", value, lang))


def value_words(column: str, value: str, lang: str) -> tuple[str, ...]:
    """What people call a value of a column that holds a few values."""
    own = VALUES[column][value][0 if lang == "zh" else 1]
    return own + _more("values", value, lang)

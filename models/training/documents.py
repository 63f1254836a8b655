"""Company documents: passages that are searched, and how an answer quotes them.

Owns invented rules and manuals, and the demo company's own. Knows nothing of retrieval.
"""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from pathlib import Path

from models.training import lexicon

DEMO_DOCUMENTS = Path(__file__).parents[2] / "tools" / "demo_company" / "documents"
NOTHING = "没有找到相关内容"


@dataclass(frozen=True)
class Passage:
    """One section of a document."""

    title: str
    section: str
    text: str


_RULE_SUBJECTS = tuple(
    word
    for word in (  # noqa: SIM905
        "年假 病假 婚假 产假 陪产假 丧假 事假 调休 育儿假 加班 迟到 早退 打卡 "
        "远程办公 差旅 住宿 机票 高铁 打车 餐补 通讯费 招待费 培训费 报销 借款 "
        "发票 预付款 采购 合同 印章 付款 固定资产 电脑领用 门禁卡 工牌 停车 会议室 "
        "班车 宿舍 体检 社保 公积金 年终奖 绩效 转正 试用期 离职 交接 竞业限制 "
        "保密 密码 账号 邮箱 备份 外发文件 访客 退货 换货 退款 运费 发货 签收 "
        "赠品 价保 开票 投诉 渠道返利 客户分级 折扣 授信 账期 样机 招投标 生日福利 "
        "旅游 补贴 夜班 值班 工装 快递 档案 证明 户口 工伤 内推 调岗 晋升 表彰 "
        "处分 安全检查 消防 "
    ).split(" ")
    if word
)
EN_SUBJECTS = {
    "annual leave": "年假", "sick leave": "病假", "marriage leave": "婚假", "maternity leave": "产假",  # noqa: E501
    "overtime": "加班", "working from home": "远程办公", "expenses": "报销", "travel": "差旅",
    "hotel": "住宿", "taxi": "打车", "invoices": "发票", "passwords": "密码", "refunds": "退款",
    "returns": "退货", "probation": "试用期", "resignation": "离职", "being late": "迟到",
    "meal allowance": "餐补", "bonus": "年终奖", "discounts": "折扣", "credit terms": "账期",
    "shuttle bus": "班车", "visitors": "访客", "contracts": "合同", "purchasing": "采购",
    "training": "培训费", "backups": "备份", "promotion": "晋升", "demo units": "样机",
}  # fmt: skip
_EN_FIRST = (
    "office", "home", "travel", "training", "client", "medical", "parental", "night", "weekend",
    "company", "team", "product", "data", "email", "phone", "laptop", "car", "fuel", "lunch",
    "housing", "moving", "study", "gift", "sample", "supplier", "contract", "budget", "petty cash",
    "emergency", "fire", "visitor", "internet", "software", "uniform", "parking", "storage",
    "customer", "warranty", "battery", "screen", "delivery", "return", "price", "quality", "safety",
    "holiday", "bereavement", "relocation", "referral", "exit", "shift", "salary", "tax", "badge",
)  # fmt: skip
_EN_SECOND = (
    "leave", "allowance", "budget", "access", "card", "expenses", "policy", "repair", "request",
    "approval", "insurance", "days", "fees", "rules", "subsidy", "bonus", "report", "check",
    "booking", "refund", "protection", "claims", "review", "handover", "equipment", "warranty",
    "permit", "service", "limit", "password", "contract", "transfer", "storage", "disposal",
)  # fmt: skip
_EN_ALONE = (
    "jury duty", "carpooling", "overtime pay", "team dinners", "business cards", "flexible hours",
    "smoking breaks", "side jobs", "loyalty points", "charging time", "waterproofing", "cleaning",
    "noise level", "installing", "firmware updates", "factory reset", "pairing", "child care",
    "blood donation", "military service", "typhoon days", "canteen vouchers", "gym membership",
    "lost keys", "dress code", "social media", "whistle-blowing", "conflicts of interest",
)  # fmt: skip
_MANUAL_SUBJECTS = tuple(
    word
    for word in (  # noqa: SIM905
        "保修期 续航 充电 电池 防水 屏幕 重量 尺寸 接口 内存 存储 系统升级 "
        "恢复出厂 配对 重启 清洗 滤网 噪声 能效 安装 移机 故障代码 温度 耗电 容量 "
        "音质 降噪 信号 摄像头 指纹 触控笔 键盘背光 散热 风速 水压 漏水 "
    ).split(" ")
    if word
)
_ASPECTS = (
    "",
    "",
    "",
    "标准",
    "流程",
    "天数",
    "申请",
    "期限",
    "额度",
    "审批",
    "范围",
    "要求",
    "规定",
)
_UNITS = ("天", "个工作日", "小时", "个月", "年", "次")
_PEOPLE = ("直属主管", "部门经理", "人事部", "财务部", "行政部", "总经理", "信息部", "客服")
_RULES = (
    "{s}每{u}最多{n}{v}，超过部分由{p}批准。",
    "{s}须提前{n}{v}提交申请，由{p}审批。",
    "{s}标准为每人每天{m}元，超出部分自理。",
    "{s}在{n}{v}内办完，逾期不再受理。",
    "{s}满{n}年的员工可享{k}天，满{k}年的{j}天。",
    "{s}由{p}负责，{n}{v}内答复。",
    "{s}金额在{m}元以内由{p}审批，{m2}元以上报总经理。",
    "申请{s}需要身份证和部门证明，在系统提交后{n}{v}生效。",
    "{s}每年{n}次，费用{m}元由公司承担。",
    "{s}不得超过{m}元，凭发票在{n}{v}内报销。",
    "{s}按工资的{c}%计算，每月{k}日发放。",
    "未办{s}的，每次扣{m}元，全年不超过{n}次。",
)
_FACTS = (
    "{t}的{s}为{n}{v}。",
    "{t}{s}约{k}小时，极限模式下{n}小时。",
    "{s}时先断电{n}分钟，再长按电源键{k}秒。",
    "{t}整机{s}{n}年，配件{k}个月。",
    "{s}费用{m}元，请联系售后400-{c}{k}-{m}。",
    "{s}每{k}天检查一次，不得用热水或暴晒。",
    "{t}{s}支持{k}W，{n}分钟到{c}%。",
    "出现{s}问题时更新到{n}.{k}版本，仍未解决请送修。",
)
_TITLES = (
    "{a}管理制度",
    "{a}制度",
    "{a}办法",
    "{a}规定",
    "{a}指南",
    "{a}实施细则",
    "{a}手册",
    "{a}政策",
)


@functools.cache
def demo() -> tuple[Passage, ...]:
    """Sections of the demo company's documents."""
    found = []
    for path in sorted(DEMO_DOCUMENTS.glob("*.md")):
        title = path.stem
        for block in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            section, _, body = block.partition("\n")
            found.append(Passage(title, section.strip(), " ".join(body.split())))
    return tuple(found)


def titles() -> tuple[str, ...]:
    """Titles of the demo company's documents."""
    return tuple(dict.fromkeys(passage.title for passage in demo()))


def invented_title(rng: random.Random) -> str:
    """A title of a document that nobody wrote."""
    if rng.random() < 0.35:
        return f"{lexicon.product(rng)}手册"
    area = rng.choice(_RULE_SUBJECTS) + rng.choice(("", "", "与" + rng.choice(_RULE_SUBJECTS)))
    return rng.choice(_TITLES).format(a=area)


def _numbers(rng: random.Random) -> dict[str, object]:
    amounts = (50, 80, 100, 150, 200, 300, 500, 800, 1000, rng.randint(20, 9999))
    return {
        "n": rng.randint(1, 30), "k": rng.randint(2, 60), "j": rng.randint(10, 99),
        "m": rng.choice(amounts), "m2": rng.randint(1, 99) * 1000, "c": rng.randint(10, 99),
        "u": rng.choice("年月周"), "v": rng.choice(_UNITS), "p": rng.choice(_PEOPLE),
    }  # fmt: skip


def _rule(rng: random.Random, subject: str) -> tuple[Passage, str]:
    aspect = rng.choice(_ASPECTS)
    text = rng.choice(_RULES).format(s=subject, **_numbers(rng))
    topic = subject + rng.choice(("", aspect))
    return Passage(invented_title(rng), subject + aspect, text), topic


def invented(rng: random.Random, lang: str = "zh") -> tuple[Passage, str]:
    """A passage, and the subject people ask about."""
    if lang == "en" and rng.random() < 0.55:
        said = rng.choice(_EN_ALONE)
        if rng.random() < 0.8:
            said = f"{rng.choice(_EN_FIRST)} {rng.choice(_EN_SECOND)}"
        return _rule(rng, rng.choice(_RULE_SUBJECTS))[0], said
    if lang == "en" and rng.random() < 0.7:
        said = rng.choice(tuple(EN_SUBJECTS))
        return _rule(rng, EN_SUBJECTS[said])[0], said
    if rng.random() < 0.35:
        product, subject = (
            lexicon.product(rng),
            rng.choice(_MANUAL_SUBJECTS + lexicon.words("product_topics", "zh")),
        )
        text = rng.choice(_FACTS).format(s=subject, t=product, **_numbers(rng))
        topic = f"{product}{rng.choice(('的', ''))}{subject}"
        return Passage(f"{product}手册", subject, text), topic
    subject = rng.choice(_RULE_SUBJECTS + lexicon.words("topics", "zh"))
    if rng.random() < 0.2:
        stem = rng.choice(lexicon.HANZI) + rng.choice(lexicon.HANZI)
        subject = stem + rng.choice("假费证险金卡单券贴表章") + rng.choice(("", "", "申请", "补助"))
    return _rule(rng, subject)


def asked(rng: random.Random, lang: str = "zh") -> tuple[Passage, str]:
    """A passage and the topic of a question that it answers."""
    if lang == "zh" and rng.random() < 0.3 and demo():
        passage = rng.choice(demo())
        topic = passage.section
        if passage.title.endswith("手册") and passage.title[:2] not in topic:
            topic = passage.title.removesuffix("手册") + rng.choice(("的", "")) + topic
        return passage, rng.choice(
            (topic, topic, re.sub("(天数|标准|使用|申请)$", "", topic) or topic)
        )
    return invented(rng, lang)


def found(rng: random.Random, right: Passage) -> str:
    """What a search returns: up to three passages, the right one mostly first."""
    others: list[Passage] = []
    for _ in range(rng.choices((0, 1, 2), (30, 25, 45))[0]):
        near = [p for p in demo() if p.title == right.title and p != right]
        other = rng.choice(near) if near and rng.random() < 0.5 else asked(rng)[0]
        if not near and rng.random() < 0.5:
            other = Passage(right.title, other.section, other.text)
        if other.section[:2] != right.section[:2]:
            others.append(other)
    place = 0 if rng.random() < 0.5 else rng.randint(0, len(others))
    others.insert(place, right)
    return "\n".join(
        f"[{i}]《{p.title}》{p.section}：{p.text}" for i, p in enumerate(others, start=1)
    )


def quoted(rng: random.Random, passage: Passage, lang: str) -> str:
    """The answer: the passage's own words and the document's title."""
    if lang == "en":
        return f"According to 《{passage.title}》: {passage.text}"
    return rng.choice((
        f"根据《{passage.title}》，{passage.text}", f"《{passage.title}》规定：{passage.text}",
    ))  # fmt: skip


def not_found(rng: random.Random, lang: str) -> str:
    """The answer when the search finds nothing."""
    if lang == "en":
        return "I found nothing about this in the company documents."
    return rng.choice((
        "公司文档里没有找到相关内容，请换个说法或咨询人事行政。", "没有在公司文档中找到相关规定，建议换个说法再问。",  # noqa: E501
    ))  # fmt: skip

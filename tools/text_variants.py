"""Traditional Chinese characters that names of places, goods, people and firms often hold.

Owns one table of single characters; it is no translator. Used only to compare spellings.
"""

from __future__ import annotations

_TRADITIONAL = (
    "東華電腦機門店貓雲廣產品類銷售員區倉庫銀鑽級戶"
    "務財發場幹職業團實業貿數碼達訊聯億豐滿潔淨風掃"
    "視頻錶戴遊戲筆記書學習聽瀾軒陽紅藍綠龍鳳馬鳥魚"
    "漢長寧慶濟連瀋陝貴蘇無錫滬遼黃張劉陳楊趙吳孫羅"
    "鄭謝許鄧馮韓曹彭曾蕭蔡潘葉餘盧鍾譚廖賈韋萬錢湯"
    "嚴賴質問題損壞錯與貨換訂單價線網體國際資訊開關運輸"
)
_SIMPLIFIED = (
    "东华电脑机门店猫云广产品类销售员区仓库银钻级户"
    "务财发场干职业团实业贸数码达讯联亿丰满洁净风扫"
    "视频表戴游戏笔记书学习听澜轩阳红蓝绿龙凤马鸟鱼"
    "汉长宁庆济连沈陕贵苏无锡沪辽黄张刘陈杨赵吴孙罗"
    "郑谢许邓冯韩曹彭曾萧蔡潘叶余卢钟谭廖贾韦万钱汤"
    "严赖质问题损坏错与货换订单价线网体国际资讯开关运输"
)
_TABLE = {ord(a): b for a, b in zip(_TRADITIONAL, _SIMPLIFIED, strict=True) if a != b}


def simplified(text: str) -> str:
    """``text`` with the listed characters in their simplified form.

    >>> simplified("華東")
    '华东'
    """
    return text.translate(_TABLE)

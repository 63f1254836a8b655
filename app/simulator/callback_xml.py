"""XML of callbacks, written and read by hand: the envelope, and every inbound kind.

Content goes into CDATA untouched, control characters included, as the real service sends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ENCRYPT = re.compile(r"<Encrypt>\s*(?:<!\[CDATA\[)?([A-Za-z0-9+/=\s]+?)(?:\]\]>)?\s*</Encrypt>")

KIND_TITLES: Mapping[str, str] = {
    "text": "文本",
    "image": "图片",
    "voice": "语音",
    "video": "视频",
    "file": "文件",
    "location": "位置",
    "link": "链接",
}

# Fields of the inbound kinds besides text, with sample values (document 90239).
KINDS: Mapping[str, Mapping[str, str | int | float]] = {
    "image": {"PicUrl": "http://127.0.0.1/sample.png", "MediaId": "sample-image"},
    "voice": {"MediaId": "sample-voice", "Format": "amr"},
    "video": {"MediaId": "sample-video", "ThumbMediaId": "sample-thumb"},
    "file": {"MediaId": "sample-file", "FileName": "报表.xlsx"},
    "location": {
        "Location_X": 31.2304,
        "Location_Y": 121.4737,
        "Scale": 15,
        "Label": "上海市黄浦区",
        "AppType": "wxwork",
    },
    "link": {
        "Title": "季度总结",
        "Description": "2024 年第三季度",
        "Url": "http://127.0.0.1/report",
        "PicUrl": "http://127.0.0.1/sample.png",
    },
}


def element(name: str, value: str | int | float) -> str:
    """One element; text goes into CDATA, numbers stay bare."""
    if isinstance(value, str):
        value = "<![CDATA[" + value.replace("]]>", "]]]]><![CDATA[>") + "]]>"
    return f"<{name}>{value}</{name}>"


def document(fields: Mapping[str, str | int | float]) -> bytes:
    """``<xml>`` with the given children, in order, UTF-8."""
    children = "".join(element(name, value) for name, value in fields.items())
    return f"<xml>{children}</xml>".encode("utf-8", "surrogatepass")


def field(xml: str, name: str) -> str:
    """Text of the first child ``name`` of a small flat document, "" when it is absent."""
    found = re.search(
        rf"<{name}>(?:<!\[CDATA\[(?P<cdata>.*?)\]\]>|(?P<bare>[^<]*))</{name}>", xml, re.DOTALL
    )
    if found is None:
        return ""
    return found["cdata"] if found["cdata"] is not None else found["bare"]


def encrypted_part(body: str) -> str:
    """The ciphertext of an encrypted envelope, "" when there is none."""
    found = _ENCRYPT.search(body)
    return "".join(found[1].split()) if found else ""

"""XML of callbacks, written and read by hand: the envelope, and every inbound kind.

Content goes into CDATA untouched, control characters included, as the real service sends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

_ENCRYPT = re.compile(r"<Encrypt>\s*(?:<!\[CDATA\[)?([A-Za-z0-9+/=\s]+?)(?:\]\]>)?\s*</Encrypt>")

Value: TypeAlias = "str | int | float | Mapping[str, Value]"
Fields: TypeAlias = Mapping[str, Value]

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
KINDS: Mapping[str, Fields] = {
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


# Fields of the events besides Event and EventKey (document 90240).
EVENTS: Mapping[str, Fields] = {
    "subscribe": {},
    "unsubscribe": {},
    "enter_agent": {},
    "LOCATION": {"Latitude": 31.2304, "Longitude": 121.4737, "Precision": 65, "AppType": "wxwork"},
    "click": {},
    "view": {},
    "scancode_push": {"ScanCodeInfo": {"ScanType": "qrcode", "ScanResult": "1"}},
    "scancode_waitmsg": {"ScanCodeInfo": {"ScanType": "qrcode", "ScanResult": "2"}},
    "pic_sysphoto": {"SendPicsInfo": {"Count": 1}},
    "pic_photo_or_album": {"SendPicsInfo": {"Count": 1}},
    "pic_weixin": {"SendPicsInfo": {"Count": 1}},
    "location_select": {
        "SendLocationInfo": {"Location_X": 31.2304, "Location_Y": 121.4737, "Label": "上海"}
    },
    "template_card_event": {
        "TaskId": "task-1",
        "CardType": "button_interaction",
        "ResponseCode": "",
    },
    "template_card_menu_event": {"TaskId": "task-1", "CardType": "text_notice"},
    "batch_job_result": {"BatchJob": {"JobId": "job-1", "JobType": "sync_user", "ErrCode": 0}},
    "sys_approval_change": {"ApprovalInfo": {"SpNo": "202211150018", "SpStatus": 1}},
    "change_contact": {"ChangeType": "update_user", "UserID": "WangFang"},
    "kf_msg_or_event": {"Token": "sample-token", "OpenKfId": "sample-kf"},
}


def element(name: str, value: Value) -> str:
    """One element; text goes into CDATA, numbers stay bare, mappings become children."""
    if isinstance(value, Mapping):
        children = "".join(element(child, inner) for child, inner in value.items())
        return f"<{name}>{children}</{name}>"
    if isinstance(value, str):
        value = "<![CDATA[" + value.replace("]]>", "]]]]><![CDATA[>") + "]]>"
    return f"<{name}>{value}</{name}>"


def document(fields: Fields) -> bytes:
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

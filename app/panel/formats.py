"""Numbers and times for people, as filters of the templates.

Owns the words for states and the units. Knows nothing of where the values come from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from flask import Blueprint

STATUS_WORDS = {
    "queued": "排队",
    "running": "处理中",
    "done": "完成",
    "failed": "失败",
    "parked": "搁置",
}
STATE_WORDS = {"pending": "待发", "unknown": "结果未知", "sent": "已发出", "refused": "被拒"}
KIND_WORDS = {"answer": "答案", "notice": "说明", "ack": "收到回执", "progress": "进展"}
ERROR_WORDS = {
    "cancelled": "用户停止",
    "timeout": "超过时限",
    "parked": "三次都没做完",
    "failed": "没有查出结果",
}
ROLE_WORDS = {"web": "网关", "turns": "模型进程", "sender": "发送进程", "sweeper": "巡检进程"}
LEVEL_WORDS = {"ok": "正常", "warn": "警告", "fail": "不通过", "skip": "未查"}


def duration(seconds: float) -> str:
    """``0.42 秒``, ``12.3 秒``, ``3 分 20 秒``, ``5 小时 2 分``, ``3 天 4 小时``."""
    if seconds < 1:
        seconds = max(seconds, 0.0)  # the clocks of two machines may differ a little
        return f"{seconds:.2f} 秒"
    if seconds < 60:
        return f"{seconds:.1f} 秒"
    whole = int(seconds)
    for size, name, smaller, smaller_name in (
        (86_400, "天", 3600, "小时"),
        (3600, "小时", 60, "分"),
        (60, "分", 1, "秒"),
    ):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // smaller} {smaller_name}"
    raise AssertionError("every number of whole minutes has a unit")


def size(size_bytes: float) -> str:
    """``512 B``, ``63 MB``, ``5.86 GB`` (decimal)."""
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.2f} GB"
    if size_bytes >= 1e6:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e3:.0f} kB" if size_bytes >= 1e3 else f"{size_bytes:.0f} B"


def percent(share: float) -> str:
    """``93.4 %``."""
    return f"{100 * share:.1f} %"


def local_time(ms: float) -> str:
    """The machine's local time; the page's script shows that of the browser."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(ms / 1000))


def iso_time(ms: float) -> str:
    """For ``<time datetime>``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def pretty_json(value: object) -> str:
    """JSON for reading."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def register(routes: Blueprint) -> None:
    """Make the filters and words known to the templates."""
    filters: tuple[Callable[..., str], ...] = (
        duration,
        size,
        percent,
        local_time,
        iso_time,
        pretty_json,
    )
    for function in filters:
        routes.add_app_template_filter(function, f"panel_{function.__name__}")
    words = {
        "status_words": STATUS_WORDS,
        "state_words": STATE_WORDS,
        "kind_words": KIND_WORDS,
        "error_words": ERROR_WORDS,
        "role_words": ROLE_WORDS,
        "level_words": LEVEL_WORDS,
    }
    routes.context_processor(lambda: words)

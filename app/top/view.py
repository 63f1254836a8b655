"""One frame of the terminal view from a snapshot.

Owns the words and the layout. Pure: the same snapshot gives the same frame. Texts of others are
shown as they are, without markup and without control characters.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.store.presence import ProcessReport
from app.top.snapshot import Duration, Snapshot

ENGINE_FACTS: Mapping[str, str] = {
    "gpu_memory_bytes": "显存",
    "expert_hit_rate": "专家命中率",
    "expert_recall_on_misses": "未命中时的预测率",
    "num_running": "正在回答",
    "num_waiting": "等待名额",
}
_ROLES = {"web": "网关", "turns": "模型", "sender": "发送", "sweeper": "巡检"}
_TIMED = {
    "hutong_callback_seconds": "应答回调",
    "hutong_turn_wait_seconds": "排队",
    "hutong_first_token_seconds": "首个 token",
    "hutong_turn_seconds": "回答",
    "hutong_send_seconds": "发送",
}
_STATES = {"sent": "送达", "refused": "被拒", "unknown": "未知", "pending": "待重发"}
_STATUSES = {"done": "答完", "failed": "失败", "parked": "放弃"}
_LATE_S = 60.0


def render(snapshot: Snapshot) -> RenderableType:
    """The frame."""
    moment = datetime.datetime.fromtimestamp(snapshot.taken_s)
    title = Text(f"胡同 {moment:%Y-%m-%d %H:%M:%S}", style="bold")
    if not snapshot.up:
        problem = Text(f"Redis 没有回答（{snapshot.problem}）；继续尝试。", style="bold red")
        return Group(title, problem, Text("已收到的消息都在 Redis 的磁盘上。"))
    title.append(f"  {_window(snapshot)}", style="dim")
    parts: list[RenderableType] = [title, *_alerts(snapshot), *_missing(snapshot)]
    if snapshot.processes:
        parts += [Text(""), _processes(snapshot)]
    parts += [Text(""), _work(snapshot), Text(""), _durations(snapshot)]
    if snapshot.tools:
        parts += [Text(""), _tools(snapshot)]
    engines = [_engine(report) for report in snapshot.processes if report.role == "turns"]
    shown = [line for line in engines if line is not None]
    return Group(*parts, *([Text("")] if shown else []), *shown)


def _window(snapshot: Snapshot) -> str:
    if not snapshot.window_s:
        return "（累计，自存储建立以来）"
    return f"（最近 {snapshot.window_s:.0f} 秒）"


def _alerts(snapshot: Snapshot) -> list[Text]:
    lines = []
    for app, alert in snapshot.alerts.items():
        minutes = max(0.0, snapshot.taken_s - alert.since_ms / 1000) / 60
        text = f"! 应用 {app} 暂停发送 {minutes:.0f} 分钟：{alert.reason}"
        if alert.allow_ip:
            text += f"；请在「企业可信IP」里加上 {alert.allow_ip}"
        lines.append(Text(_plain(text), style="bold red"))
    return lines


def _processes(snapshot: Snapshot) -> Table:
    table = _table("进程", "主机", "pid", "内存 MB", "已运行", "心跳")
    for report in snapshot.processes:
        table.add_row(
            _ROLES.get(report.role, report.role),
            Text(_plain(report.host)),
            str(report.pid),
            f"{report.rss_bytes / 1e6:.0f}",
            _age(max(0.0, snapshot.taken_s - report.started_s)),
            f"{report.age_s:.0f} 秒前",
        )
    return table


def _missing(snapshot: Snapshot) -> list[Text]:
    running = {report.role for report in snapshot.processes}
    missing = [title for role, title in _ROLES.items() if role not in running]
    return [Text(f"! 没有在运行：{'、'.join(missing)}", style="bold red")] if missing else []


def _work(snapshot: Snapshot) -> Table:
    late = "bold red" if snapshot.oldest_s > _LATE_S else ""
    queue = f"{snapshot.queue_depth} 个没答完"
    if snapshot.queue_depth:
        queue += f"，最久的等了 {_age(snapshot.oldest_s)}"
    ended = sum(snapshot.turns.values())
    speed = snapshot.tokens.get("completion", 0)
    rate = snapshot.per_minute(speed)
    tokens = f"生成 {speed}"
    if rate is not None:
        tokens += f"（每秒 {rate / 60:.1f}）"
    tokens += f"，读入 {snapshot.tokens.get('prompt', 0)}"
    tokens += f"（缓存 {snapshot.tokens.get('cached', 0)}）"
    sends = _counts(snapshot.sends, _STATES)
    if snapshot.send_errors:
        errors = "，".join(f"{code} × {n}" for code, n in sorted(snapshot.send_errors.items()))
        sends += f"；错误码 {errors}"
    table = Table.grid(padding=(0, 2))
    table.add_row("排队", Text(queue, style=late))
    table.add_row("问题", f"{_per_minute(snapshot, ended)}{_counts(snapshot.turns, _STATUSES)}")
    table.add_row("token", tokens)
    table.add_row("发送", Text(_plain(f"{snapshot.outboxes} 人有待发；{sends}")))
    callbacks = sum(snapshot.callbacks.values())
    table.add_row(
        "回调",
        Text(_plain(f"{_per_minute(snapshot, callbacks)}{_counts(snapshot.callbacks, {})}")),
    )
    return table


def _durations(snapshot: Snapshot) -> Table:
    table = _table("用时", "次数", "p50", "p95")
    for name, title in _TIMED.items():
        took = snapshot.durations.get(name, Duration(0, None, None))
        table.add_row(title, str(took.count), _seconds(took.p50_s), _p95(took))
    return table


def _tools(snapshot: Snapshot) -> Table:
    table = _table("工具", "次数", "出错", "p50", "p95")
    for use in snapshot.tools:
        failed = Text(str(use.failed), style="red" if use.failed else "")
        name = Text(_plain(use.name)[:40])
        took = use.took
        table.add_row(name, str(use.calls), failed, _seconds(took.p50_s), _p95(took))
    return table


def _engine(report: ProcessReport) -> Text | None:
    """What the engine of a model process tells, when it tells something."""
    told = []
    for name, title in ENGINE_FACTS.items():
        value = report.facts.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name.endswith("_bytes"):
            told.append(f"{title} {value / 2**20:.0f} MiB")
        elif name.startswith("expert_"):
            told.append(f"{title} {value * 100:.1f}%")
        else:
            told.append(f"{title} {value:.0f}")
    model = report.facts.get("model")
    if isinstance(model, str):
        told.insert(0, f"模型 {model}")
    if not told:
        return None
    return Text(_plain(f"引擎 {report.host}-{report.pid}：{'，'.join(told)}"))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first)
    for title in others:
        table.add_column(title, justify="left" if title == "主机" else "right")
    return table


def _plain(text: str) -> str:
    """``text`` without anything a terminal could obey: controls, escapes, changes of direction."""
    return "".join(character if character.isprintable() else " " for character in text)


def _counts(counts: Mapping[str, int], titles: Mapping[str, str]) -> str:
    shown = [f"{titles.get(name, name)} {number}" for name, number in sorted(counts.items())]
    return "，".join(shown) or "0"


def _per_minute(snapshot: Snapshot, number: int) -> str:
    rate = snapshot.per_minute(number)
    return "" if rate is None else f"每分钟 {rate:.1f}；"


def _p95(took: Duration) -> str:
    return f">{_seconds(took.p95_s)}" if took.above else _seconds(took.p95_s)


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    return f"{seconds * 1000:.0f} 毫秒" if seconds < 1 else f"{seconds:.1f} 秒"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} 秒"
    if seconds < 7200:
        return f"{seconds / 60:.0f} 分"
    return f"{seconds / 3600:.1f} 小时" if seconds < 172_800 else f"{seconds / 86_400:.1f} 天"

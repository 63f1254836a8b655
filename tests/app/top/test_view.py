"""The frame that people see, from a snapshot alone."""

from __future__ import annotations

import io

from rich.console import Console

from app.exposition import ENGINE_GAUGES
from app.store.app_state import Alert
from app.store.presence import ProcessReport
from app.top.snapshot import Duration, Snapshot, ToolUse
from app.top.view import ENGINE_FACTS, render

NOW_S = 1_800_000_000.0


def report(role: str, pid: int, **facts: object) -> ProcessReport:
    return ProcessReport(role, f"host-{pid}", "host", pid, NOW_S - 7200, 172_000_000, 0, 2.0, facts)


def shown(snapshot: Snapshot, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(render(snapshot))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_busy_installation() -> None:
    frame = shown(
        Snapshot(
            NOW_S,
            window_s=60.0,
            processes=(
                report("sender", 3),
                report("turns", 2, model="demo-moe", expert_hit_rate=0.913, num_running=2),
                report("web", 1),
            ),
            queue_depth=7,
            oldest_s=95.0,
            outboxes=2,
            turns={"done": 11, "failed": 1},
            callbacks={"queued": 12},
            sends={"sent": 20, "refused": 1},
            send_errors={"60111": 1},
            durations={"hutong_turn_seconds": Duration(12, 0.73, 160.0, above=True)},
            tools=(ToolUse("sql_query", 9, 2, Duration(9, 0.05, 0.4)),),
            tokens={"prompt": 9000, "cached": 8000, "completion": 600},
        )
    )
    lines = [" ".join(line.split()) for line in frame.splitlines()]
    assert "（最近 60 秒）" in lines[0]
    assert "! 没有在运行：巡检" in lines
    assert "模型 host 2 172 2.0 小时 2 秒前" in lines
    assert "排队 7 个没答完，最久的等了 95 秒" in lines
    assert "问题 每分钟 12.0；答完 11，失败 1" in lines
    assert "token 生成 600（每秒 10.0），读入 9000（缓存 8000）" in lines
    assert "发送 2 人有待发；被拒 1，送达 20；错误码 60111 × 1" in lines
    assert "回答 12 730 毫秒 >160.0 秒" in lines
    assert "排队 0 — —" in lines
    assert "sql_query 9 2 50 毫秒 400 毫秒" in lines
    assert "引擎 host-2：模型 demo-moe，专家命中率 91.3%，正在回答 2" in lines


def test_without_a_window_there_are_no_rates() -> None:
    frame = shown(Snapshot(NOW_S, turns={"done": 3}))
    assert "累计" in frame
    assert "每分钟" not in frame
    assert "答完 3" in frame


def test_redis_away_is_said() -> None:
    frame = shown(Snapshot(NOW_S, problem="TimeoutError"))
    assert "Redis 没有回答（TimeoutError）；继续尝试。" in frame


def test_an_alert_names_the_address_to_allow() -> None:
    alert = Alert(60020, "not allow to access from your ip", "203.0.113.9", 0, 0)
    frame = shown(Snapshot(NOW_S, alerts={"corp:1": alert}), width=200)
    assert "应用 corp:1 暂停发送" in frame
    assert "请在「企业可信IP」里加上 203.0.113.9" in frame


def test_texts_of_others_are_neither_markup_nor_commands() -> None:
    evil = "[red]x[/red]\x1b[2J\x9b\u202e\n"
    alert = Alert(1, evil, "", 0, 0)
    frame = shown(
        Snapshot(
            NOW_S,
            alerts={"a:1": alert},
            sends={evil: 1},
            tools=(ToolUse(evil, 1, 0, Duration(0, None, None)),),
            processes=(report("turns", 1, model=evil),),
        ),
        width=200,
    )
    assert "[red]x[/red]" in frame
    assert not set("\x1b\x9b\u202e") & set(frame)


def test_every_engine_gauge_has_a_title() -> None:
    assert ENGINE_FACTS.keys() == ENGINE_GAUGES.keys()

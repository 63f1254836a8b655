"""Every tab with data in it, hostile texts among them, and every button."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from app import create_app, settings
from app.doctor.findings import Finding, ok
from app.metrics import Metrics
from app.panel.self_check import SelfCheck
from app.settings import Settings
from app.store import keys
from app.store.keys import UserKeys
from app.store.outbox import Outcome
from app.store.presence import Presence
from app.store.server import RedisServer, connect
from tests.app.panel.conftest import HOSTILE, REFUSED, TAG, Admin, ask, end, safe, settle, shown
from tests.workers.fakes import wait_for

STEPS = [
    {
        "kind": "model",
        "text": "",
        "reasoning": f"先查销售表 {HOSTILE}",
        "tool_calls": [{"name": "sql_query", "arguments": {"sql": f"SELECT '{HOSTILE}'"}}],
        "finish_reason": "tool_calls",
        "prompt_tokens": 820,
        "cached_tokens": 700,
        "completion_tokens": 31,
        "time_to_first_token_ms": 23.0,
        "duration_ms": 140.0,
    },
    {
        "kind": "tool",
        "name": "sql_query",
        "arguments": {"sql": f"SELECT '{HOSTILE}'"},
        "content": f"共5行 {HOSTILE}",
        "error": "",
        "duration_ms": 3.5,
    },
    {"kind": "model", "text": f"答 {HOSTILE}", "reasoning": ""},
]


def test_turns_are_listed_newest_first(admin: Admin, redis_client: redis.Redis) -> None:
    ask(redis_client, "t1", HOSTILE)
    end(redis_client, "t1", "答案")
    ask(redis_client, "t2", "第二问", user="<b>lisi")
    redis_client.zadd(keys.RECENT_TURNS, {"t1": 1}, xx=True)
    page = safe(admin.page("turns"))
    assert shown(HOSTILE, page)
    assert shown("<b>lisi", page)
    assert page.index("第二问") < page.index("/admin/ui/turns/t1")
    assert "完成" in page
    assert "排队" in page


def test_turns_come_in_pages(admin: Admin, redis_client: redis.Redis) -> None:
    for number in range(52):
        ask(redis_client, f"t{number}", f"问题{number}。")
        redis_client.zadd(keys.RECENT_TURNS, {f"t{number}": number}, xx=True)
    first, second = admin.page("turns"), admin.page("turns?page=2")
    assert ("问题51。" in first, "问题1。" in first) == (True, False)
    assert ("问题51。" in second, "问题1。" in second, "问题0。" in second) == (False, True, True)
    for odd in ("0", "-1", "x", "99", "9" * 30):
        admin.page(f"turns?page={odd}")


def test_a_turn_shows_its_steps_thinking_calls_results_and_parts(
    admin: Admin, redis_client: redis.Redis
) -> None:
    ask(redis_client, "t1", f"华东TOP5 {HOSTILE}")
    end(redis_client, "t1", f"答案甲 {HOSTILE}", "答案乙", steps=STEPS)
    settle(redis_client, Outcome("sent", msgid="m1"))
    settle(redis_client, REFUSED)
    page = safe(admin.page("turns/t1"))
    for text in (
        f"华东TOP5 {HOSTILE}",
        f"先查销售表 {HOSTILE}",
        json.dumps({"sql": f"SELECT '{HOSTILE}'"}, ensure_ascii=False, indent=2),
        f"共5行 {HOSTILE}",
        f"答 {HOSTILE}",
        f"答案甲 {HOSTILE}",
        f"81013 user not in scope {HOSTILE}",
        "已发出",
        "被拒",
        "提示词 820（缓存 700）",
    ):
        assert shown(text, page), text
    assert "data-refresh" not in page


@pytest.mark.parametrize("kind", ["image", "event"])
def test_other_kinds_have_a_page_too(admin: Admin, redis_client: redis.Redis, kind: str) -> None:
    ask(redis_client, "t1")
    redis_client.hset(UserKeys(TAG).turn("t1"), mapping={"msg_type": kind, "text": ""})
    assert f"[{kind}" in admin.page("turns/t1")
    assert f"[{kind}]" in admin.page("turns")
    assert f"[{kind}]" in admin.page("queue")


def test_a_waiting_turn_follows_itself_and_an_unknown_one_is_404(
    admin: Admin, redis_client: redis.Redis
) -> None:
    ask(redis_client, "t1", user="lisi")
    ask(redis_client, "t2")
    page = admin.page("turns/t2")
    assert 'data-refresh="1"' in page
    assert shown("前面还有", page)
    missing = admin.http.get("/admin/ui/turns/none")
    assert (missing.status_code, missing.mimetype) == (404, "text/html")


# --- queue ---


def test_the_queue_shows_who_waits_and_that_no_worker_runs(
    admin: Admin, redis_client: redis.Redis
) -> None:
    assert "队列是空的" in admin.page("queue")
    ask(redis_client, "t1", HOSTILE)
    ask(redis_client, "t2")
    redis_client.hset(UserKeys(TAG).turn("t1"), "status", "running")
    page = safe(admin.page("queue"))
    assert '<b id="waiting">1</b>' in page
    assert '<b id="running">1</b>' in page
    assert shown(HOSTILE, page)
    assert "没有模型进程在运行" in page
    with Presence(redis_client, "turns"):
        assert "没有模型进程在运行" not in admin.page("queue")


# --- outbox ---


def test_users_and_rights(
    environ: dict[str, str], redis_client: redis.Redis, tmp_path: Path
) -> None:
    file = tmp_path / "access.toml"
    file.write_text(
        '[departments]\n"2" = ["li<b>"]\n[tools.python_exec]\nusers = ["wang<i>"]\n'
        'departments = ["2"]\n',
        "utf-8",
    )
    values = {
        "HUTONG_ALLOWED_USERS": f"zhang,{HOSTILE.replace(',', '')}",
        "HUTONG_ALLOWED_DEPARTMENTS": "7",
        "HUTONG_ADMINS": "boss",
        "HUTONG_ACCESS_FILE": str(file),
        "HUTONG_USER_RATE_PER_MIN": "12",
        "HUTONG_MAX_QUEUED": "0",
    }
    with Metrics(redis_client) as metrics:
        metrics.count("hutong_messages", 3, outcome="refused", reason="rate")
        metrics.count("hutong_messages", outcome="queued", reason="")
    http = create_app(settings.load({**environ, **values}), redis_client).test_client()
    page = safe(Admin(http).page("users"))
    for text in ("zhang", "boss", "python_exec", "wang<i>", "li<b>", "12 条", "不限", "3 条"):
        assert shown(text, page), text
    assert "人人可用。" in page


def test_open_to_everybody(admin: Admin) -> None:
    page = admin.page("users")
    assert "人人可用" in page
    assert "每个工具人人可用" in page


def test_the_engine_shows_only_the_facts_there_are(admin: Admin, redis_client: redis.Redis) -> None:
    assert "没有模型进程在运行" in admin.page("engine")
    with Presence(redis_client, "turns", lambda: {"model": HOSTILE}), Presence(redis_client, "web"):
        page = safe(admin.page("engine"))
    assert shown(HOSTILE, page)
    assert "还没有报告" in page
    assert "热力图" not in page
    assert "显存" not in page
    facts = {
        "model": "qwen-35b",
        "num_running": 2,
        "expert_hit_rate": 0.934,
        "expert_recall_on_misses": 0.5,
        "decode_tokens_per_s": 31.25,
        "stall_s": 75,
        "gpu_memory_bytes": 5_500_000_000,
        "memory_plan": [["骨干权重", 3_000_000_000], [HOSTILE, 3_000_000_000]],
        "activation": {"layers": 48, "experts": 128, "loads": [[0.5, 2.0], [1.0, 1.0]]},
    }
    with Presence(redis_client, "turns", lambda: facts):
        page = safe(admin.page("engine"))
    for text in (
        "qwen-35b",
        "93.4 %",
        "50.0 %",
        "31.2 token/秒",
        "1 分 15 秒",
        "5.50 GB",
        "6.00 GB",
    ):
        assert shown(text, page), text
    assert page.count("fill-opacity") == 4
    assert "48 层" in page
    assert "2.0 倍" in page


@pytest.mark.parametrize(
    "facts",
    [
        {"num_running": "two", "memory_plan": {"a": 1}, "activation": [1]},
        {"memory_plan": [["a"], [1, 2, 3], ["b", None]], "activation": {"loads": [[None], "x"]}},
        {"memory_plan": [], "activation": {"loads": []}, "gpu_memory_bytes": None},
        {"memory_plan": [["a", 0]], "gpu_memory_bytes": 5},
        {"activation": {"loads": [[0, 0]]}, "expert_hit_rate": True},
    ],
)
def test_facts_of_another_version_break_nothing(
    admin: Admin, redis_client: redis.Redis, facts: dict[str, object]
) -> None:
    with Presence(redis_client, "turns", lambda: facts):
        assert "热力图" not in admin.page("engine")


# --- test ---


@pytest.mark.parametrize("mode", ["dry", "real"])
def test_a_test_message_is_queued_and_followed(
    admin: Admin, redis_client: redis.Redis, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    response = admin.post("test", user=" zhangsan ", text=f"机密{HOSTILE}", mode=mode)
    assert response.status_code == 303
    assert response.location.startswith("/admin/ui/turns/")
    page = safe(admin.page(response.location.removeprefix("/admin/ui/")))
    assert shown(f"机密{HOSTILE}", page)
    assert ("试运行" in page) == (mode == "dry")
    logged = " ".join(record.getMessage() for record in caplog.records)
    assert "机密" not in logged


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"user": "", "text": "x"}, "UserID"),
        ({"user": "@all", "text": "x"}, "UserID"),
        ({"user": "a|b", "text": "x"}, "UserID"),
        ({"user": "zhangsan", "text": " \x00"}, "请写一个问题"),
        ({"user": HOSTILE, "text": HOSTILE}, "UserID"),
    ],
)
def test_an_odd_test_message_is_refused_and_kept_in_the_form(
    admin: Admin, redis_client: redis.Redis, form: dict[str, str], problem: str
) -> None:
    response = admin.post("test", mode="real", **form)
    page = safe(response.get_data(as_text=True))
    assert (response.status_code, problem in page) == (400, True)
    assert shown(form["text"].strip(" \x00"), page)
    assert redis_client.zcard(keys.RECENT_TURNS) == 0


def test_a_test_message_of_somebody_without_rights_says_so(
    environ: dict[str, str], redis_client: redis.Redis
) -> None:
    loaded = settings.load({**environ, "HUTONG_ALLOWED_USERS": "wang"})
    admin = Admin(create_app(loaded, redis_client).test_client())
    response = admin.post("test", user="zhangsan", text="x")
    assert response.status_code == 400
    assert "不在允许的名单里" in response.get_data(as_text=True)


# --- self-check ---


def test_the_self_check_runs_at_the_first_view_and_on_request(
    admin: Admin, redis_client: redis.Redis
) -> None:
    admin.page("doctor")
    wait_for(lambda: "改 " in admin.page("doctor"))
    page = safe(admin.page("doctor"))
    assert shown(f"改 {HOSTILE}", page)
    assert "1 项正常，0 项警告，1 项不通过" in page
    assert page.index("取不到") < page.index("Redis 有回答")
    before = redis_client.get(keys.SELF_CHECK)
    wait_for(lambda: not redis_client.exists(keys.SELF_CHECK_RUNNING))
    assert admin.post("self-check").location == "/admin/ui/doctor"
    wait_for(lambda: redis_client.get(keys.SELF_CHECK) != before)
    wait_for(lambda: not redis_client.exists(keys.SELF_CHECK_RUNNING))


def test_one_self_check_at_a_time_and_one_that_fails_says_so(
    redis_client: redis.Redis,
) -> None:
    go = threading.Event()

    def examine() -> Sequence[Finding]:
        assert go.wait(10)
        raise RuntimeError("a bug")

    check = SelfCheck(redis_client, examine)
    thread = check.start()
    assert thread is not None
    assert check.running()
    assert check.start() is None
    go.set()
    thread.join(10)
    assert not check.running()
    broken = check.latest()
    assert broken is not None
    assert [finding.name for finding in broken.findings] == ["self_check"]
    thread = SelfCheck(redis_client, lambda: [ok("a", "b")]).start()
    assert thread is not None
    thread.join(10)
    report = check.latest()
    assert report is not None
    assert report.findings == (ok("a", "b"),)


def test_without_redis_a_page_says_what_to_do(configured: Settings, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "own") as server, connect(server.url, timeout_s=1) as client:
        admin = Admin(create_app(configured, client).test_client())
        server.kill()
        response = admin.http.get("/admin/ui/turns")
        assert (response.status_code, response.mimetype) == (503, "text/html")
        assert "python -m app doctor" in response.get_data(as_text=True)
        assert "no-store" in response.headers["Cache-Control"]


def test_a_report_of_another_version_is_replaced(admin: Admin, redis_client: redis.Redis) -> None:
    for odd in ("{", "[]", '{"findings": [{"title": "x"}], "ended_s": 1, "took_s": 1}'):
        redis_client.set(keys.SELF_CHECK, odd)
        admin.page("doctor")
        wait_for(lambda: "改 " in admin.page("doctor"))
        wait_for(lambda: not redis_client.exists(keys.SELF_CHECK_RUNNING))

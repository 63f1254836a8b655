"""Everything the demo runs, up and down again.

Owns the order of starting, the credentials made up for one run (they live only in the children's
environment) and what is said while people wait. Does not know what is asked.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
import requests

from app.demo.console import Console
from app.demo.local_http import local_session
from app.demo.processes import STOP_SIGNALS, Child, Processes, free_port, last_lines
from app.settings import SETTINGS, Settings, load
from app.simulator.crypto import new_encoding_aes_key
from app.store import presence
from app.store.server import RedisServer, connect

HOST = "127.0.0.1"
SIMULATOR_PORT = 8090
READY_TIMEOUT_S = 300.0
AGENT_ID = 1000002
TODAY = "2024-11-15"


class DemoError(Exception):
    """The demo cannot go on; the text says what happened, what was kept and what to do."""


@dataclass(frozen=True)
class Plan:
    """Where everything is in this run."""

    settings: Settings
    web_url: str
    simulator_url: str
    simulator_port: int
    log_dir: Path


@contextlib.contextmanager
def running(
    console: Console, redis_dir: Path, corp_id: str, log_name: str
) -> Iterator[tuple[Plan, Processes]]:
    """Everything up inside the block, everything we started down after it."""
    given = load(os.environ)
    check_paths(given)
    console.say("胡同演示：本机模拟的企业微信，其余都是真的。")
    server = RedisServer(redis_dir, given.redis_url)
    processes: Processes | None = None
    try:
        console.begin("队列和记忆（Redis）")
        server.start()
        adopted = server.pid is None and not given.redis_url
        result = "接着用上次留下的" if adopted else "好"
        console.done("用 REDIS_URL 给的" if given.redis_url else result)
        environment, plan = _plan(console, server.url, corp_id, log_name)
        _company_database(console, environment, plan)
        processes = Processes(environment, plan.log_dir)
        turns = _start_all(console, processes, plan)
        _wait_until_ready(console, processes, plan, turns)
        yield plan, processes
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        console.begin("停止全部进程")
        stubborn = processes.stop() if processes else []
        _stop_redis(server, given=bool(given.redis_url))
        console.done(f"强行结束了：{'、'.join(stubborn)}" if stubborn else "好")


def _stop_redis(server: RedisServer, *, given: bool) -> None:
    """Stop our server, also one that an earlier, killed demo left on our data."""
    if server.pid is None and not given:
        with contextlib.suppress(redis.RedisError), connect(server.url) as client:
            client.shutdown()
    server.stop()


def check_paths(settings: Settings) -> None:
    """Raises ``DemoError`` for a folder or file of ``settings`` that is not there."""
    wrong = []
    for name, path in (
        ("HUTONG_MODEL_DIR", settings.model_dir),
        ("HUTONG_DOCS_DIR", settings.docs_dir),
        ("HUTONG_SEMANTIC_FILE", settings.semantic_file),
        ("HUTONG_ACCESS_FILE", settings.access_file),
    ):
        if path is None:
            continue
        if not path.exists():
            wrong.append(f"{name}={path} 不存在")
        elif path.is_dir() != name.endswith("_DIR"):
            wrong.append(f"{name}={path} 不是{'目录' if name.endswith('_DIR') else '文件'}")
    if wrong:
        raise DemoError(f"{'；'.join(wrong)}。什么也没有启动。请改正，或者去掉这个设置用默认的。")


def _port(console: Console, title: str, preferred: int) -> int:
    port = free_port(preferred)
    if port != preferred:
        console.say(f"  · 端口 {preferred} 已被占用，{title}改用 {port}")
    return port


def _plan(
    console: Console, redis_url: str, corp_id: str, log_name: str
) -> tuple[dict[str, str], Plan]:
    """The children's environment, with fresh credentials and free ports."""
    given = load(os.environ)
    web_port = _port(console, "网关", given.port)
    simulator_port = _port(console, "企业微信模拟器", SIMULATOR_PORT)
    simulator_url = f"http://{HOST}:{simulator_port}"
    in_files = {setting.file_variable for setting in SETTINGS}
    environment = {name: value for name, value in os.environ.items() if name not in in_files}
    environment.setdefault("HUTONG_TODAY", TODAY)
    environment["HUTONG_SQL_DATABASE"] = str(given.company_database)
    environment |= {
        "REDIS_URL": redis_url,
        "WECOM_CORP_ID": corp_id,
        "WECOM_AGENT_ID": str(AGENT_ID),
        "WECOM_CORP_SECRET": secrets.token_urlsafe(32),
        "WECOM_TOKEN": secrets.token_hex(12),
        "WECOM_ENCODING_AES_KEY": new_encoding_aes_key(),
        "WECOM_API_BASE": simulator_url,
        "METRICS_TOKEN": given.metrics_token,
        "ADMIN_TOKEN": given.admin_token or secrets.token_urlsafe(24),
        "HUTONG_HOST": HOST,
        "HUTONG_PORT": str(web_port),
        "PYTHONUNBUFFERED": "1",
        # Local addresses must not go through a proxy of the machine.
        "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY", ""), HOST))),
        "no_proxy": ",".join(filter(None, (os.environ.get("no_proxy", ""), HOST))),
    }
    settings = load(environment)
    plan = Plan(
        settings,
        f"http://{HOST}:{web_port}",
        simulator_url,
        simulator_port,
        given.data_dir / log_name,
    )
    return environment, plan


def _company_database(console: Console, environment: dict[str, str], plan: Plan) -> None:
    """Generate the demo company when its database is missing."""
    settings = plan.settings
    own = settings.data_dir / "company.db"
    wanted = settings.company_database
    if isinstance(wanted, str) or wanted.resolve() != own.resolve() or own.exists():
        return
    console.begin("生成演示公司的数据库")
    log = plan.log_dir / "demo_company.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.demo_company", "--out", str(settings.data_dir)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                console.tick()
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        tail = "\n".join(f"    {line}" for line in last_lines(log))
        raise DemoError(f"没有生成演示数据库，没有写入半个文件。日志的最后几行：\n{tail}")
    console.done(f"{own}，{own.stat().st_size / 1e6:.0f} MB")


def _start_all(console: Console, processes: Processes, plan: Plan) -> Child:
    """Start the five processes; returns the one with the model."""
    python = sys.executable
    callback_url = f"{plan.web_url}/wecom/callback"
    simulator = [
        *(python, "-m", "app.simulator", "--host", HOST, "--port", str(plan.simulator_port)),
        *("--callback-url", callback_url),
    ]
    # The model takes longest, so it goes first.
    turns = processes.start("turns", "模型进程", [python, "-m", "workers", "turns"])
    processes.start("simulator", "企业微信模拟器", simulator)
    processes.start("web", "网关", [python, "-m", "app", "web"])
    processes.start("sender", "发送进程", [python, "-m", "workers", "sender"])
    processes.start("sweeper", "巡检进程", [python, "-m", "workers", "sweeper"])
    console.say("  ✓ 已启动 5 个进程：模型、模拟器、网关、发送、巡检")
    return turns


def _wait_until_ready(console: Console, processes: Processes, plan: Plan, turns: Child) -> None:
    """Until a message sent now would be answered, by the worker of this very start."""
    console.begin("载入模型、准备文档索引")
    limit_s = time.monotonic() + READY_TIMEOUT_S
    with local_session() as http, connect(plan.settings.redis_url) as client:
        while not (
            any(name.endswith(f"-{turns.process.pid}") for name in presence.alive(client))
            and _ok(http, f"{plan.web_url}/readyz")
            and _ok(http, f"{plan.simulator_url}/healthz")
        ):
            processes.check()
            if time.monotonic() > limit_s:
                raise DemoError(
                    f"等了 {READY_TIMEOUT_S:.0f} 秒还没有就绪，已经收到的消息都保存着。"
                    f"请看日志 {turns.log}，改好后再运行一次。"
                )
            console.tick()
            time.sleep(0.1)
        console.done()
        console.begin("企业微信验证回调地址")
        verification = http.post(f"{plan.simulator_url}/sim/verify", timeout=10).json()
    if not verification["ok"]:
        raise DemoError(
            f"回调地址没有通过验证：{verification['detail']}。请看日志 {plan.log_dir}/web.log"
        )
    console.done(f"{verification['detail']}，{verification['elapsed_ms']:.0f} 毫秒")


def _ok(http: requests.Session, url: str) -> bool:
    try:
        return http.get(url, timeout=2).status_code == 200
    except requests.RequestException:
        return False

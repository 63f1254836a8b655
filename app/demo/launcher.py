"""The command line of the demo: stay up with the chat page, or play questions and end.

Owns options, exit statuses and what Ctrl-C means. Does not know how anything is started.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from app.demo.console import Console
from app.demo.processes import STOP_SIGNALS, ChildDiedError, Processes
from app.demo.stack import DemoError, Plan, running
from app.demo.transcript import (
    Exchange,
    Player,
    UnknownUserError,
    find_employee,
    shortened,
    without_trailing_spaces,
)
from app.settings import load
from app.simulator.corp import EMPLOYEES, Employee
from app.store.server import RedisServerError, connect


class _StopAsked(BaseException):
    """Ctrl-C, SIGTERM, or the terminal was closed."""


@dataclass(frozen=True)
class Options:
    """The command line. ``questions`` empty: run until stopped, with the chat page."""

    questions: tuple[str, ...]
    employee: Employee


def run(argv: Sequence[str] | None) -> int:
    """Parse, run, and turn every end into words and an exit status."""
    try:
        options = _options(argv)
    except UnknownUserError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console()
    for number in STOP_SIGNALS:
        # Under nohup a hang-up is to be ignored, and stays so.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _ask_to_stop)
    try:
        return _ask(options, console) if options.questions else _serve(console)
    except _StopAsked:
        return 130 if options.questions else 0
    except (DemoError, ChildDiedError, RedisServerError) as error:
        console.say(f"\n✗ {error}")
        if isinstance(error, ChildDiedError) and not options.questions:
            console.say("已收到的消息都保存着，改好后再运行一次会接着处理。")
        return 1


def _options(argv: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m app demo",
        description="在本机跑起整条链路：模拟的企业微信、网关、队列、模型。",
    )
    parser.add_argument(
        "--ask",
        action="append",
        default=[],
        metavar="问题",
        help="不开网页，依次问这些问题并打印对话；每个都有答案时退出状态为 0",
    )
    parser.add_argument(
        "--user",
        default=EMPLOYEES[0].user_id,
        metavar="员工",
        help="以谁的身份问，如 王芳 或 WangFang",
    )
    parsed = parser.parse_args(argv)
    return Options(tuple(parsed.ask), find_employee(parsed.user))


def _ask_to_stop(_number: int, _frame: FrameType | None) -> None:
    # Once only: a second Ctrl-C must not break the stopping.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise _StopAsked


def _serve(console: Console) -> int:
    """Start everything and stay until asked to stop."""
    data_dir = load(os.environ).data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    with (
        _only_one(data_dir / "demo.lock"),
        running(console, data_dir, "wwhutongdemo", "log") as (plan, processes),
    ):
        console.say(f"\n打开 {plan.simulator_url}/ 开始提问。按 Ctrl-C 停止全部进程。")
        # One made up for this demo may be shown, one that was given may not.
        token = "ADMIN_TOKEN" if load(os.environ).admin_token else plan.settings.admin_token
        console.say(f"管理页：{plan.web_url}/admin（令牌 {token}）")
        while True:
            processes.check()
            time.sleep(0.3)


def _ask(options: Options, console: Console) -> int:
    """Start everything with an empty memory, play the questions, print the transcript."""
    data_dir = load(os.environ).data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="ask-", dir=data_dir))
    corp_id = f"wwask{secrets.token_hex(6)}"
    try:
        with running(console, fresh, corp_id, "log/ask") as (plan, processes):
            exchanges = _play(options, console, plan, processes)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    unanswered = [exchange for exchange in exchanges if exchange.problem]
    for exchange in unanswered:
        console.say(f"✗ 「{shortened(exchange.question)}」{exchange.problem}")
    return 1 if unanswered else 0


def _play(options: Options, console: Console, plan: Plan, processes: Processes) -> list[Exchange]:
    who = f"{options.employee.name}（{options.employee.department}）"
    exchanges = []

    def tick() -> None:
        processes.check()
        console.tick()

    with connect(plan.settings.redis_url) as client:
        player = Player(
            plan.simulator_url,
            client,
            corp_id=plan.settings.wecom_corp_id,
            agent_id=plan.settings.wecom_agent_id,
            employee=options.employee,
            timeout_s=plan.settings.turn_timeout_s + 30,
            tick=tick,
        )
        for question in options.questions:
            console.begin("等待答案")
            exchange = player.ask(question)
            console.done("没有答案" if exchange.problem else "收到")
            print(f"\n{who}：{shortened(question)}", flush=True)
            for reply in exchange.replies:
                print(f"\n胡同：\n{without_trailing_spaces(reply)}", flush=True)
            print(flush=True)
            exchanges.append(exchange)
    return exchanges


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """One demo a data directory; the kernel frees the lock when we die."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoError(
                f"{path.parent} 的演示已经在运行，什么也没有改动。请用它打印的地址，"
                "或者先停掉它，或者用 HUTONG_DATA_DIR 换一个目录。"
            ) from error
        yield

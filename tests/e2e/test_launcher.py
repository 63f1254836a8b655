"""The launcher with every real process but the model's: start, answer, stop, faults."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

LIMIT_S = 90.0
ROOT = Path(__file__).parents[2]


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("WECOM_", "HUTONG_")) and k not in ("REDIS_URL", "ADMIN_TOKEN")
    }
    # The fake model reads no database, so none has to be generated.
    return kept | {"HUTONG_DATA_DIR": str(data_dir), "HUTONG_SQL_DATABASE": "unused.db"} | more


def left_running(data_dir: Path) -> list[str]:
    """Command lines of live processes that were started for ``data_dir``."""
    mark = f"HUTONG_DATA_DIR={data_dir}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:
                    found.append(line)
        except OSError:
            continue
    return found


def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)


def ask(data_dir: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.e2e.demo_with_fake_model", *arguments],
        env=environment(data_dir, **more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
    )


class Demo:
    """A running ``python -m app demo`` with its page's address."""

    def __init__(self, data_dir: Path, **more: str) -> None:
        self.data_dir = data_dir
        self._log = data_dir / "terminal.txt"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.demo_with_fake_model"],
                env=environment(data_dir, **more),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    @property
    def terminal(self) -> str:
        return self._log.read_text()

    def url(self) -> str:
        """The address it says to open, once it has said it."""
        until(lambda: "打开 http" in self.terminal or self.process.poll() is not None)
        found = re.search(r"打开 (http://[\d.:]+)/", self.terminal)
        assert found, self.terminal
        return found[1]

    def child(self, part: str) -> int:
        """Process id of the child whose command line holds ``part``."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text().rsplit(") ", 1)[1].split()
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(stat[1]) == self.process.pid and part in line:
                return int(folder.name)
        raise AssertionError(f"no child {part}")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    if demo.process.poll() is None:
        demo.process.send_signal(signal.SIGTERM)
    demo.process.wait(timeout=LIMIT_S)


def app_texts(url: str, user: str = "WangFang") -> list[str]:
    messages = requests.get(f"{url}/sim/conversations/{user}", timeout=10).json()["messages"]
    return [m["text"] for m in messages if m["sender"] == "app"]


def test_questions_are_answered_in_order_and_nothing_is_left(tmp_path: Path) -> None:
    done = ask(tmp_path, "--ask", "第一", "--ask", "第二慢", "--user", "李雷")
    assert done.returncode == 0, done.stderr
    first, ack, second = (
        done.stdout.index(text) for text in ("LiLei 问：第一", "请稍候", "LiLei 问：第二慢")
    )
    assert done.stdout.index("李雷（市场部）：第一") < first < ack < second
    assert left_running(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_turn_that_failed_is_not_an_answer(tmp_path: Path) -> None:
    done = ask(tmp_path, "--ask", "第一", "--ask", "失败")
    assert done.returncode == 1
    assert "没能答出来" in done.stdout
    assert "✗ 「失败」没有答出来：没有得出能用的回答" in done.stderr
    assert "failed" not in done.stderr


def test_a_wide_table_is_a_picture_and_its_sql_is_told(tmp_path: Path) -> None:
    demo = Demo(tmp_path, HUTONG_TABLE_IMAGES="1")
    try:
        url = demo.url()
        for text, count in (("宽表", 2), ("把SQL发我", 3)):
            body = {"user": "WangFang", "text": text}
            assert requests.post(f"{url}/sim/messages", json=body, timeout=10).ok
            until(lambda count=count: len(app_texts(url)) == count)
        sentence, picture, sql = app_texts(url)
        assert sentence == "见图。"
        assert re.fullmatch(r"\[图片\] \S+\.png", picture)
        assert sql == "“宽表”用的SQL：\n\nSELECT\n  1\n统计口径：2024年"
        seen = requests.get(f"{url}/sim/conversations/WangFang", timeout=10).json()["messages"]
        (media_id,) = [m["media_id"] for m in seen if m["sender"] == "app" and m["media_id"]]
        image = requests.get(f"{url}/sim/media/{media_id}", timeout=10).content
        assert image.startswith(b"\x89PNG")
    finally:
        demo.process.send_signal(signal.SIGTERM)
        demo.process.wait(timeout=LIMIT_S)


def test_a_long_question_is_echoed_short_and_answered_whole(tmp_path: Path) -> None:
    question = "问" * 200
    done = ask(tmp_path, "--ask", question)
    assert done.returncode == 0, done.stderr
    assert f"王芳（销售部）：{'问' * 79}…\n" in done.stdout
    assert f"WangFang 问：{question}\n" in done.stdout


def test_a_missing_model_is_named_before_anything_starts(tmp_path: Path) -> None:
    done = ask(tmp_path, "--ask", "x", HUTONG_MODEL_DIR="/nope")
    assert done.returncode == 1
    assert "HUTONG_MODEL_DIR=/nope 不存在" in done.stderr
    assert "已启动" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_redis_that_does_not_answer_is_told_in_chinese(tmp_path: Path) -> None:
    done = ask(tmp_path, "--ask", "x", REDIS_URL=f"unix://{tmp_path}/nobody.sock")
    assert done.returncode == 1
    assert "REDIS_URL 指向的 Redis 没有回应" in done.stderr


def test_a_given_admin_token_is_kept(tmp_path: Path) -> None:
    demo = Demo(tmp_path, ADMIN_TOKEN="let-me-in")
    try:
        demo.url()
        child = Path(f"/proc/{demo.child('app web')}/environ").read_bytes().split(b"\0")
        assert b"ADMIN_TOKEN=let-me-in" in child
    finally:
        demo.process.send_signal(signal.SIGTERM)
        demo.process.wait(timeout=LIMIT_S)


def test_an_unknown_user_is_refused_with_the_known_names(tmp_path: Path) -> None:
    done = ask(tmp_path, "--ask", "x", "--user", "诸葛亮")
    assert done.returncode == 2
    assert "王芳" in done.stderr


@pytest.mark.parametrize("hang_up_ignored", [False, True])
def test_a_closed_terminal_stops_it_unless_told_otherwise(
    tmp_path: Path, hang_up_ignored: bool
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if hang_up_ignored else signal.SIG_DFL)
    try:
        demo = Demo(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    url = demo.url()
    demo.process.send_signal(signal.SIGHUP)
    if hang_up_ignored:
        assert requests.get(url, timeout=10).status_code == 200
        demo.process.send_signal(signal.SIGTERM)
    assert demo.process.wait(timeout=LIMIT_S) == 0
    assert left_running(tmp_path) == []


def test_it_serves_until_sigterm_and_refuses_a_second_start(demo: Demo, tmp_path: Path) -> None:
    url = demo.url()
    requests.post(
        f"{url}/sim/messages", json={"user": "WangFang", "text": "在吗"}, timeout=10
    ).raise_for_status()
    until(lambda: "WangFang 问：在吗" in app_texts(url))

    second = ask(tmp_path)
    assert second.returncode == 1
    assert "已经在运行" in second.stderr
    assert requests.get(url, timeout=10).status_code == 200

    demo.process.send_signal(signal.SIGTERM)
    assert demo.process.wait(timeout=LIMIT_S) == 0
    assert left_running(tmp_path) == []


def test_ctrl_c_twice_stops_everything_once(demo: Demo, tmp_path: Path) -> None:
    demo.url()
    demo.process.send_signal(signal.SIGINT)
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(timeout=LIMIT_S) == 0
    assert "Traceback" not in demo.terminal
    assert left_running(tmp_path) == []


def test_a_message_survives_a_restart(demo: Demo, tmp_path: Path) -> None:
    url = demo.url()
    os.kill(demo.child("fake_turns"), signal.SIGSTOP)
    sent = {"user": "WangFang", "text": "停机前的问题", "wait": True}
    requests.post(f"{url}/sim/messages", json=sent, timeout=30).raise_for_status()
    demo.process.send_signal(signal.SIGTERM)
    assert demo.process.wait(timeout=LIMIT_S) == 0
    assert "强行结束了：模型进程" in demo.terminal

    again = Demo(tmp_path)
    try:
        url = again.url()
        until(lambda: "WangFang 问：停机前的问题" in app_texts(url))
    finally:
        again.process.send_signal(signal.SIGTERM)
        again.process.wait(timeout=LIMIT_S)


def test_a_child_that_dies_is_named_with_its_log(demo: Demo, tmp_path: Path) -> None:
    demo.url()
    os.kill(demo.child("workers sender"), signal.SIGKILL)
    assert demo.process.wait(timeout=LIMIT_S) == 1
    assert "「发送进程」意外退出（收到信号 9）" in demo.terminal
    assert "sender ready" in demo.terminal
    assert str(tmp_path / "log" / "sender.log") in demo.terminal
    assert left_running(tmp_path) == []


def test_a_killed_launcher_takes_its_children_along(demo: Demo, tmp_path: Path) -> None:
    demo.url()
    demo.process.kill()
    demo.process.wait()
    # Redis stays up with the data, and the next start takes it over.
    until(lambda: not [line for line in left_running(tmp_path) if "valkey" not in line])
    again = Demo(tmp_path)
    again.url()
    again.process.send_signal(signal.SIGTERM)
    assert again.process.wait(timeout=LIMIT_S) == 0
    assert "接着用上次留下的" in again.terminal
    assert left_running(tmp_path) == []


def test_a_taken_port_is_avoided(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8090))
            taken.listen()
        except OSError:
            pass  # somebody else has it, which is as good
        done = ask(tmp_path, "--ask", "你好")
    assert done.returncode == 0, done.stderr
    assert "端口 8090 已被占用，企业微信模拟器改用 " in done.stderr

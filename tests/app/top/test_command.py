"""``python -m app top`` as a process on a real Redis."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import redis

from app.metrics import Metrics
from app.store.presence import Presence
from app.store.server import RedisServer

TIMEOUT_S = 60


def command(redis_url: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    environ = {"PATH": os.environ["PATH"], "REDIS_URL": redis_url, "TERM": "xterm"}
    return [sys.executable, "-m", "app", "top", *arguments], environ


def test_once_prints_one_frame_of_plain_text(redis_url: str, redis_client: redis.Redis) -> None:
    metrics = Metrics(redis_client)
    metrics.count("hutong_turns", 3, status="done")
    metrics.flush()
    with Presence(redis_client, "turns", lambda: {"model": "demo-moe", "num_running": 1}):
        line, environ = command(redis_url, "--once")
        done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert "答完 3" in done.stdout
    assert "模型 demo-moe，正在回答 1" in done.stdout
    assert "\x1b" not in done.stdout


def test_once_without_redis_says_so_and_fails() -> None:
    line, environ = command("redis://:secret@127.0.0.1:1/0", "--once")
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (1, "")
    assert "Redis 没有回答" in done.stdout
    assert "secret" not in done.stdout


def read_until(terminal: int, words: str) -> str:
    """What the terminal got until ``words`` were among it."""
    seen, limit = b"", time.monotonic() + TIMEOUT_S
    while words.encode() not in seen:
        assert time.monotonic() < limit, seen.decode(errors="replace")
        seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")


def test_in_a_terminal_it_outlives_redis_and_ends_with_ctrl_c(
    tmp_path: Path,
) -> None:
    with RedisServer(tmp_path) as server:
        line, environ = command(server.url, "--interval", "0.1")
        main, side = pty.openpty()
        with subprocess.Popen(line, env=environ, stdin=side, stdout=side, stderr=side) as process:
            os.close(side)
            try:
                read_until(main, "没有在运行")
                server.kill()
                read_until(main, "Redis 没有回答")
                server.start()
                read_until(main, "没有在运行")
                process.send_signal(signal.SIGINT)
                # The alternate screen is left, the cursor shown again.
                rest = read_until(main, "\x1b[?25h")
                assert process.wait(TIMEOUT_S) == 0
            finally:
                process.kill()  # what nobody reads from it would keep it, and this test, for ever
        os.close(main)
    assert "Traceback" not in rest

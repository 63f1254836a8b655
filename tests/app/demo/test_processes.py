"""Child processes: stopped with all they started, and named when they die."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from app.demo.processes import ChildDiedError, Processes, free_port, last_lines

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(child.pid, flush=True)
time.sleep(300)
"""
LEAVES_ONE_BEHIND = """
import subprocess, sys, time, signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"])
time.sleep(0.5)
print(child.pid, flush=True)
time.sleep(300)
"""


def first_line(log: Path) -> str:
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        text = log.read_text()
        if "\n" in text:
            return text.splitlines()[0]
        time.sleep(0.02)
    raise AssertionError("the child said nothing")


def is_gone(pid: int) -> bool:
    """True when ``pid`` does not run any more (a zombie that nobody has reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] == "Z"
    except OSError:
        return True


def wait_gone(pid: int) -> bool:
    limit = time.monotonic() + 10
    while not is_gone(pid) and time.monotonic() < limit:
        time.sleep(0.02)
    return is_gone(pid)


@pytest.mark.parametrize(("code", "stubborn"), [(STUBBORN, ["顽固"]), (LEAVES_ONE_BEHIND, [])])
def test_stop_ends_the_whole_group(tmp_path: Path, code: str, stubborn: list[str]) -> None:
    processes = Processes(os.environ, tmp_path)
    child = processes.start("one", "顽固", [sys.executable, "-c", code])
    grandchild = int(first_line(child.log))
    processes.check()
    assert processes.stop(timeout_s=1.0) == stubborn
    assert wait_gone(child.process.pid)
    assert wait_gone(grandchild)


def test_a_dead_child_is_named_with_its_last_lines(tmp_path: Path) -> None:
    processes = Processes(os.environ, tmp_path)
    code = "import sys; [print('line', n) for n in range(50)]; sys.exit('no model here')"
    child = processes.start("turns", "模型进程", [sys.executable, "-c", code])
    child.process.wait(timeout=30)
    with pytest.raises(ChildDiedError) as died:
        processes.check()
    text = str(died.value)
    assert "「模型进程」意外退出（退出状态 1）" in text
    assert "no model here" in text
    assert "line 49" in text
    assert "line 10" not in text
    assert str(child.log) in text
    assert processes.stop() == []


def test_a_signal_is_told_from_a_status(tmp_path: Path) -> None:
    processes = Processes(os.environ, tmp_path)
    child = processes.start("web", "网关", [sys.executable, "-c", "import time; time.sleep(300)"])
    child.process.send_signal(signal.SIGKILL)
    child.process.wait(timeout=30)
    with pytest.raises(ChildDiedError, match="收到信号 9"):
        processes.check()
    processes.stop()


def test_free_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) not in (port, 0)
    assert free_port(port) == port


def test_last_lines_of_a_long_or_missing_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_lines(log) == []
    log.write_bytes(b"a" * 1000 + b"\n\xff\xfe\n")
    first, second = last_lines(log)
    assert len(first) == 241
    assert second == "\ufffd\ufffd"

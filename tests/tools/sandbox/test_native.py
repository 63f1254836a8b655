"""The native back end: what it gives, how it ends, and that it is off without protection."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import os
import signal
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.base import Table, ToolError, ToolTimeoutError, ToolUnavailableError
from tools.sandbox import support
from tools.sandbox.base import Job, SandboxMemoryError, SandboxOutputError
from tools.sandbox.native import NativeBackend
from tools.sandbox.zygote import readable_paths

TODAY = datetime.date(2024, 11, 15)
ROW = (1, decimal.Decimal("2.5"), datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3), None)
TABLE = Table(("a", "b", "日", "时", "e"), (ROW,))

pytestmark = pytest.mark.skipif(bool(support.missing()), reason=support.missing())


@pytest.fixture(scope="module")
def native() -> Iterator[NativeBackend]:
    backend = NativeBackend()
    yield backend
    backend.close()


def said(backend: NativeBackend, code: str, *tables: Table, time_s: float = 5.0) -> str:
    outcome = backend.run(Job(code, {"tables": tables}, TODAY, time_s))
    return outcome.printed + (outcome.value or "")


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("1 + 1", "2"),
        ("x = 1", ""),
        ("print('a'); print('b')\n'c'", "a\nb\nc"),
        ("sorted(tables[0][0])", "['a', 'b', 'e', '日', '时']"),
        ("r = tables[0][0]\nr['a'], r['b'], r['日'].year, r['时'].hour, r['e']", "(1, 2.5, 2024, 3, None)"),  # noqa: E501
        ("import datetime as d\nd.date.today(), d.datetime.now()", "(2024-11-15, 2024-11-15T12:00:00)"),  # noqa: E501
        ("import datetime as d\nd.datetime.now(d.timezone.utc).isoformat()", "2024-11-15T04:00:00+00:00"),  # noqa: E501
        ("import time\ntime.sleep(10**6)\ntime.strftime('%Y-%m-%d %H')", "2024-11-15 12"),
        ("from zoneinfo import ZoneInfo\nstr(ZoneInfo('Asia/Shanghai'))", "Asia/Shanghai"),
        ("import csv, heapq, calendar, sqlite3\n'ok'", "ok"),
        ("import sys\nsys.exit(2)", ""),
        ("print(1)\nraise SystemExit", "1\n"),
    ],
)  # fmt: skip
def test_results(native: NativeBackend, code: str, content: str) -> None:
    assert said(native, code, TABLE) == content


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("while True: pass", ToolTimeoutError, "0.3秒"),
        ("[0] * 10**10", SandboxMemoryError, "256 MB"),
        ("import numpy\nnumpy.ones(10**10)", SandboxMemoryError, "分批"),
        ("print('a' * 200_000)", SandboxOutputError, "100kB"),
        ("1 / 0", ToolError, "ZeroDivisionError: division by zero"),
        ("x = (", ToolError, "语法错误"),
        ("import requests", ToolError, "只有"),
        ("import os\nos._exit(0)", ToolError, "意外退出"),
        ("raise ValueError('x' * 10**6)", ToolError, "ValueError"),
    ],
)
def test_errors(native: NativeBackend, code: str, error: type[ToolError], words: str) -> None:
    with pytest.raises(error) as caught:
        said(native, code, time_s=0.3 if "while" in code else 5.0)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_random_numbers_differ_between_runs(native: NativeBackend) -> None:
    for code in ("import random\nrandom.random()", "import numpy\nnumpy.random.rand()"):
        assert said(native, code) != said(native, code)


def test_a_killed_zygote_is_replaced(native: NativeBackend) -> None:
    assert said(native, "1") == "1"
    assert native._zygote is not None
    os.kill(native._zygote.pid, signal.SIGKILL)
    assert said(native, "2") == "2"


def test_the_zygote_has_no_environment_and_three_descriptors(native: NativeBackend) -> None:
    said(native, "1")
    assert native._zygote is not None
    process = Path(f"/proc/{native._zygote.pid}")
    assert (process / "environ").read_bytes() == b""
    names = set()
    for path in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            names.add(os.readlink(path).split(":")[0])
    assert names - {"anon_inode"} == {"/dev/null", "socket"}  # a child's pidfd, until it is reaped
    assert len(list((process / "task").iterdir())) == 1


def test_the_zygote_ends_with_its_socket(native: NativeBackend) -> None:
    said(native, "1")
    assert native._zygote is not None
    process = native._zygote._process
    native.close()
    assert process.poll() is not None
    assert said(native, "3") == "3"


def test_a_forged_refusal_does_not_turn_it_off(native: NativeBackend) -> None:
    forged = (
        "import os, struct\n"
        "for n in range(3, 40):\n"
        "    try: os.write(n, struct.pack('>cI', b'f', 2) + b'no')\n"
        "    except OSError: pass"
    )
    with pytest.raises(ToolError):
        said(native, forged)
    assert native.status().active
    assert said(native, "1") == "1"


def test_many_threads_share_it(native: NativeBackend) -> None:
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(said(native, f"print({n}) or {n}")))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(f"{n}\n{n}" for n in range(12))


def test_a_run_is_over_at_its_time(native: NativeBackend) -> None:
    said(native, "1")
    started_s = time.monotonic()
    with pytest.raises(ToolTimeoutError):
        said(native, "import signal\nsignal.pause()\nwhile True: pass", time_s=0.2)
    assert time.monotonic() - started_s < 2


def test_nothing_of_the_project_is_readable() -> None:
    root = Path(__file__).parents[3]
    packages = Path(sysconfig.get_path("purelib"))
    for path in map(Path, readable_paths()):
        assert path not in (Path("/"), Path.home(), root, *root.parents)
        assert path.name != "site-packages"
        assert not packages.is_relative_to(path)
        assert not path.is_relative_to(root) or path.is_relative_to(packages)


def test_it_is_off_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.sandbox.landlock.abi", lambda: 0)
    backend = NativeBackend()
    assert not backend.status().active
    assert "Landlock" in backend.status().reason
    with pytest.raises(ToolUnavailableError, match="Landlock"):
        said(backend, "1")


def test_it_is_off_when_the_zygote_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tools.sandbox.native._Zygote.wait_ready", lambda _zygote: "a socket can be made"
    )
    backend = NativeBackend()
    assert backend.status().active
    with pytest.raises(ToolUnavailableError):
        said(backend, "1")
    assert not backend.status().active
    assert "socket" in backend.status().reason

"""The Python tool: right answers, nothing reachable outside, always an end."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import (
    Table,
    ToolCancelledError,
    ToolContext,
    ToolError,
    ToolTimeoutError,
    ToolUnavailableError,
)
from tools.python_exec import SHOWN_CHARS, PythonTool, describe, value_text
from tools.sandbox import support, zygote
from tools.sandbox.base import Job, Outcome, Status
from tools.sandbox.monty import MontyBackend
from tools.sandbox.native import NativeBackend

ROOT = Path(__file__).parents[2]
Context = Callable[..., ToolContext]
SALES = Table(("产品", "销售额"), (("甲", 1.5), ("乙", None), ("丙", 2)))

ESCAPES = [
    "().__class__.__mro__[-1].__subclasses__()",
    "''.__class__.__base__.__subclasses__()[0].__init__.__globals__",
    "import os\nos.system('id')",
    "import os\nos.environ['PATH']",
    "import os\nos.listdir('/')",
    "import os\nos.kill(1, 9)",
    "import os\nos.fork()",
    "import subprocess\nsubprocess.run(['id'])",
    "import socket\nsocket.socket()",
    "import ctypes\nctypes.CDLL(None)",
    "import sys\nsys.modules['os']",
    "import sys\nsys._getframe(0).f_back.f_globals",
    "import importlib\nimportlib.import_module('os')",
    "import shutil\nshutil.rmtree('/tmp')",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1')",
    "__import__('os').system('id')",
    "__builtins__['open']('/etc/passwd')",
    "open('/etc/passwd').read()",
    "open('/tmp/hutong-escape', 'w').write('x')",
    "open('/proc/self/environ').read()",
    "from pathlib import Path\nPath('/etc/passwd').read_text()",
    "eval('__import__(\"os\")')",
    "exec('import os; os.system(\"id\")')",
    "compile('1', 'x', 'eval')",
    "globals()['__builtins__']['open']",
    "'{0.__class__.__init__.__globals__}'.format(1)",
    "f'{(1).__class__.__base__.__subclasses__()}'",
    "getattr(1, '__cl' + 'ass__').__base__.__subclasses__()",
    "try:\n    1/0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_globals['os']",
    "import json\njson.codecs.open('/etc/passwd')",
    "import datetime\ndatetime.sys.modules['os']",
    "import re\nre.enum.sys",
    "input()",
    "breakpoint()",
    "import threading\nthreading.Thread(target=print).start()",
    "import signal\nsignal.raise_signal(9)",
    "tables.__class__.__base__.__subclasses__()",
]
BOMBS = [
    "while True: pass",
    "10**10**8",
    "'a' * 10**10",
    "[0] * 10**10",
    "x = []\nwhile True: x.append('a' * 1000)",
    "def f(): return f()\nf()",
    "x = 3\nfor i in range(60): x = x * x",
    "while True: print('a' * 1000)",
    "import re\nre.match('(a+)+$', 'a' * 5000 + 'b')\nwhile True: pass",
    "[" * 5000,
    "d = {}\nd['d'] = d\nwhile True: str(d)",
]


@pytest.mark.parametrize("code", ESCAPES)
def test_nothing_outside_is_reachable(python_tool: PythonTool, context: Context, code: str) -> None:
    try:
        content = python_tool.run({"code": code}, context()).content
    except ToolError as error:
        content = str(error)
    for leaked in ("uid=", "root:x:", "PATH=", "<module", "site-packages", "/usr/lib"):
        assert leaked not in content
    assert not os.path.exists("/tmp/hutong-escape")
    assert python_tool.run({"code": "1 + 1"}, context()).content == "2"


@pytest.mark.parametrize("code", BOMBS)
def test_bombs_end_and_the_next_call_works(
    python_tool: PythonTool, context: Context, code: str
) -> None:
    with pytest.raises(ToolError):
        python_tool.run({"code": code}, context())
    assert python_tool.run({"code": "1 + 1"}, context()).content == "2"


def test_sleeping_takes_no_time(python_tool: PythonTool, context: Context) -> None:
    code = "import time\ntime.sleep(10**6)\n'醒了'"
    assert python_tool.run({"code": code}, context()).content == "醒了"


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("(1280*36+950)*0.85", "39975.5"),
        ("0.1 + 0.2", "0.3"),
        ("print('合计', 3)\n1 / 4", "合计 3\n0.25"),
        ("sum(row['销售额'] or 0 for row in tables[0])", "3.5"),
        ("max(tables[0], key=lambda r: r['销售额'] or 0)['产品']", "丙"),
        ("[round(x / 3, 2) for x in (1, 2)]", "[0.33, 0.67]"),
        ("{'同比': 0.125}", "{'同比': 0.125}"),
        ("import datetime\nstr(datetime.date.today())", "2024-11-15"),
        ("import datetime\n(datetime.date(2024, 12, 31) - datetime.date.today()).days", "46"),
        ("import math\nmath.ceil(math.sqrt(10))", "4"),
        ("```python\n1 + 2\n```", "3"),
        ("2**64", "18446744073709551616"),
        ("12345678.9 * 1000", "12345678900"),
        ("100000 * (1 + 0.035) ** 3", "110871.7875"),
        ("None", "运行完毕，没有输出；请print结果，或把它写成最后一行表达式"),
    ],
)
def test_results(python_tool: PythonTool, context: Context, code: str, content: str) -> None:
    assert python_tool.run({"code": code}, context(SALES)).content == content


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("1/0", "ZeroDivisionError"),
        ("x = (", "语法错误"),
        ("unknown", "NameError"),
        ("import requests", "只有"),
        ("", "空"),
        ("1" * 30000, "太长"),
        ("print('a' * 200_000)", "输出超过"),
    ],
)
def test_errors_are_one_line(
    python_tool: PythonTool, context: Context, code: str, words: str
) -> None:
    with pytest.raises(ToolError) as caught:
        python_tool.run({"code": code}, context())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_runs_share_nothing(python_tool: PythonTool, context: Context) -> None:
    python_tool.run({"code": "secret = 1"}, context())
    with pytest.raises(ToolError, match="NameError"):
        python_tool.run({"code": "secret"}, context())


def test_long_output_keeps_head_and_tail(python_tool: PythonTool, context: Context) -> None:
    code = "for i in range(2000): print(i)"
    content = python_tool.run({"code": code}, context()).content
    assert content.startswith("0\n1\n")
    assert content.endswith("1999")
    assert len(content) < SHOWN_CHARS + 40


def test_a_spent_deadline_runs_nothing(python_tool: PythonTool) -> None:
    spent = ToolContext("u", datetime.date(2024, 11, 15), time.monotonic() - 1)
    with pytest.raises(ToolTimeoutError):
        python_tool.run({"code": "1"}, spent)


@pytest.mark.parametrize("backend", [MontyBackend, NativeBackend])
def test_a_stopped_turn_ends_the_run_and_the_next_one_works(
    backend: type[MontyBackend] | type[NativeBackend], context: Context
) -> None:
    made = backend(max_workers=1)
    if not made.status().active:
        pytest.skip(made.status().reason)
    tool = PythonTool(time_limit_s=60, backends=[made])
    try:
        for code in (
            "while True: pass",
            "x = 0\nfor i in range(10**12): x += i",
            "while True:\n    print(sum(range(10**6)), flush=True)",
        ):
            asked = itertools.count()
            stopped = dataclasses.replace(context(), cancelled=lambda a=asked: next(a) > 2)
            with pytest.raises(ToolCancelledError):
                tool.run({"code": code}, stopped)
            assert tool.run({"code": "1 + 1"}, context()).content == "2"
    finally:
        tool.close()


def test_the_tool_works_again_after_close(context: Context) -> None:
    tool = PythonTool()
    assert tool.run({"code": "1"}, context()).content == "1"
    tool.close()
    assert tool.run({"code": "2"}, context()).content == "2"
    tool.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e300, "1e+300"), (float("nan"), "nan"), (-0.0, "0"), ((1,), "(1,)"), ("a", "a")],
)
def test_values(value: object, text: str) -> None:
    assert value_text(value) == text


class _Off:
    """A back end that cannot protect."""

    def __init__(self, name: str) -> None:
        self.name = name

    def status(self) -> Status:
        return Status(self.name, False, f"{self.name}缺内核支持")

    def run(self, job: Job) -> Outcome:
        raise AssertionError("a back end that is off was used")

    def close(self) -> None:
        pass


def test_without_protection_the_tool_is_off(context: Context) -> None:
    tool = PythonTool(backends=[_Off("甲"), _Off("乙")])
    with pytest.raises(ToolUnavailableError, match=r"甲缺内核支持.*乙缺内核支持"):
        tool.run({"code": "1"}, context())
    assert [status.active for status in tool.describe()] == [False, False]


def test_without_the_native_back_end_a_gap_goes_to_the_model(context: Context) -> None:
    tool = PythonTool(backends=[MontyBackend(), _Off("native")])
    with pytest.raises(ToolError, match=r"statistics.*换一种写法"):
        tool.run({"code": "import statistics"}, context())
    assert tool.run({"code": "1 + 1"}, context()).content == "2"
    tool.close()


@pytest.mark.skipif(bool(support.missing()), reason=support.missing())
def test_without_monty_the_native_back_end_runs_everything(context: Context) -> None:
    tool = PythonTool(backends=[_Off("monty"), NativeBackend()])
    assert tool.run({"code": "1 + 1"}, context()).content == "2"
    tool.close()


@pytest.mark.skipif(bool(support.missing()), reason=support.missing())
def test_a_gap_is_run_again_natively_and_output_comes_once(
    python_tool: PythonTool, context: Context
) -> None:
    code = "print('一次')\nimport statistics\nstatistics.mean(r['销售额'] or 0 for r in tables[0])"
    content = python_tool.run({"code": code}, context(SALES)).content
    assert content == "一次\n1.16666666667"


def test_describe_names_both_back_ends_and_starts_nothing() -> None:
    names = [(status.name, bool(status.reason)) for status in describe()]
    assert names == [("monty", True), ("native", True)]


def test_no_code_is_ever_run_in_this_process() -> None:
    for path in (ROOT / "tools").rglob("*.py"):
        runs = re.search(r"(?<![.\w])(exec|eval)\(", path.read_text(encoding="utf-8"))
        assert runs is None or path.name == "child.py", path


def test_what_the_sandbox_loads_is_pinned() -> None:
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    pinned = {line.split("==")[0] for line in pins.splitlines() if "==" in line}
    loaded = {name for name in zygote.PRELOADED if name not in sys.stdlib_module_names}
    assert loaded == {"numpy", "pandas"}
    assert loaded | {"pydantic-monty"} <= pinned

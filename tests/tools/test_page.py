"""docs/tools.md: its examples are run as they stand there, its limits are those of the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools import (
    chart,
    histogram,
    passages,
    python_exec,
    search,
    semantic,
    sql,
    sql_check,
    sql_process,
    sql_server,
)
from tools.sandbox import base, child, monty, native, support

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^\$ python -m (tools [^\n]+)\n(.*?)(?=^\$ |^```)", PAGE, re.MULTILINE | re.DOTALL
)


def test_every_tool_has_an_example() -> None:
    shown = {shlex.split(command)[1] for command, _ in EXAMPLES}
    assert shown == {"sql_query", "python_exec", "search_docs"}


@pytest.mark.parametrize(("command", "output"), EXAMPLES)
def test_an_example_is_true(
    command: str, output: str, company_db: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if "python_exec" in command and support.missing():
        pytest.skip(support.missing())
    index = tmp_path_factory.getbasetemp() / "page-index"
    options = ["--database", str(company_db), "--index", str(index)]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = re.sub(r"（\d+ 毫秒）\n$", "", done.stdout) + done.stderr
    assert said == output


def test_the_semantic_file_of_the_page_is_one(tmp_path: Path) -> None:
    (written,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "semantic.yaml"
    file.write_text(written, encoding="utf-8")
    assert semantic.load(file).time_column("orders") == "order_date"


@pytest.mark.parametrize(
    "said",
    [
        f"| 时间 | {sql.TIMEOUT_S:g} 秒，且不超过这次回答剩下的时间 | 查询超过了",
        f"| {sql.TIMEOUT_S + sql_process.KILL_GRACE_S:g} 秒 | 查询超过了时间或内存上限",
        f"{sql.MAX_ROWS} 行、{sql.MAX_BYTES // 1000} kB，模型看 {sql.SHOWN_ROWS} 行",
        f"{sql_check.SQL_LIMIT_CHARS:,} 个字符、{sql_check.MOST_LEVELS} 层",
        f"再过 {sql_server.CANCEL_GRACE_S:g} 秒关掉套接字",
        f"| 时间 | {base.TIME_LIMIT_S:g} 秒，且不超过这次回答剩下的时间 | 代码超过了",
        f"| 打印 | {base.OUTPUT_LIMIT_BYTES // 1000} kB |",
        f"| 给模型看的 | {python_exec.SHOWN_CHARS:,} 个字符",
        f"| 代码 | {python_exec.CODE_LIMIT_CHARS:,} 个字符",
        f"| 内存 | {monty.MEMORY_LIMIT_BYTES >> 20} MB；Linux 上进程的地址空间另有"
        f" {monty.ADDRESS_SPACE_BYTES >> 30} GB 的硬上限"
        f" | 比启动时多 {native.MEMORY_LIMIT_BYTES >> 20} MB |",
        f"打开 {child._MAX_OPEN_FILES} 个文件",
        f"再来的等 {native._BUSY_TIMEOUT_S:g} 秒 | Python沙箱正忙",
        f"最多 {chart.MAX_BARS} 根条（时间 {chart.MAX_TIME_BARS} 根，分组 {chart.MAX_GROUPS} 组）",
        f"至少 {histogram.MIN_VALUES} 个不同的值 | 直方图，最多 {histogram.MAX_RANGES} 段",
        f"| line，超过 {chart.MAX_TIME_BARS} 个时间点 |",
        f"| 找到的段落 | {search.MAX_PASSAGES} 段 | {search.NOTHING} |",
        f"| 一段 | 约 {passages.PASSAGE_CHARS} 个字符",
        f"| 一个文件 | {passages.FILE_LIMIT_BYTES // 1_000_000} MB，",
        f"前 {search.QUERY_CHARS} 个字符",
    ],
)
def test_a_limit_is_that_of_the_code(said: str) -> None:
    assert said in PAGE


def test_every_error_of_the_tables_is_said_by_the_code() -> None:
    """By its words without what stands for a name, a number or a cut."""
    code = "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for path in (ROOT / "tools").rglob("*.py")
    )
    rows = re.findall(r"^\|[^|\n]+\|[^|\n]*\|([^|\n]+)\|$", PAGE, re.MULTILINE)
    errors = [row.strip() for row in rows if re.search(r"[，；]请|没有|不允许|已停止|只能", row)]
    assert len(errors) > 15
    for error in errors:
        words = re.split(r"“[^”]*”|[A-Za-z0-9_./:' ]+|…+|（[^）]*）", error)
        for part in words:
            piece = part.strip("，；：？ ")
            assert len(piece) < 5 or piece in code, (error, piece)

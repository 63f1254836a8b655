"""``python -m tools`` and ``python -m tools.demo_company`` as a person runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_sql_by_hand_prints_rows_chart_and_scope(company_db: Path) -> None:
    sql = (
        '{"sql": "SELECT region, SUM(quantity*price) FROM sales_data WHERE year=2023'
        ' GROUP BY region ORDER BY 2 DESC LIMIT 2", "chart": "bar"}'
    )
    done = _run("tools", "sql_query", sql, "--database", str(company_db))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("区域|销售额\n华东|")
    assert "华东 |████████████████ " in done.stdout
    assert "口径：2023年" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["python_exec", '{"code": "1/0"}'], 1, "ZeroDivisionError"),
        (["python_exec", "{"], 2, "JSON"),
        (["python_exec", "{}"], 1, "缺少code"),
        (["sql_query", '{"sql": "SELECT 1"}', "--database", "none.db"], 1, "没有找到数据库文件"),
    ],
)
def test_errors_have_a_status_and_no_traceback(arguments: list[str], code: int, words: str) -> None:
    done = _run("tools", *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_company_is_written(tmp_path: Path) -> None:
    done = _run("tools.demo_company", "--out", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "company.db").stat().st_size > 1_000_000
    assert "sales_data" in done.stdout

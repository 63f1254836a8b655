"""The whole path with the shipped model: the README's six questions, checked against the data.

Every figure is computed here from the demo company's database and written as the product writes
figures; nothing is compared with a recorded answer.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.demo_run import Transcript, ask
from tools.numbers import format_number

pytestmark = pytest.mark.model

TOP5 = "分析华东区Q3销售TOP5产品"
FOLLOW_UP = "那华北呢"
TREND = "2024年每月销售额趋势"
SHARE = "上季度各品类销售额占比"
CALCULATION = "帮我算一下 (1280*36+950)*0.85"
DOCUMENT = "年假有几天"

Rows = list[tuple[str, float]]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def transcript(data_dir: Path) -> Transcript:
    return ask(data_dir, TOP5, FOLLOW_UP, TREND, SHARE, CALCULATION, DOCUMENT)


@pytest.fixture(scope="module")
def database(transcript: Transcript, data_dir: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{data_dir / 'company.db'}?mode=ro", uri=True)
    yield connection
    connection.close()


def rows(database: sqlite3.Connection, sql: str) -> Rows:
    return [(str(label), float(value)) for label, value in database.execute(sql)]


def top5(database: sqlite3.Connection, region: str) -> Rows:
    return rows(
        database,
        "SELECT product_name, SUM(quantity * price) FROM sales_data WHERE region = "
        f"'{region}' AND year = 2024 AND quarter = 3 GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
    )


def bars(answer: str) -> list[int]:
    """Lengths of the bars, top to bottom."""
    return [len(bar) for bar in re.findall(r"█+", answer)]


def assert_in_order(answer: str, expected: Rows) -> None:
    """Each label with its figure on one line, in this order."""
    lines = [line for line in answer.splitlines() if not line.startswith("统计口径")]
    at = -1
    for label, value in expected:
        wanted = (label, format_number(value))
        found = [i for i, line in enumerate(lines) if i > at and all(w in line for w in wanted)]
        assert found, f"{wanted} not after line {at} in:\n{answer}"
        at = found[0]


def assert_in_proportion(answer: str, expected: Rows) -> None:
    lengths = bars(answer)
    assert len(lengths) == len(expected), answer
    longest = max(lengths)
    assert longest >= 8
    largest = max(value for _, value in expected)
    for length, (label, value) in zip(lengths, expected, strict=True):
        assert abs(length - longest * value / largest) <= 1, (label, answer)


def test_every_question_got_an_answer(transcript: Transcript) -> None:
    assert transcript.status == 0, transcript.progress
    assert list(transcript.answers) == [TOP5, FOLLOW_UP, TREND, SHARE, CALCULATION, DOCUMENT]


@pytest.mark.parametrize(("question", "region"), [(TOP5, "华东"), (FOLLOW_UP, "华北")])
def test_the_five_best_products_with_their_sums_and_a_chart(
    transcript: Transcript, database: sqlite3.Connection, question: str, region: str
) -> None:
    answer = transcript.answers[question]
    expected = top5(database, region)
    assert_in_order(answer, expected)
    assert_in_proportion(answer, expected)
    assert region in answer
    assert "2024年第3季度" in answer, "the answer names the period it used"


def test_the_trend_by_month(transcript: Transcript, database: sqlite3.Connection) -> None:
    answer = transcript.answers[TREND]
    months = rows(
        database,
        "SELECT month, SUM(quantity * price) FROM sales_data WHERE year = 2024 "
        "GROUP BY 1 ORDER BY 1",
    )
    assert_in_order(answer, months)
    assert_in_proportion(answer, months)


def test_the_share_by_category(transcript: Transcript, database: sqlite3.Connection) -> None:
    answer = transcript.answers[SHARE]
    categories = rows(
        database,
        "SELECT category, SUM(quantity * price) FROM sales_data WHERE year = 2024 AND quarter = 3 "
        "GROUP BY 1 ORDER BY 2 DESC",
    )
    total = sum(value for _, value in categories)
    lines = answer.splitlines()
    for category, value in categories:
        wanted = (category, f"{value / total * 100:.1f}%")
        assert any(all(w in line for w in wanted) for line in lines), (wanted, answer)


def test_the_calculation(transcript: Transcript) -> None:
    assert "39975.5" in transcript.answers[CALCULATION].replace(",", "")


def test_the_document_question_names_its_source(transcript: Transcript) -> None:
    answer = transcript.answers[DOCUMENT]
    assert "5天" in answer
    assert "《员工休假制度》" in answer


def test_the_thinking_and_the_calls_are_never_sent(transcript: Transcript) -> None:
    for answer in transcript.answers.values():
        assert not re.search(r"</?(think|tool_call|tool_response)>|SELECT ", answer)

"""The words of a printed conversation."""

from __future__ import annotations

import pytest

from app.demo.transcript import shortened, why_failed, without_trailing_spaces
from app.store.turns import Turn


def test_a_long_question_is_echoed_on_one_short_line() -> None:
    assert shortened("年假\n 有几天") == "年假 有几天"
    assert shortened("字" * 80) == "字" * 80
    assert shortened("字" * 81) == "字" * 79 + "…"


def test_replies_lose_only_the_spaces_at_the_ends_of_lines() -> None:
    assert without_trailing_spaces("  a  b \n\n█\u3000\n c\n") == "  a  b\n\n█\n c"


@pytest.mark.parametrize(
    ("error", "reason"),
    [("timeout", "超过了时限"), ("failed", "没有得出能用的回答"), ("ValueError", "turns.log")],
)
def test_a_failure_is_explained_without_codes(error: str, reason: str) -> None:
    text = why_failed(Turn("t1", "{a:b:c}", "text", "问", "failed", error=error))
    assert reason in text
    assert "编号 t1" in text
    assert error not in text

"""Splitting: nothing lost, nothing too long, nothing torn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wecom.reply import split_text

ANY_TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from("\n。 █👩‍🇨🇳"), max_size=400)


@given(ANY_TEXT, st.integers(4, 300))
def test_parts_join_to_the_text_and_fit(text: str, limit_bytes: int) -> None:
    parts = split_text(text, limit_bytes)
    assert "".join(parts) == text
    assert all(0 < len(part.encode()) <= limit_bytes for part in parts)


@given(st.lists(st.text("ab字", min_size=1, max_size=8), min_size=1, max_size=40))
def test_lines_that_fit_are_never_cut(lines: list[str]) -> None:
    parts = split_text("\n".join(lines), 32)
    assert [line for part in parts for line in part.splitlines()] == lines


def test_683_characters_of_three_bytes_are_one_too_many() -> None:
    """683 x 好 is 2049 bytes."""
    assert len(split_text("好" * 682)) == 1
    assert len(split_text("好" * 683)) == 2


def test_text_that_fits_is_one_part() -> None:
    assert split_text("a\nb\n") == ["a\nb\n"]


def test_no_text_is_no_part() -> None:
    assert split_text("") == []


def test_a_long_line_is_cut_after_a_sentence() -> None:
    assert split_text("一二三四五。六七八九十。", 24) == ["一二三四五。", "六七八九十。"]


@pytest.mark.parametrize("sign", ["👨‍👩‍👧", "🇨🇳", "👍🏽", "❤️", "e\u0301"])
def test_an_emoji_sequence_is_not_torn(sign: str) -> None:
    for lead in range(0, 30):
        parts = split_text("x" * lead + sign * 3, 40)
        assert all(part.replace(sign, "").strip("x") == "" for part in parts)


def test_a_sequence_longer_than_a_part_is_cut_between_code_points() -> None:
    text = "👩" + "\u200d👩" * 20
    parts = split_text(text, 16)
    assert "".join(parts) == text


def test_a_limit_below_one_code_point_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        split_text("x", 3)

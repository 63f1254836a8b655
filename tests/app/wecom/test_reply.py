"""Splitting: nothing lost, nothing too long, nothing torn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wecom.reply import TEXT_LIMIT_BYTES, marked_parts, split_text, without_mark

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


@given(ANY_TEXT | st.text("字。\n", min_size=300, max_size=900), st.integers(40, 300))
def test_marked_parts_join_to_the_text_and_fit(text: str, limit_bytes: int) -> None:
    parts = marked_parts(text, limit_bytes)
    if len(parts) > 1:
        assert "".join(without_mark(part) for part in parts) == text
        total = len(parts)
        heads = [part.split("\n", 1)[0] for part in parts]
        assert heads == [f"({n}/{total})" for n in range(1, total + 1)]
    else:
        assert "".join(parts) == text
    assert all(len(part.encode()) <= limit_bytes for part in parts)


def test_complaint_25_683_characters_fit_two_marked_messages() -> None:
    """683 x 好 = 2049 bytes: the last one was cut silently."""
    parts = marked_parts("好" * 683)
    assert [len(part.encode()) <= TEXT_LIMIT_BYTES for part in parts] == [True, True]
    assert "".join(without_mark(part) for part in parts) == "好" * 683
    assert len(marked_parts("好" * 682)) == 1


def test_more_than_nine_parts_have_room_for_longer_marks() -> None:
    parts = marked_parts("字" * 3000, 60)
    assert parts[0].startswith(f"(1/{len(parts)})\n")
    assert len(parts) > 99
    assert all(len(part.encode()) <= 60 for part in parts)


@given(st.integers(0, 120), st.integers(60, 120))
def test_complaint_26_a_link_is_not_torn(lead: int, limit_bytes: int) -> None:
    link = "https://example.cn/a,b?c=d;e.f!g"
    parts = split_text("字" * lead + link + "。" + link, limit_bytes)
    assert sum(part.count(link) for part in parts) == 2


@given(st.integers(0, 40), st.integers(1, 4), st.booleans())
def test_a_chart_that_fits_is_not_torn(lead: int, rows: int, two_lines: bool) -> None:
    row = "华东 12万\n████████\n" if two_lines else "华东 |████████ 12万\n"
    chart = row * rows
    text = "说明文字\n" * lead + "\n" + chart + "\n统计口径：全部\n"
    parts = split_text(text, 240)
    assert "".join(parts) == text
    assert any(chart in part for part in parts)


def test_a_chart_larger_than_a_part_is_cut_between_its_rows() -> None:
    row = "华东 12万\n████████\n"
    for part in split_text(row * 40, 240):
        assert part.count("华东") == part.count("████████")
        assert part.startswith("华东")


def test_a_run_of_flags_is_cut_between_flags() -> None:
    for part in split_text("🇨🇳" * 50, 60):
        assert part == "🇨🇳" * (len(part) // 2)

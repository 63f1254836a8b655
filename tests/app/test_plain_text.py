"""Full-width input methods, and messages without words."""

from __future__ import annotations

import pytest

from app.plain_text import fold_full_width, has_words


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("１２３＋４５６", "123+456"),
        ("ＱＱ", "QQ"),
        ("／ｈｅｌｐ", "/help"),
        ("＃清除记忆", "#清除记忆"),
        ("华东，Ｑ３销售额（含税）？", "华东，Q3销售额（含税）？"),
        ("①㎡ﬁ½ｱ", "①㎡ﬁ½ｱ"),
        ("", ""),
    ],
)
def test_only_full_width_ascii_is_folded(text: str, folded: str) -> None:
    assert fold_full_width(text) == folded


@pytest.mark.parametrize("text", ["在", "a", "7", "７", "年假？", "👍好", "〇"])
def test_words(text: str) -> None:
    assert has_words(text)


@pytest.mark.parametrize("text", ["", " ", "？？？", "...", "👍🏽❤️", "\x00\x07\u200b\u202e", "￥%"])
def test_no_words(text: str) -> None:
    assert not has_words(text)

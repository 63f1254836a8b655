"""Markdown to WeCom text: nothing raw is shown, nothing said is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wecom.markdown import to_text, to_wecom_markdown

PLAIN = st.text(
    st.characters(codec="utf-8", exclude_characters="*＊#`~|[]<>\\-+_\x00\r\n"), max_size=60
)
WILD = st.text(st.sampled_from("*＊#`~|[]()<>\\-+_ \na1字/:.\x00!") | st.characters(), max_size=120)
CELL = st.text("字a1%.", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("**华东**最好：**1.2亿**。", "华东最好：1.2亿。"),
        ("＊＊P1＊＊ 说明", "P1 说明"),
        ("这是*重点*内容", "这是重点内容"),
        ("~~旧~~新", "旧新"),
        ("# 结论\n正文", "【结论】\n正文"),
        ("### **结论** ###", "【结论】"),
        ("- 一\n* 二\n+ 三\n  - 四", "· 一\n· 二\n· 三\n  · 四"),
        ("1. 一\n2. 二", "1. 一\n2. 二"),
        ("上\n---\n下", "上\n\n下"),
        ("```sql\nSELECT **x** FROM t\n```\n完", "SELECT **x** FROM t\n完"),
        ("```\n没有结束", "没有结束"),
        ("用`a*b*c`算", "用a*b*c算"),
        ("见[制度](https://a.cn/x_y?q=1)第3条", "见制度 https://a.cn/x_y?q=1 第3条"),
        ("[https://a.cn](https://a.cn)", "https://a.cn"),
        ("<https://a.cn>", "https://a.cn"),
        ("![图](http://a.cn/1.png)", "图 http://a.cn/1.png"),
        ("a\\*b\\*c", "a*b*c"),
        ("一<br>二", "一\n二"),
    ],
)
def test_markdown_becomes_text(markdown: str, text: str) -> None:
    assert to_text(markdown) == text


@pytest.mark.parametrize(
    "text",
    [
        "2**3 和 3**2",
        "3*4*5 = 60",
        "snake_case_name 和 __init__",
        "#清除记忆",
        "销售额 > 5 且 < 10",
        "华东 |████ 12\n华北 |██ 6",
        "华东 1.2亿\n████████\n华北 0.6亿\n████",
        "-5% 到 +3%",
        "a|b",
    ],
)
def test_what_only_looks_like_markdown_stays(text: str) -> None:
    assert to_text(text) == text


@given(PLAIN)
def test_plain_text_is_unchanged(text: str) -> None:
    assert to_text(text) == text
    assert to_wecom_markdown(text) == text


def test_complaint_28_tables_become_name_value_lines() -> None:
    """BytePioneer-AI/openclaw-china#112: pipes and ** shown raw."""
    table = "| 地区 | 销售额 |\n|:---|---:|\n| 华东 | **12** |\n| 华北 | 8 |\n\n以上。"
    assert to_text(table) == "地区：华东，销售额：12\n地区：华北，销售额：8\n\n以上。"


@given(st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=2, max_size=6))
def test_every_cell_of_a_table_is_said(rows: list[list[str]]) -> None:
    lines = ["|" + "|".join(row) + "|" for row in rows]
    text = to_text("\n".join([lines[0], "|---|:--:|--:|", *lines[1:]]))
    assert "|" not in text
    assert len(text.splitlines()) == len(rows) - 1
    for line, row in zip(text.splitlines(), rows[1:], strict=True):
        pairs = zip(rows[0], row, strict=True)
        assert line == "，".join(f"{name}：{cell}" for name, cell in pairs)


def test_rows_with_too_few_or_too_many_cells_lose_nothing() -> None:
    assert to_text("a|b\n-|-\n1\\|2|3|4\n5|") == "a：1|2，b：3，4\na：5"


@pytest.mark.parametrize("convert", [to_text, to_wecom_markdown])
@pytest.mark.parametrize(
    "hostile",
    [
        '<a href="http://evil.example">点我</a>',
        "<A HREF=x>领奖</A>",
        "< a href=x>",
        "`<a href='x'>`",
        "```\n<a href=x>\n```",
        "\\<a href=x>",
        "<\x00a href=x>",
        "|x|\n|-|\n|<a href=x>y</a>|",
    ],
)
def test_no_html_link_survives(convert: object, hostile: str) -> None:
    assert "<a" not in convert(hostile).lower().replace(" ", "")  # type: ignore[operator]


def test_a_hidden_target_is_written_out() -> None:
    assert to_text('<a href="http://evil.example">官网</a>') == "官网 http://evil.example"


@given(WILD)
def test_any_text_converts_and_holds_no_html_link(text: str) -> None:
    for convert in (to_text, to_wecom_markdown):
        shown = convert(text)
        assert "\x00" not in shown
        assert "<a " not in shown.lower()


@pytest.mark.parametrize(
    "piece", ["**a", "[a](", "`a", "``", "<a href=", "|-", "*a", "~~a", "[", "- "]
)
def test_hostile_repetition_ends_soon(piece: str) -> None:
    """A quadratic pattern would take minutes here and the test run would notice."""
    to_text(piece * 20_000)
    to_wecom_markdown(piece * 20_000)


def test_app_markdown_keeps_its_subset_and_writes_the_rest_as_text() -> None:
    markdown = "# 结论\n**好** `x` [a](http://b)\n> 引用\n|a|b|\n|-|-|\n|1|2|\n```\ncode\n```"
    shown = to_wecom_markdown(markdown)
    assert shown == "# 结论\n**好** `x` [a](http://b)\n> 引用\na：1，b：2\ncode"

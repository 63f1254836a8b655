"""Charts, byte by byte and by display width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import chart
from tools.base import Table

NAN = float("nan")


def draw(table: Table, kind=None, limit_bytes: int = 2048) -> str:
    return chart.render(table, kind, limit_bytes=limit_bytes)


def sales(*rows: tuple[object, object]) -> Table:
    return Table(("产品", "销售额"), tuple(rows))  # type: ignore[arg-type]


TOP5 = sales(
    ("星云X1手机", 1726362.0),
    ("墨舟轻薄本", 1476989.0),
    ("凌峰14笔记本", 1395671.0),
    ("青鸟P5手机", 957805.0),
    ("星云S2手机", 827551.0),
)


def test_labels_of_several_widths_stand_above_bars_from_the_margin() -> None:
    assert draw(TOP5, "bar") == (
        "星云X1手机 172.64万\n████████████████\n"
        "墨舟轻薄本 147.7万\n██████████████\n"
        "凌峰14笔记本 139.57万\n█████████████\n"
        "青鸟P5手机 95.78万\n█████████\n"
        "星云S2手机 82.76万\n████████"
    )


def test_the_shape_decides_when_the_model_does_not_ask() -> None:
    assert draw(TOP5) == draw(TOP5, "bar")


def test_labels_of_one_width_stand_beside_their_bars() -> None:
    table = sales(("P1001", 100), ("P1002", 50), ("P1003", 3))
    assert draw(table, "bar") == ("P1001 |████████████████ 100\nP1002 |████████ 50\nP1003 |█ 3")


def test_negative_zero_null_and_nan() -> None:
    table = sales(("华东", 8), ("华南", -4), ("华北", 0), ("华中", None), ("西南", NAN))
    assert draw(table, "bar") == (
        "华东 |████████████████ 8\n华南 |▒▒▒▒▒▒▒▒ -4\n华北 |0\n华中 |—\n西南 |—"
    )


def test_a_tiny_value_still_gets_a_block() -> None:
    assert draw(sales(("甲", 1e15), ("乙", 0.5)), "bar").endswith("乙 |█ 0.5")


def test_all_zero_and_all_null() -> None:
    assert draw(sales(("甲", 0), ("乙", 0)), "bar") == "甲 |0\n乙 |0"
    assert draw(sales(("甲", None), ("乙", None)), "bar") == ""


def test_share_names_percentages() -> None:
    table = sales(("手机", 60), ("电脑", 30), ("家电", 10))
    assert draw(table, "share") == (
        "手机 |████████████████ 60 60.0%\n电脑 |████████ 30 30.0%\n家电 |███ 10 10.0%"
    )


def test_share_of_a_negative_part_is_a_bar_chart() -> None:
    table = sales(("手机", 60), ("电脑", -30))
    assert draw(table, "share") == draw(table, "bar")


def test_one_row() -> None:
    assert draw(sales(("华东", 3))) == ""
    assert draw(sales(("华东", 3)), "bar") == "华东 |████████████████ 3"


@pytest.mark.parametrize(
    "table",
    [
        Table(("销售额",), ((3,),)),
        Table(("销售额", "销量"), ((3, 4),)),
        Table(("姓名", "部门"), (("王伟", "研发部"), ("李娜", "财务部"))),
        Table(("产品", "销售额"), ()),
    ],
)
def test_shapes_without_a_chart(table: Table) -> None:
    assert draw(table) == ""


def test_none_is_no_chart() -> None:
    assert draw(TOP5, "none") == ""


def test_months_are_bars_in_a_trend() -> None:
    table = Table(("月", "销售额"), ((1, 100), (2, 50), (10, 25)))
    assert draw(table, "line") == "01月 |████████████████ 100\n02月 |████████ 50\n10月 |████ 25"


def test_year_and_month_join_into_one_label() -> None:
    table = Table(("年", "月", "销售额"), ((2023, 12, 4), (2024, 1, 8)))
    assert draw(table, "line") == "2023-12 |████████ 4\n2024-01 |████████████████ 8"


def test_a_year_is_a_label_not_a_figure() -> None:
    table = Table(("年", "销售额"), ((2023, 4), (2024, 8)))
    assert draw(table, "bar") == "2023年 |████████ 4\n2024年 |████████████████ 8"


def test_a_long_trend_is_a_sparkline() -> None:
    rows = tuple((f"{2022 + i // 12}-{i % 12 + 1:02d}", i) for i in range(30))
    assert draw(Table(("月份标签", "销量"), rows), "line") == (
        "2022-01 至 2024-06\n▁▁▁▂▂▂▂▃▃▃▃▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇███\n最高 2024-06 29\n最低 2022-01 0"
    )


def test_a_flat_sparkline() -> None:
    rows = tuple((f"2024-01-{i + 1:02d}", 5) for i in range(26))
    assert draw(Table(("日期", "销量"), rows), "line").split("\n")[1] == "▄" * 26


def test_the_tail_is_one_line_without_a_bar() -> None:
    table = sales(*((f"产品名称第{i:02d}号", 1000 - i) for i in range(30)))
    lines = draw(table, "bar").split("\n")
    assert len(lines) == 11
    assert lines[0] == f"产品名称第00号 |{'█' * 16} 1000"
    assert lines[-1] == f"其余20项合计{sum(1000 - i for i in range(10, 30)) / 1e4:.2f}万"


def test_the_tail_grows_when_bytes_are_short() -> None:
    table = sales(*((f"产品名称第{i}号", 1000 - i) for i in range(12)))
    drawn = draw(table, "bar", 400)
    assert len(drawn.encode()) <= 400
    kept = sum("█" in line for line in drawn.split("\n"))
    rest = sum(1000 - i for i in range(kept, 12))
    assert 0 < kept < 10
    assert drawn.split("\n")[-1] == f"其余{12 - kept}项合计{rest}"


def test_the_order_of_the_rows_is_kept() -> None:
    drawn = draw(sales(("乙", 1), ("甲", 3), ("丙", 2)), "bar")
    assert [line[0] for line in drawn.split("\n")] == ["乙", "甲", "丙"]


@pytest.mark.parametrize("measure", ["平均单价", "退货率"])
def test_means_and_rates_have_no_sum(measure: str) -> None:
    rows = tuple((f"产品名称第{i}号", 1000 - i) for i in range(30))
    assert draw(Table(("产品", measure), rows), "bar").split("\n")[-1] == "其余20项"


def test_shares_of_the_tail() -> None:
    table = sales(*((f"第{i:02d}号", 5) for i in range(20)))
    assert draw(table, "share").split("\n")[-1] == "其余10项合计50 50.0%"


def test_a_cut_table_has_no_sum() -> None:
    rows = tuple((f"第{i:03d}号", 5) for i in range(200))
    assert draw(Table(("产品", "销量"), rows, True)).split("\n")[-1] == "其余190项以上"


def test_twelve_months_are_bars_and_more_a_sparkline() -> None:
    rows = tuple((2023 + i // 12, i % 12 + 1, 10) for i in range(13))
    columns = ("年", "月", "销售额")
    assert len(draw(Table(columns, rows[:12]), "line").split("\n")) == 12
    assert draw(Table(columns, rows), "line").startswith("2023-01 至 2024-01\n")


@pytest.mark.parametrize(
    ("columns", "row", "shown"),
    [
        (("区域", "目标", "实际", "完成率"), ("华东", 200, 190, 95.0), "95%"),
        (("区域", "本期", "上期", "同比"), ("华东", 190, 200, -5.25), "-5.25%"),
        (("区域", "目标", "实际"), ("华东", 200, 190), "190"),
        (("区域", "上期", "本期"), ("华东", 200, 190), "190"),
        (("区域", "目标"), ("华东", 200), "200"),
        (("区域", "完成率"), ("华东", 0.95), "0.95"),
        (("区域", "增长额", "增长率"), ("华东", 30, 12.5), "12.5%"),
        (("region", "duration"), ("east", 30), "30"),
        (("产品", "销量", "销售额"), ("手机", 3, 900), "3"),
    ],
)
def test_the_bar_is_what_the_result_is_about(columns, row, shown: str) -> None:
    bar = "▒" if shown.startswith("-") else "█"
    assert draw(Table(columns, (row,)), "bar") == f"{row[0]} |{bar * 16} {shown}"


def test_what_the_query_orders_by_is_drawn() -> None:
    table = Table(("产品", "销量", "销售额"), (("手机", 3, 900),), ordered_by="销售额")
    assert draw(table, "bar").endswith(" 900")


def test_a_share_chart_shows_amounts_with_their_shares() -> None:
    table = Table(("品类", "销售额", "占比"), (("手机", 60, 60.0), ("电脑", 40, 40.0)))
    assert draw(table, "share").startswith("手机 |████████████████ 60 60.0%")
    part = Table(("品类", "销售额", "占比"), (("手机", 60, 30.0), ("电脑", 40, 20.0)))
    assert draw(part, "share").startswith("手机 |████████████████ 30%")


def test_nothing_fits_a_tiny_budget() -> None:
    assert draw(TOP5, "bar", 20) == ""


def test_a_label_cannot_break_the_layout() -> None:
    drawn = draw(sales(("甲\n乙\x00丙", 1), ("长" * 40, 2)), "bar")
    assert drawn.split("\n")[0] == "甲 乙 丙 1"
    assert drawn.split("\n")[2] == "长" * 11 + "… 2"


def test_a_figure_beside_its_target_is_a_group_of_two_bars() -> None:
    table = Table(("区域", "目标", "实际"), (("华东", 200, 190), ("西南区域", 100, 50)))
    assert draw(table) == (
        "华东\n████████ 实际 190\n▓▓▓▓▓▓▓▓ 目标 200\n西南区域\n██ 实际 50\n▓▓▓▓ 目标 100"
    )


def test_the_members_of_each_label_stand_together() -> None:
    rows = (("华东", "天猫", 8), ("华东", "京东", -4), ("华南", "天猫", 0), ("华南", "京东", None))
    assert draw(Table(("区域", "渠道", "销售额"), rows), "bar") == (
        "华东\n████████ 天猫 8\n▒▒▒▒ 京东 -4\n华南\n天猫 0\n京东 —"
    )


def test_groups_that_are_none() -> None:
    ones = (("华东", "手机", 8), ("华南", "电脑", 4))
    assert "▓" not in draw(Table(("区域", "品类", "销售额"), ones))
    months = ((2023, 12, 4), (2023, 11, 5), (2024, 12, 8), (2024, 11, 8))
    assert draw(Table(("年", "月", "销售额"), months)).startswith("2023-12 |")
    assert "▓" not in draw(Table(("产品", "销量", "销售额"), (("甲", 3, 900), ("乙", 1, 2))))


def test_many_groups_end_in_one_line() -> None:
    rows = tuple((f"产品{i:02d}", 10, 20) for i in range(30))
    drawn = draw(Table(("产品", "本期", "上期"), rows))
    assert drawn.split("\n")[-1] == "其余24项"
    assert drawn.count("█" * 4) == 6


def test_a_column_of_figures_is_a_histogram() -> None:
    values = (1, 2, 3, 5, 8, 13, 21, 34, 12, 11)
    assert draw(Table(("数量",), tuple((v,) for v in values))) == (
        "0–5 3\n████████████████\n5–10 2\n███████████\n10–15 3\n████████████████\n"
        "15–20 0\n20–25 1\n█████\n25–30 0\n30–35 1\n█████"
    )


def test_figures_too_few_or_equal_are_no_histogram() -> None:
    assert draw(Table(("数量",), ((1,), (2,), (3,)))) == ""
    assert draw(Table(("数量",), ((5,),) * 30)) == ""


@given(
    st.lists(st.one_of(st.none(), st.integers(-(10**20), 10**20), st.floats()), max_size=40),
    st.integers(0, 2048),
)
def test_any_column_of_figures_stays_within_bytes(values, limit_bytes: int) -> None:
    drawn = draw(Table(("数值",), tuple((v,) for v in values)), None, limit_bytes)
    assert len(drawn.encode()) <= limit_bytes


@given(
    st.lists(
        st.tuples(st.sampled_from("甲乙丙"), st.sampled_from("子丑"), st.floats()), max_size=9
    ),
    st.integers(0, 2048),
)
def test_any_groups_stay_within_bytes(rows, limit_bytes: int) -> None:
    drawn = draw(Table(("名称", "类别", "数值"), tuple(rows)), "bar", limit_bytes)
    assert len(drawn.encode()) <= limit_bytes


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e8, "1亿"), (123_456_789.0, "1.23亿"), (0.00012, "0.00012"), (-56_789, "-5.68万")],
)
def test_huge_and_tiny_figures(value: float, shown: str) -> None:
    assert draw(sales(("甲", value), ("乙", value)), "bar").split("\n")[0].endswith(f" {shown}")


def test_figures_at_the_end_of_floats_are_drawn_and_not_summed() -> None:
    rows = [(f"{i:02d}", 1.7e308) for i in range(12)]
    assert draw(sales(*rows), "bar").split("\n")[-1] == "其余2项"
    assert draw(sales(*rows[:2]), "share").count(" 50.0%") == 2
    low = sales(("甲", -1.7e308), ("乙", -1.7e308), ("丙", 5))
    assert "▒" in draw(low, "bar")


_label = st.text(min_size=0, max_size=30)
_value = st.one_of(
    st.none(), st.integers(-(10**20), 10**20), st.floats(allow_nan=True, allow_infinity=True)
)


@given(
    st.lists(st.tuples(_label, _value), max_size=40),
    st.sampled_from([None, "bar", "line", "share"]),
    st.integers(0, 2048),
)
def test_any_table_stays_within_bytes(rows, kind, limit_bytes: int) -> None:
    drawn = draw(Table(("名称", "数值"), tuple(rows)), kind, limit_bytes)
    assert len(drawn.encode()) <= limit_bytes
    assert all(len(line) <= 80 for line in drawn.split("\n"))


@given(st.lists(st.floats(min_value=1, max_value=1e9), min_size=2, max_size=10))
def test_bars_are_in_proportion(values: list[float]) -> None:
    table = sales(*((f"{i:02d}", value) for i, value in enumerate(values)))
    drawn = draw(table, "bar")
    cells = [line.count("█") for line in drawn.split("\n")]
    top = max(values)
    assert max(cells) == 16
    for value, count in zip(values, cells, strict=True):
        assert count == max(1, int(value / top * 16 + 0.5))
    assert {chart.width(line.split("|")[0]) for line in drawn.split("\n")} == {3}

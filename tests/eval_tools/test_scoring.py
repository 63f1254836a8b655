"""The benchmark's own rules: what it counts as valid, the right tool and the right result."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.eval_tools.__main__ import Run, percent
from tests.eval_tools.recording import Call
from tests.eval_tools.rounded import round_backbone
from tests.eval_tools.rounds import Round, load
from tests.eval_tools.scoring import Score, covers, reduced, says, score
from tools.base import Table, ToolResult
from tools.demo_company import DOCUMENTS_DIR
from tools.demo_company.generate import generate
from workers.agent.steps import AgentResult

SQL = Round("销售额", "sql", sql="SELECT 'a', 3 UNION SELECT 'b', 2")
ONE = Round("总额", "sql", sql="SELECT 12345678.9")


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


def call(table: Table | None = None, name: str = "sql_query", **fields: str) -> Call:
    result = None if "error" in fields else ToolResult("", table)
    return Call(name, {}, result, **fields)


def judge(
    database: sqlite3.Connection, expected: Round, text: str, *calls: Call, malformed: int = 0
) -> Score:
    return score(expected, AgentResult(text, "ok"), calls, malformed, database)


TWO = Table(("x", "y"), (("b", 2), ("a", 3)))


def test_two_hundred_rounds_in_twenty_five_conversations() -> None:
    conversations = load()
    assert len(conversations) >= 20
    assert len({c.name for c in conversations}) == len(conversations)
    assert sum(len(c.rounds) for c in conversations) == 200
    assert all(len({t for r in c.rounds for t in r.tools}) >= 1 for c in conversations)
    several = [c for c in conversations if len({r.kind for r in c.rounds}) >= 2]
    assert len(several) >= 20


def test_every_gold_query_finds_something(tmp_path: Path) -> None:
    generate(tmp_path / "company.db")
    database = sqlite3.connect(f"file:{tmp_path / 'company.db'}?mode=ro", uri=True)
    for one in (r for c in load() for r in c.rounds):
        for sql in filter(None, (one.sql, one.value)):
            rows = database.execute(sql).fetchall()
            assert rows, one
            assert all(cell is not None for row in rows for cell in row), one
        if one.title:
            text = (DOCUMENTS_DIR / f"{one.title}.md").read_text(encoding="utf-8")
            assert f"## {one.section}\n" in text, one
    database.close()


def test_rows_in_any_order_and_with_more_columns(database: sqlite3.Connection) -> None:
    wider = Table(("x", "z", "y"), (("b", 9, 2), ("a", 9, 3)))
    assert judge(database, SQL, "好", call(TWO)).right
    assert judge(database, SQL, "好", call(wider)).right
    fewer = judge(database, SQL, "好", call(Table(("x", "y"), (("a", 3),))))
    assert fewer.right_tool
    assert not fewer.right_result


def test_order_counts_where_it_is_asked_for() -> None:
    assert not covers([("a", 3), ("b", 2)], TWO, ordered=True)
    assert covers([("b", 2), ("a", 3)], TWO, ordered=True)


def test_a_single_figure_must_be_seen(database: sqlite3.Connection) -> None:
    found = call(Table(("v",), ((12345678.9,),)))
    assert judge(database, ONE, "共1234.57万元", found).right
    assert not judge(database, ONE, "查询结果如下", found).right_result


def test_charts_are_looked_for(database: sqlite3.Connection) -> None:
    bar = Round("图", "sql", sql=SQL.sql, chart="bar")
    none = Round("不要图", "sql", sql=SQL.sql, chart="none")
    share = Round("占比", "sql", sql=SQL.sql, chart="share")
    assert judge(database, bar, "a 3\n███", call(TWO)).right
    assert not judge(database, bar, "a 3", call(TWO)).right_result
    assert not judge(database, none, "a 3\n███", call(TWO)).right_result
    assert judge(database, share, "a |███ 3 60.0%", call(TWO)).right
    assert not judge(database, share, "a |███ 3", call(TWO)).right_result


def test_a_repaired_call_is_one_use_of_the_tool(database: sqlite3.Connection) -> None:
    repaired = judge(database, SQL, "好", call(error="没有列"), call(TWO))
    assert repaired.right
    assert (repaired.calls, repaired.valid, repaired.failed_calls) == (2, 2, 1)
    other = judge(database, SQL, "好", call(error="没有列", name="search_docs"), call(TWO))
    assert not other.right_tool


def test_calls_that_do_not_fit_are_not_valid(database: sqlite3.Connection) -> None:
    bad = judge(database, SQL, "好", call(error="参数不对", problem="sql is missing"), call(TWO))
    assert (bad.calls, bad.valid) == (2, 1)
    cut = judge(database, SQL, "好", call(TWO), malformed=1)
    assert (cut.calls, cut.valid, cut.right_tool) == (2, 1, False)


def test_a_failed_turn_is_never_right(database: sqlite3.Connection) -> None:
    ended = score(SQL, AgentResult("抱歉", "failed"), [call(TWO)], 0, database)
    assert not ended.right_result


def test_python_and_two_steps(database: sqlite3.Connection) -> None:
    python = Round("算", "python", value="SELECT 3*4.5")
    assert judge(database, python, "结果是13.5。", call(name="python_exec")).right
    assert not judge(database, python, "结果是14.5。", call(name="python_exec")).right_result
    both = Round("中位数", "both", sql=SQL.sql, reduce="median")
    steps = (call(TWO), call(name="python_exec"))
    assert judge(database, both, "中位数是2.5。", *steps).right
    assert not judge(database, both, "中位数是2.5。", steps[0]).right_tool


def test_documents_must_be_quoted(database: sqlite3.Connection) -> None:
    leave = Round("年假", "docs", title="员工休假制度", section="年假天数")
    said = call(name="search_docs")
    assert judge(database, leave, "5天\n\n来源：《员工休假制度》年假天数", said).right
    assert not judge(database, leave, "5天\n\n来源：《员工休假制度》病假", said).right_result


def test_talk_uses_no_tool(database: sqlite3.Connection) -> None:
    thanks = Round("谢谢", "none", talk="talk")
    assert judge(database, thanks, "不客气，有问题随时问我。").right
    assert not judge(database, thanks, "不客气，有问题随时问我。", call(TWO)).right_tool


@pytest.mark.parametrize(
    ("text", "number", "found"),
    [
        ("共1.48亿元", 147_912_345.0, True),
        ("共1.47亿元", 147_912_345.0, False),
        ("1,234件", 1234, True),
        ("下降5.25%", -5.25, True),
        ("1.2万亿", 1.2e12, True),
        ("没有", 0, False),
    ],
)
def test_says(text: str, number: float, found: bool) -> None:
    assert says(text, number) is found


def test_statistics() -> None:
    assert reduced("median", [1, 2, 9]) == (2,)
    assert reduced("range", [1, 2, 9]) == (8,)
    assert reduced("stdev", [1, 3]) == (1.0, pytest.approx(1.41421356))


def test_the_summary_and_the_first_error() -> None:
    good, bad = Score("a", 1, 1, True, True, 0), Score("b", 2, 1, True, False, 1)
    run = Run({"one": [good, bad], "two": [good]})
    assert run.first_errors() == {"one": 2, "two": 0}
    assert run.summary() == {
        "turns": 3,
        "calls": 4,
        "valid_calls": 75.0,
        "right_tool": 100.0,
        "right_result": 66.6,
        "repairs_needed": 1,
        "repairs_right": 0,
    }
    assert percent(1999, 2000) == 99.9


def test_the_rounded_copy_has_sixteen_values_a_group(tmp_path: Path) -> None:
    source, copy = tmp_path / "model", tmp_path / "copy"
    source.mkdir()
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": torch.randn(4, 64).half(),
        "model.layers.0.mlp.gate.weight": torch.randn(4, 64).half(),
    }
    save_file(tensors, source / "model.safetensors")
    assert round_backbone(source, copy) == 1
    rounded = load_file(copy / "model.safetensors")
    groups = rounded["model.layers.0.self_attn.q_proj.weight"].reshape(-1, 32)
    assert max(len(set(group.tolist())) for group in groups) <= 16
    gate = "model.layers.0.mlp.gate.weight"
    assert torch.equal(rounded[gate], tensors[gate])

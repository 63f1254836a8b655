"""The evaluation: fixed files, two fillings that differ, and judges that judge."""

import sqlite3

import pytest

from models.training import combinations, dialogs, evaluate, fillings, judging
from models.training.eval_items import CLASSES, read_items, read_prompts
from models.training.evaluate import EVAL_DIR
from models.training.lexicon import BASE_METRICS

ITEMS = {kind: read_items(EVAL_DIR, kind) for kind in CLASSES}
PROMPTS = read_prompts(EVAL_DIR)


@pytest.fixture(scope="module")
def world():
    return evaluate.World(PROMPTS)


def queries(item):
    return [str(step.arguments["sql"]) for step in item.steps if step.name == "sql_query"]


def test_the_files_are_the_committed_ones():
    assert evaluate.check_sums(EVAL_DIR) == []


def test_a_changed_file_is_noticed(tmp_path):
    for path in EVAL_DIR.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "tools.jsonl").open("a") as file:
        file.write("\n")
    assert evaluate.check_sums(tmp_path) == ["tools.jsonl"]


def test_every_class_is_large_enough_and_distinct():
    ids = [item.id for items in ITEMS.values() for item in items]
    assert len(set(ids)) == len(ids)
    for kind, items in ITEMS.items():
        assert len(items) >= 150, kind
        asked = {(i.prompt, tuple(t.question for t in i.history), i.question) for i in items}
        assert len(asked) == len(items)


def test_templates_class_asks_each_held_out_phrasing_of_a_query():
    held = [
        template
        for (_, intent), group in dialogs.all_templates().held_out.items()
        for template in group
        if intent in {item.intent for item in ITEMS["templates"]}
    ]
    assert len(ITEMS["templates"]) >= 0.9 * len(held)


def test_right_queries_find_rows_and_the_fillings_differ(world):
    same = total = 0
    for kind in ("values", "templates", "combinations", "schema", "followups"):
        for item in ITEMS[kind][::3]:
            first, second = world.databases(item.prompt)
            for sql in queries(item):
                rows = judging.rows_of(first, sql)
                assert rows, item.id
                other = judging.rows_of(second, sql)
                assert other is not None, item.id
                total += 1
                same += other == rows
    assert total > 350
    # lists of names and counts of distinct names stay as they are
    assert same < 0.06 * total


def test_contents_are_what_the_first_filling_answers(world):
    for item in ITEMS["values"][:60]:
        last = item.steps[-1]
        rows = judging.rows_of(world.databases("demo")[0], str(last.arguments["sql"]))
        assert last.content.endswith(f"共{len(rows)}行")


def test_facts_stand_in_the_rows_and_in_the_right_answer():
    counted = 0
    for items in ITEMS.values():
        for item in items:
            counted += len(item.facts)
            assert all(f in item.answer and f in item.steps[-1].content for f in item.facts)
            sources = [step.content for step in item.steps]
            sources += [str(step.arguments) for step in item.steps] + [item.question]
            assert judging.facts_right(item.facts, sources, item.answer), item.id
    assert counted > 1000


def test_talk_answers_of_the_files_are_judged_right():
    for item in ITEMS["no_tool"]:
        assert not item.steps
        assert judging.talk_right(item.intent, item.answer), item
    assert not judging.talk_right("refuse_write", "您好，请问要查什么数据或制度？")
    assert not judging.talk_right("greet", "抱歉，我只能查询，不能修改或删除数据。")
    assert not judging.talk_right("greet", " ")


def test_combinations_are_held_out_ones():
    found = {combinations.SALT} and [
        (metric, dim)
        for metric in BASE_METRICS
        for dim in ("region", "product_name")
        if combinations._held_out(f"sales_data/bottom/{metric}/{dim}")
    ]
    assert found
    assert {item.intent for item in ITEMS["combinations"]} >= {"bottom", "group", "having"}


def test_rows_are_compared_in_order_only_where_the_right_query_orders():
    database = sqlite3.connect(":memory:")
    database.executescript("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 0.1), (2, 0.2);")
    assert judging.same_rows(database, "SELECT a FROM t", "SELECT a FROM t ORDER BY a DESC")
    assert not judging.same_rows(
        database, "SELECT a FROM t ORDER BY a", "SELECT a FROM t ORDER BY a DESC"
    )
    assert judging.same_rows(database, "SELECT 0.30000000000000004", "SELECT 0.3")
    assert not judging.same_rows(database, "SELECT 1", "SELECT broken FROM t")
    assert judging.covers(database, "SELECT a FROM t", "SELECT b, a FROM t", ordered=False)
    assert not judging.covers(database, "SELECT a FROM t", "SELECT b FROM t", ordered=False)
    database.close()


def test_facts_must_be_named_and_no_figure_invented():
    sources = ("产品|销售额\n甲|12.5万\n共1行", "SELECT ... year=2024", "去年甲卖了多少")
    assert judging.facts_right(("12.5万",), sources, "2024年甲的销售额为12.5万元。")
    assert not judging.facts_right(("12.5万",), sources, "2024年甲的销售额为12.6万元。")
    assert not judging.facts_right(("12.5万",), sources, "销售额12.5万元，同比增长33.2%。")


def test_a_runaway_query_ends():
    database = fillings.database({"t": (("a",), [(i,) for i in range(3000)])})
    endless = "SELECT COUNT(*) FROM t, t AS u, t AS v, t AS w"
    assert judging.rows_of(database, endless) is None
    assert judging.rows_of(database, "SELECT COUNT(*) FROM t") == [(3000.0,)]
    database.close()


def test_wilson_interval():
    low, high = judging.wilson(90, 100)
    assert 82.5 < low < 82.6
    assert 94.4 < high < 94.5
    assert judging.wilson(0, 0) == (0.0, 100.0)

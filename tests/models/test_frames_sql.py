"""Questions to frames to SQL: all of it runs on the demo database and means what was asked."""

import datetime
import random
import sqlite3

import pytest

from models.training import followups, lexicon, periods, sql, templates, turns
from models.training.frames import Filler, Frame
from models.training.periods import Period
from models.training.templates import Template
from tools.demo_company import generate

TODAY = datetime.date(2024, 11, 15)


@pytest.fixture(scope="module")
def schema():
    database = sqlite3.connect(":memory:")
    database.executescript(generate.SCHEMA)
    yield database
    database.close()


def ask(text, intent="total", lang="zh", variant="", seed=0):
    template = Template(lang, intent, variant, "", text)
    return Filler(template, random.Random(seed), TODAY).fill()


def test_sql_of_every_query_template_compiles_on_the_demo_schema(schema):
    rng = random.Random(3)
    names = (*turns.SQL_INTENTS, "sql_python")
    asked = [t for t in templates.load() if t.intent in names]
    assert len(asked) > 500
    for template in asked:
        question, frame = Filler(template, rng, TODAY).fill()
        assert "{" not in question, template
        query = sql.build(frame)
        cursor = schema.execute(query.sql)
        assert [column[0] for column in cursor.description] == [c.alias for c in query.columns]


def test_readme_question_gives_the_canonical_query():
    frame = Frame(
        "top", "zh", dim="product_name", filters=(("region", "华东"),),
        period=Period("quarter", 2024, 3), limit=5,
    )  # fmt: skip
    query = sql.build(frame)
    assert query.sql == (
        "SELECT product_name AS 产品, SUM(quantity*price) AS 销售额 FROM sales_data "
        "WHERE region='华东' AND year=2024 AND quarter=3 "
        "GROUP BY product_name ORDER BY 销售额 DESC LIMIT 5"
    )
    assert query.chart == "bar"


@pytest.mark.parametrize(("quarter", "year"), [(1, 2024), (2, 2024), (3, 2024), (4, 2023)])
def test_a_quarter_without_a_year_is_the_latest_complete_one(quarter, year):
    assert periods.quarter_year(TODAY, quarter) == year
    assert f"{year}-Q{quarter}" in _calendar()


def test_a_month_without_a_year_is_the_latest_complete_one():
    assert periods.month_year(TODAY, 10) == 2024
    assert periods.month_year(TODAY, 11) == 2023


def _calendar():
    from workers.agent.context import calendar

    return calendar(TODAY)


def test_the_period_before_crosses_the_year():
    assert Period("quarter", 2024, 1).previous() == Period("quarter", 2023, 4)
    assert Period("month", 2024, 1).previous() == Period("month", 2023, 12)
    assert Period("month", 2024, 7).previous() == Period("month", 2024, 6)


def test_thresholds_are_never_multiplied_out():
    rng = random.Random(1)
    for _ in range(300):
        said, number = lexicon_threshold(rng)
        if "万" in said or said.endswith(("w", "W")):
            assert number.endswith("*10000")


def lexicon_threshold(rng):
    from models.training.thresholds import threshold

    return threshold(rng, "zh", "销售额")


def test_values_in_the_question_are_the_values_of_the_frame():
    for seed in range(100):
        question, frame = ask("{product}在{region}的{metric}", seed=seed)
        assert frame.filter_value("product_name") in question
        words = lexicon.value_words("region", frame.filter_value("region"), "zh")
        assert any(word in question for word in words)


def test_follow_up_replaces_only_what_it_names():
    last = Frame(
        "top", "zh", dim="product_name", filters=(("region", "华东"),),
        period=Period("quarter", 2024, 3), limit=5,
    )  # fmt: skip
    template = Template("zh", "follow_scope", "", "", "那{value}呢")
    for seed in range(60):
        turn = followups.follow(random.Random(seed), template, last, TODAY)
        if turn is None or turn.frame is None:
            continue
        assert turn.frame.period == last.period
        assert turn.frame.limit == 5
        assert len(turn.frame.filters) in (1, 2)

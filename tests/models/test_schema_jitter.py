"""Varied schemas: every query runs on a database made to fit its prompt."""

import random
import sqlite3

import pytest

from models.training import (
    combinations,
    dialogs,
    rendering,
    schema_jitter,
    schema_names,
    schema_words,
    tokenizer,
)
from models.training.data import MAX_PREFIX_TOKENS
from models.training.dialogs import Sampler
from models.training.frames import Frame


def database_of(schema):
    database = sqlite3.connect(":memory:")
    for card in schema.semantic.tables:
        columns = ", ".join(column.name for column in card.columns)
        database.execute(f"CREATE TABLE {card.name} ({columns})")
    return database


@pytest.mark.parametrize("seed", range(12))
def test_sql_of_a_varied_prompt_runs_on_its_schema(seed):
    rng = random.Random(seed)
    sampler = Sampler(rng)
    for _ in range(12):
        prompt = dialogs.make_prompt(rng, vary_schema=True)
        database = database_of(prompt.schema)
        for _ in range(25):
            for turn in sampler.dialog(prompt).turns:
                for call in turn.calls:
                    if call.name == "sql_query" and call.trained:
                        sql = call.arguments["sql"]
                        shown = call.content.split("\n")[0]
                        columns = [c[0] for c in database.execute(sql).description]
                        known = shown.startswith(("0行", "错误: "))
                        assert known or shown == "|".join(columns), sql
        database.close()


def test_metric_formulas_of_the_prompt_run():
    rng = random.Random(5)
    for _ in range(100):
        schema = dialogs.make_prompt(rng, vary_schema=True).schema
        database = database_of(schema)
        for metric in schema.semantic.metrics:
            database.execute(f"SELECT {metric.sql} FROM {schema.tables['sales_data']}")
        database.close()


def test_names_in_a_schema_are_distinct():
    rng = random.Random(6)
    for _ in range(200):
        semantic = dialogs.make_prompt(rng, vary_schema=True).schema.semantic
        tables = [card.name for card in semantic.tables]
        assert len(set(tables)) == len(tables)
        for card in semantic.tables:
            names = [column.name for column in card.columns]
            assert len(set(names)) == len(names), card


def test_the_renamer_follows_scopes_and_leaves_text_alone():
    schema = schema_jitter.Schema(
        dialogs.demo_semantic(),
        {"targets": "goals", "sales_data": "orders"},
        {"targets": {"region": "zone", "year": "yr", "amount": "goal"},
         "sales_data": {"region": "area", "year": "y", "quantity": "qty", "price": "price"}},
        {"区域": "片区"},
    )  # fmt: skip
    sql = (
        "SELECT region AS 区域, SUM(amount) AS 目标, (SELECT SUM(quantity*price) FROM sales_data "
        "WHERE region=targets.region AND year=2024) AS 实际 FROM targets WHERE region='region 区域'"
    )
    assert schema.adapt(sql) == (
        "SELECT zone AS 片区, SUM(goal) AS 目标, (SELECT SUM(qty*price) FROM orders "
        "WHERE area=goals.zone AND y=2024) AS 实际 FROM goals WHERE zone='region 区域'"
    )


def test_training_never_shows_a_held_out_combination():
    rng = random.Random(8)
    sampler, asked = Sampler(rng), Sampler(rng, "combinations")
    for _ in range(20):
        prompt = dialogs.make_prompt(rng)
        for _ in range(40):
            frames = [turn.frame for turn in sampler.dialog(prompt).turns]
            assert not any(frame and combinations.held_out(frame) for frame in frames)
        frame = asked.dialog(prompt, ("bottom", "group", "having")).turns[-1].frame
        assert combinations.held_out(frame)


def test_the_readme_question_is_not_held_out():
    assert not combinations.held_out(Frame("top", "zh", dim="product_name"))


def test_prompts_leave_room_for_the_dialog():
    rng = random.Random(9)
    vocabulary = tokenizer.build()
    sizes = [
        len(vocabulary.encode(rendering.prefix(dialogs.make_prompt(rng))).ids) for _ in range(300)
    ]
    assert sum(size <= MAX_PREFIX_TOKENS for size in sizes) >= 295


def names_of(schema):
    return {card.name for card in schema.semantic.tables} | {
        column.name for card in schema.semantic.tables for column in card.columns
    }


def test_names_kept_for_evaluation_are_not_trained_on():
    rng = random.Random(10)
    known = names_of(schema_jitter.Schema(dialogs.demo_semantic()))
    own = {
        option[0]
        for options in (*schema_words.TABLES.values(), *schema_words.COLUMNS.values())
        for option in options
    }
    for _ in range(200):
        trained = names_of(schema_jitter.varied(rng, dialogs.demo_semantic())) & own - known
        assert not [name for name in trained if schema_names.held_out(name)]
    kept = [
        bool([n for n in names_of(schema_jitter.varied(rng, dialogs.demo_semantic(), unseen=True))
              if n in own - known and schema_names.held_out(n)])
        for _ in range(50)
    ]  # fmt: skip
    assert sum(kept) >= 48

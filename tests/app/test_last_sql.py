"""The command /sql: which sentences mean it, and what it answers from the stored steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from app import replies
from app.last_sql import LastSql, asks_for_sql
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.turns import Finish, Status, Turns
from app.wecom.reply import without_mark
from tests.app.store.messages import tag_of, text_message
from tests.app.test_intake import Desk

TAG = tag_of("zhang")
STATEMENT = "SELECT\n  region\nFROM sales_data\nWHERE\n  year = 2024"


def query(statement: str = STATEMENT, **fields: Any) -> dict[str, Any]:
    """A step as the turn worker stores it."""
    return {
        "kind": "tool",
        "name": "sql_query",
        "arguments": {"sql": "select region from sales_data"},
        "content": "区域\n华东\n共1行",
        "error": "",
        "duration_ms": 3.0,
        "statement": statement,
        "scope": "2024年",
        **fields,
    }


def answered(
    client: redis.Redis,
    turn_id: str,
    *steps: dict[str, Any],
    user: str = "zhang",
    question: str = "各区域的销售额",
    status: Status = "done",
    dry_run: bool = False,
) -> None:
    """A turn of ``user`` that the model worked on."""
    turns = Turns(client)
    Inbox(client).put(text_message(user, turn_id, question), turn_id, dry_run=dry_run)
    lease = Leases(client, "turn").acquire(tag_of(user))
    assert lease
    assert turns.begin(lease, turn_id).verdict == "begun"
    record = json.dumps(list(steps), ensure_ascii=False)
    assert turns.finish(lease, turn_id, Finish(status, "答", ("答",), record))
    lease.release()


MODEL = {"kind": "model", "text": "第1名是华东。", "reasoning": "想"}


@pytest.mark.parametrize(
    "text",
    [
        *("/sql", "／ＳＱＬ", "用的什么SQL", "把SQL发我", "看看SQL", "show me the SQL"),
        *("用的是什么 SQL 语句？", "刚才的查询用的哪条SQL", "请把刚才的SQL发给我", "能不能看看SQL"),
        *("给我看一下刚才用的SQL语句", "这个结果是用什么SQL查的？", "用的SQL是什么"),
        *("Could you show me the SQL query you used, please?", "What SQL did you use?"),
    ],
)
def test_a_plain_wish_to_see_the_sql_is_the_command(redis_client: redis.Redis, text: str) -> None:
    desk = Desk(redis_client)
    assert desk.send(text).outcome == "answered"
    assert desk.said() == [replies.NO_ANSWER_YET]
    assert desk.waiting() == []


@pytest.mark.parametrize(
    "text",
    [
        *("sql", "什么是SQL", "SQL是什么", "会写SQL吗", "用SQL查一下华东区销售额", "帮我写一条SQL"),
        *("看看华东销售额", "把销售额发我", "看看SQL培训的制度", "用什么SQL可以查库存"),
        *("what is sql", "show me the sales", "哪个产品用SQL", "看看SQL\n再分析华东区Q3销售"),
    ],
)
def test_a_question_about_data_or_about_sql_reaches_the_model(text: str) -> None:
    assert not asks_for_sql(text.lower())


def test_the_statement_and_what_it_covers_come_while_the_model_is_busy(
    redis_client: redis.Redis,
) -> None:
    answered(redis_client, "a1", query(), MODEL)
    Inbox(redis_client).put(text_message("zhang", "a2", "还在算"), "a2")
    lease = Leases(redis_client, "turn").acquire(TAG)
    assert lease
    Turns(redis_client).begin(lease, "a2")
    desk = Desk(redis_client)
    taken = desk.send("/sql")
    expected = f"“各区域的销售额”用的SQL：\n\n{STATEMENT}\n统计口径：2024年"
    assert desk.said() == ["答", expected]
    assert desk.hints.woken == []
    turn = Turns(redis_client).get(taken.turn_id)
    assert turn is not None
    assert (turn.status, turn.answer) == ("done", expected)


def test_several_statements_are_numbered_and_failed_ones_left_out(
    redis_client: redis.Redis,
) -> None:
    failed = query("SELECT wrong", error="bad_arguments")
    other = {"kind": "tool", "name": "python_exec", "arguments": {"code": "1"}, "error": ""}
    answered(redis_client, "a1", failed, query("SELECT 1"), other, query("SELECT 2", scope=""))
    assert LastSql(redis_client).text(TAG) == (
        "“各区域的销售额”用的SQL：\n\n1/2\nSELECT 1\n统计口径：2024年\n\n2/2\nSELECT 2"
    )


def test_the_last_turn_that_was_answered_counts(redis_client: redis.Redis) -> None:
    said = LastSql(redis_client).text
    assert said(TAG) == replies.NO_ANSWER_YET
    answered(redis_client, "a1", query("SELECT 1"))
    answered(redis_client, "a2", query("SELECT 2"), status="failed")
    answered(redis_client, "a3", query("SELECT 3"), dry_run=True)
    Desk(redis_client).send("/help")
    assert "SELECT 1" in said(TAG)
    assert "SELECT 3" in said(TAG, dry_run=True)
    answered(redis_client, "a4", MODEL, question="年假\n有几天")
    assert said(TAG) == replies.NO_SQL.format(question="年假 有几天")


def test_nobody_sees_the_statement_of_another(redis_client: redis.Redis) -> None:
    answered(redis_client, "a1", query(), user="li")
    desk = Desk(redis_client)
    desk.send("看看SQL")
    assert desk.said() == [replies.NO_ANSWER_YET]


def test_a_cleared_memory_and_an_expired_turn_have_no_sql(redis_client: redis.Redis) -> None:
    answered(redis_client, "a1", query())
    desk = Desk(redis_client)
    desk.send("/new")
    assert LastSql(redis_client).text(TAG) == replies.NO_ANSWER_YET
    answered(redis_client, "a2", query())
    assert STATEMENT in LastSql(redis_client).text(TAG)
    assert 0 < redis_client.ttl(UserKeys(TAG).answered) <= 7 * 86_400
    redis_client.delete(UserKeys(TAG).turn("a2"))
    assert LastSql(redis_client).text(TAG) == replies.NO_ANSWER_YET


def test_a_turn_of_an_older_version_shows_what_the_model_wrote(redis_client: redis.Redis) -> None:
    step = query()
    del step["statement"], step["scope"]
    answered(redis_client, "a1", step)
    assert LastSql(redis_client).text(TAG).endswith("：\n\nselect region from sales_data")


def test_a_long_statement_is_sent_in_marked_parts(redis_client: redis.Redis) -> None:
    statement = "SELECT\n" + ",\n".join(f"  SUM(amount_{n}) AS 金额{n}" for n in range(150))
    answered(redis_client, "a1", query(statement))
    desk = Desk(redis_client)
    desk.send("/sql")
    parts = desk.said()[1:]
    assert [part[:6] for part in parts] == [
        f"({n}/{len(parts)})\n" for n in range(1, len(parts) + 1)
    ]
    assert len(parts) > 1
    assert max(len(part.encode()) for part in parts) <= 2048
    assert statement in "".join(map(without_mark, parts))


def test_a_literal_cannot_become_a_link(redis_client: redis.Redis) -> None:
    statement = "SELECT a * b FROM t WHERE c = '<a href=\"http://evil.example\">x</a>'"
    answered(redis_client, "a1", query(statement), question="<a href='http://e'>看</a>")
    text = LastSql(redis_client).text(TAG)
    assert "<a" not in text
    assert "</a" not in text
    assert "SELECT a * b FROM t" in text

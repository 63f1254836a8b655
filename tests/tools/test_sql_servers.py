"""PostgreSQL and MariaDB: answers as SQLite gives them, exact types, errors that say what to do."""

from __future__ import annotations

import datetime
import decimal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sql_servers import READER_PASSWORD, Server, grant_reader, load_company
from tests.tools.sql_questions import QUESTIONS
from tests.workers.fakes import wait_for
from tools.base import (
    ToolArgumentError,
    ToolCancelledError,
    ToolContext,
    ToolForbiddenError,
    ToolTimeoutError,
    ToolUnavailableError,
    Value,
)
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql import SqlTool
from tools.sql_process import WorkerRequest
from tools.sql_server import SqlServer
from tools.sql_server_rights import excess_grants, mysql_grants, postgres_grants

Context = Callable[..., ToolContext]
EXACT = Semantic(
    (
        TableCard(
            "exact",
            "精确",
            tuple(ColumnCard(name, name) for name in ("big", "money", "day", "moment", "nothing")),
        ),
    )
)


@pytest.fixture(scope="module")
def company(server: Server, company_db: Path) -> Server:
    load_company(server, company_db)
    server.run(
        "CREATE TABLE exact (big BIGINT, money NUMERIC(20,4), day DATE, moment TIMESTAMP NULL,"
        " nothing INT)",
        "INSERT INTO exact VALUES (9007199254740993, 12345678901234.5678, '2024-02-29',"
        " '2024-02-29 13:45:00', NULL)",
    )
    grant_reader(server, ["exact"])
    return server


@pytest.fixture(scope="module")
def server_tool(company: Server, company_semantic: Semantic) -> Iterator[SqlTool]:
    tool = SqlTool(company.reader, company_semantic)
    yield tool
    tool.close()


def _plain(value: Value) -> object:
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    return round(float(value), 4) if isinstance(value, float | decimal.Decimal) else value


def test_twenty_questions_have_the_same_rows(
    sql_tool: SqlTool, server_tool: SqlTool, context: Context
) -> None:
    assert len(QUESTIONS) == 20
    for question, sql in QUESTIONS:
        wanted = sql_tool.run({"sql": sql}, context())
        got = server_tool.run({"sql": sql}, context())
        assert got.table is not None
        assert wanted.table is not None
        rows = [[_plain(cell) for cell in row] for row in got.table.rows]
        assert rows == [[_plain(cell) for cell in row] for row in wanted.table.rows], question
        assert rows, question
        assert (got.scope, got.table.columns) == (wanted.scope, wanted.table.columns), question


def test_filtered_aggregates_have_the_same_rows(
    sql_tool: SqlTool, server_tool: SqlTool, context: Context
) -> None:
    sql = (
        "SELECT COUNT(*) FILTER (WHERE region='华东') AS a, SUM(quantity) FILTER (WHERE month=8)"
        " AS b, COUNT(DISTINCT customer) FILTER (WHERE month=8) AS c, COUNT(*) AS d"
        " FROM sales_data WHERE year=2024"
    )
    got, wanted = (tool.run({"sql": sql}, context()).table for tool in (server_tool, sql_tool))
    assert got is not None
    assert wanted is not None
    assert [_plain(cell) for cell in got.rows[0]] == [_plain(cell) for cell in wanted.rows[0]]
    assert len(set(got.rows[0])) == 4


def test_types_survive(company: Server, context: Context) -> None:
    tool = SqlTool(company.reader, EXACT)
    table = tool.run({"sql": "SELECT * FROM exact"}, context()).table
    tool.close()
    assert table is not None
    assert table.rows == (
        (
            9007199254740993,
            decimal.Decimal("12345678901234.5678"),
            datetime.date(2024, 2, 29),
            datetime.datetime(2024, 2, 29, 13, 45),
            None,
        ),
    )


def test_mistakes_come_back_with_near_names(server_tool: SqlTool, context: Context) -> None:
    for sql, message in (
        ("SELECT product FROM sales_data", "是不是product_"),
        ("SELECT COUNT(*) FROM sales", "是不是sales_data"),
        ("SELECT COUNT(*) FROM sales_data WHERE region='火星区'", "区域没有“火星区”"),
        ("SELECT product_name, price FROM sales_data GROUP BY product_name", "SQL执行失败"),
        ("SELECT printf('%d', quantity) FROM sales_data", "不允许使用“printf”"),
    ):
        with pytest.raises(ToolArgumentError, match=message):
            server_tool.run({"sql": sql}, context())


def test_a_query_is_cancelled_from_here_when_the_server_does_not_stop_it(company: Server) -> None:
    backend = SqlServer(company.reader, {"staff": ("name",)}, connections=1)
    lift = (
        "SELECT set_config('statement_timeout', '0', false), pg_sleep(20)"
        if company.kind == "postgres"
        else "SELECT SLEEP(20)"
    )
    backend._version = "lifted"
    started_s = time.monotonic()
    answer = backend.ask(WorkerRequest(lift, (), 0.5, 10, 1000))
    assert time.monotonic() - started_s < 3
    # MariaDB's SLEEP ends early without an error when it is killed.
    assert answer.get("error") == "timeout" or company.kind == "mariadb"
    again = backend.ask(WorkerRequest("SELECT COUNT(*) FROM staff", (), 2.0, 10, 1000))
    assert again["rows"] == [[99]]
    backend.close()


def test_a_stopped_turn_cancels_the_statement_on_the_server(company: Server) -> None:
    backend = SqlServer(company.reader, {"staff": ("name",)}, connections=1)
    postgres = company.kind == "postgres"
    sleeping = (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND"
        " state = 'active'"
        if postgres
        else "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'"
    )
    seen: list[object] = []

    def cancelled() -> bool:
        """From the moment on when the server is at work."""
        seen.append(company.run(sleeping)[0][0])
        return 1 in seen

    sql = "SELECT pg_sleep(60)" if postgres else "SELECT SLEEP(60)"
    with pytest.raises(ToolCancelledError):
        backend.ask(WorkerRequest(sql, (), 50.0, 10, 1000), cancelled)
    again = backend.ask(WorkerRequest("SELECT COUNT(*) FROM staff", (), 2.0, 10, 1000))
    assert again["rows"] == [[99]]
    backend.close()
    wait_for(lambda: company.run(sleeping)[0][0] == 0)


def test_a_slow_query_says_so(
    company: Server, company_semantic: Semantic, context: Context
) -> None:
    tool = SqlTool(company.reader, company_semantic, timeout_s=0.4)
    sql = "SELECT COUNT(*) FROM sales_data a, sales_data b WHERE a.price < b.price"
    with pytest.raises(ToolTimeoutError, match="缩小范围"):
        tool.run({"sql": sql}, context())
    tool.close()


def test_what_a_user_may_not_read_is_refused(
    company: Server, company_semantic: Semantic, context: Context
) -> None:
    hidden = {"staff", "customers.level"}
    tool = SqlTool(company.reader, company_semantic, may_read=lambda user, name: name not in hidden)
    for sql in (
        "SELECT COUNT(*) FROM staff",
        "SELECT * FROM customers",
        "SELECT name FROM customers ORDER BY level",
        "WITH a AS (SELECT level AS x FROM customers) SELECT x FROM a",
    ):
        with pytest.raises(ToolForbiddenError, match="没有查看"):
            tool.run({"sql": sql}, context())
    assert tool.run({"sql": "SELECT COUNT(name) AS n FROM customers"}, context()).content
    tool.close()


def test_a_wrong_password_is_named_and_not_shown(
    company: Server, company_semantic: Semantic
) -> None:
    with pytest.raises(ToolUnavailableError, match="不接受用户名或密码") as caught:
        SqlTool(company.url("reader", "hunter2"), company_semantic)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ToolUnavailableError, match="没有这个数据库"):
        SqlTool(company.url("reader", READER_PASSWORD, "nowhere"), company_semantic)


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_server_that_is_down_stops_no_start(
    driver: str, company_semantic: Semantic, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    tool = SqlTool(f"{driver}://u:hunter2@127.0.0.1:9/company", company_semantic)
    with pytest.raises(ToolUnavailableError, match="连不上数据库") as caught:
        tool.run({"sql": "SELECT COUNT(*) FROM staff"}, context())
    tool.close()
    assert "hunter2" not in str(caught.value) + caplog.text


def test_an_account_that_can_write_is_refused_with_the_grants(
    company: Server, company_semantic: Semantic
) -> None:
    with pytest.raises(ToolUnavailableError, match="不是只读的") as caught:
        SqlTool(company.owner, company_semantic)
    assert "GRANT SELECT ON" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "excess"),
    [
        ("GRANT USAGE ON *.* TO `hutong`@`%` IDENTIFIED BY PASSWORD '*1'", []),
        ("GRANT SELECT, SHOW VIEW ON `erp`.* TO `hutong`@`%`", []),
        ("GRANT SELECT (`a`, `b`) ON `erp`.`t` TO `hutong`@`%`", []),
        ("GRANT SELECT, INSERT ON `erp`.* TO `hutong`@`%`", ["INSERT ON `erp`.*"]),
        ("GRANT ALL PRIVILEGES ON *.* TO `root`@`%`", ["ALL PRIVILEGES ON *.*"]),
        ("GRANT FILE ON *.* TO `hutong`@`%`", ["FILE ON *.*"]),
        (
            "GRANT SELECT ON *.* TO `hutong`@`%` WITH GRANT OPTION",
            ["GRANT OPTION ON *.*"],
        ),
        ("GRANT `writer`@`%` TO `hutong`@`%`", ["角色 `writer`@`%`（请直接授权，不要经过角色）"]),
    ],
)
def test_rights_beyond_reading_are_found_in_show_grants(line: str, excess: list[str]) -> None:
    assert excess_grants([line]) == excess


def test_the_grants_to_run_name_the_tables() -> None:
    assert 'GRANT SELECT ON "a", "b" TO hutong;' in postgres_grants("erp", ["a", "b"])
    assert "GRANT SELECT ON `erp`.`b` TO 'hutong'@'%';" in mysql_grants("erp", ["a", "b"])

"""Where MySQL differs from MariaDB and from the other dialects; its server is not started here."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from tools.base import ToolArgumentError, ToolUnavailableError
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql_check import SqlChecker
from tools.sql_dialect import written
from tools.sql_server import SqlServer, parsed_url, session_statements
from tools.sql_server_errors import code_of, connection_error

MYSQL, MARIADB = "8.0.36", "10.11.6-MariaDB-0+deb12u1"
TYPES = {
    "Order": {"Key": "BIGINT", "group": "TEXT", "price": "DECIMAL", "day": "DATE"},
    "t": {"group": "TEXT", "n": "BIGINT"},
}


def _checker() -> SqlChecker:
    schema = {table: tuple(columns) for table, columns in TYPES.items()}
    names = {n.lower(): n for table, columns in schema.items() for n in (table, *columns)}
    cards = (TableCard(t, t, tuple(ColumnCard(c, c) for c in cs)) for t, cs in schema.items())
    return SqlChecker(
        schema,
        Semantic(tuple(cards)),
        types=TYPES,
        write=lambda tree: written(tree, "mysql", names, max_rows=201),
    )


def _written(sql: str) -> str:
    return _checker().check(sql, max_rows=200, today=datetime.date(2024, 11, 15)).sql


def test_a_session_is_limited_read_only_and_in_one_sql_mode() -> None:
    mode = (
        "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
        "NO_ENGINE_SUBSTITUTION"
    )
    shared = (
        "SET SESSION lock_wait_timeout = 2",
        f"SET SESSION sql_mode = '{mode}'",
        "SET SESSION div_precision_increment = 10",
        "SET SESSION group_concat_max_len = 100000",
        "SET SESSION TRANSACTION READ ONLY",
        "START TRANSACTION READ ONLY",
    )
    # Milliseconds for SELECTs on MySQL, seconds for every statement on MariaDB.
    assert session_statements("mysql", MYSQL, 2.4) == (
        "SET SESSION max_execution_time = 2400",
        *shared,
    )
    assert session_statements("mysql", MARIADB, 2.4) == (
        "SET SESSION max_statement_time = 2.400",
        "SET SESSION max_recursive_iterations = 4294967295",
        *shared,
    )


@pytest.mark.parametrize("version", [MYSQL, MARIADB])
def test_a_limit_of_nothing_does_not_mean_no_limit(version: str) -> None:
    """0 switches the limit off on both."""
    (limit,) = [s for s in session_statements("mysql", version, 0.0001) if "_time =" in s]
    assert float(limit.split(" = ")[1]) > 0


class _Recorder:
    """Stands for the engine that opens a connection of its own for a cancel."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    @contextlib.contextmanager
    def connect(self) -> Iterator[_Recorder]:
        yield self

    def exec_driver_sql(self, statement: str) -> None:
        self.statements.append(statement)

    def dispose(self) -> None:
        pass


def test_a_query_is_killed_by_its_thread_and_its_connection_is_not() -> None:
    server = SqlServer("mysql://u:p@127.0.0.1:9/erp", {"t": ("n",)})
    recorder: Any = _Recorder()
    server._canceller = recorder
    server.cancel(object(), 4711)
    assert recorder.statements == ["KILL QUERY 4711"]
    server.close()


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        # Reserved words and capitals, as the server spells them.
        (
            'SELECT "group", "key" FROM "order"',
            "SELECT `Order`.`group` AS `group`, `Order`.`Key` AS `Key` FROM `Order` AS `Order`"
            " LIMIT 201",
        ),
        # A text stays a text: double quotes would name a column.
        (
            'SELECT n FROM t WHERE "group"="华东"',
            "SELECT `t`.`n` AS `n` FROM `t` AS `t` WHERE `t`.`group` = '华东' LIMIT 201",
        ),
        # A backslash is an escape on MySQL, on SQLite it is not.
        (
            "SELECT n FROM t WHERE \"group\"='a\\b''c'",
            "SELECT `t`.`n` AS `n` FROM `t` AS `t` WHERE `t`.`group` = 'a\\\\b''c' LIMIT 201",
        ),
        # || is OR on MySQL.
        (
            "SELECT \"group\" || 'x' AS y FROM t",
            "SELECT CONCAT(`t`.`group`, 'x') AS `y` FROM `t` AS `t` LIMIT 201",
        ),
        # An identifier cannot end its own quotes.
        (
            'SELECT n AS "a`b" FROM t',
            "SELECT `t`.`n` AS `a``b` FROM `t` AS `t` LIMIT 201",
        ),
        # MySQL runs what stands in /*! */.
        (
            "SELECT n /*! , (SELECT 1) */ FROM t",
            "SELECT `t`.`n` AS `n` FROM `t` AS `t` LIMIT 201",
        ),
        (
            "SELECT COUNT(*) FILTER (WHERE n>1) AS a FROM t",
            "SELECT COUNT(CASE WHEN `t`.`n` > 1 THEN 1 END) AS `a` FROM `t` AS `t` LIMIT 201",
        ),
        (
            'SELECT CAST(price AS INTEGER) AS a, CAST(n AS REAL) AS b FROM t, "order"',
            "SELECT CAST(TRUNCATE(`Order`.`price`, 0) AS SIGNED) AS `a`, (`t`.`n` + 0e0) AS `b`"
            " FROM `t` AS `t` CROSS JOIN `Order` AS `Order` LIMIT 201",
        ),
        (
            "SELECT strftime('%Y-%m', day) AS m FROM \"order\" LIMIT 3",
            "SELECT DATE_FORMAT(`Order`.`day`, '%Y-%m') AS `m` FROM `Order` AS `Order` LIMIT 3",
        ),
    ],
)
def test_statements_are_written_as_mysql_reads_them(sql: str, text: str) -> None:
    assert _written(sql) == text


def test_a_filter_that_has_no_equivalent_is_refused() -> None:
    with pytest.raises(ToolArgumentError, match="CASE WHEN"):
        _written('SELECT group_concat("group") FILTER (WHERE n>1) AS a FROM t')


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (3024, "timeout"),  # max_execution_time, MySQL's own
        (1969, "timeout"),  # max_statement_time, MariaDB's
        (1317, "timeout"),  # KILL QUERY
        (1205, "timeout"),  # lock wait
        (1142, "denied"),
        (1143, "denied"),
        (1792, "denied"),  # writing in a read-only transaction
        (1290, "denied"),
        (1153, "too_big"),
        (2013, "unavailable"),
        (1055, "failed"),  # ONLY_FULL_GROUP_BY
        (3636, "failed"),  # cte_max_recursion_depth
    ],
)
def test_error_numbers(number: int, code: str) -> None:
    error = pymysql.err.OperationalError(number, "words of the server")
    assert code_of(OperationalError("SELECT 1", None, error)) == code


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1045, "不接受用户名或密码"),
        (1698, "不接受用户名或密码"),
        (1049, "没有这个数据库"),
        (1044, "没有这个数据库"),
        (1040, "连接数已满"),
        (2003, "连不上数据库"),
    ],
)
def test_connection_errors_say_what_to_set_right_without_the_host(number: int, words: str) -> None:
    error = pymysql.err.OperationalError(number, "u@db.example.com using hunter2")
    said = connection_error(OperationalError("", None, error))
    assert isinstance(said, ToolUnavailableError)
    assert words in str(said)
    assert "hunter2" not in str(said) + str(said.__cause__)
    assert "db.example.com" not in str(said)


def test_urls_of_mysql_and_mariadb_use_one_driver() -> None:
    for name in ("mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql"):
        url, dialect = parsed_url(f"{name}://u:p@db/erp")
        assert (url.drivername, dialect) == ("mysql+pymysql", "mysql")
    with pytest.raises(ToolUnavailableError, match="要以"):
        parsed_url("mysql+mysqldb://u:p@db/erp")

"""SQLite's walls: nothing is written, nothing else is read, everything ends."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import sql_check
from tools.base import (
    ToolCancelledError,
    ToolContext,
    ToolError,
    ToolForbiddenError,
    ToolTimeoutError,
)
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql import SqlTool
from tools.sql_process import WorkerPool, WorkerRequest

Context = Callable[..., ToolContext]
_LONG = (
    "replace(replace(replace(replace('aaaaaaaaaa','a','aaaaaaaaaa'),'a','aaaaaaaaaa'),"
    "'a','aaaaaaaaaa'),'a','aaaaaaaaaa')"
)
# One call of instr() that compares 250,000 characters 550,000 times; no handler runs meanwhile.
SLOW_OPCODE = f"SELECT instr(replace({_LONG},'a','aaaaaaaa'), replace({_LONG},'a','aaa')||'b') AS x"
HOSTILE = [
    "DROP TABLE sales_data",
    "DELETE FROM sales_data",
    "UPDATE sales_data SET price=0",
    "INSERT INTO staff VALUES ('x','y','z')",
    "REPLACE INTO staff VALUES ('x','y','z')",
    "CREATE TABLE evil(x)",
    "CREATE TEMP TABLE evil AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON staff BEGIN DELETE FROM staff; END",
    "ALTER TABLE staff ADD COLUMN x",
    "ATTACH DATABASE 'evil.db' AS evil",
    "ATTACH 'file:evil.db?mode=rwc' AS evil",
    "DETACH DATABASE main",
    "VACUUM",
    "VACUUM INTO 'evil.db'",
    "PRAGMA writable_schema=1",
    "PRAGMA query_only=0",
    "PRAGMA journal_mode=WAL",
    "PRAGMA database_list",
    "ANALYZE",
    "REINDEX",
    "BEGIN",
    "SELECT 1; DROP TABLE staff",
    "SELECT 1;\nSELECT 2",
    "/* SELECT */ DROP TABLE staff",
    "SELECT 1 /* /* */ ; DROP TABLE staff /* */ */",
    "-- SELECT\nDELETE FROM staff",
    "WITH x AS (SELECT 1) DELETE FROM staff",
    "WITH x AS (DELETE FROM staff RETURNING *) SELECT * FROM x",
    "SELECT * FROM sqlite_master",
    "SELECT sql FROM sqlite_schema",
    "SELECT * FROM main.sqlite_master",
    "SELECT * FROM temp.sqlite_master",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_table_info('staff')",
    "SELECT * FROM secrets",
    "SELECT (SELECT password FROM secrets)",
    "SELECT name FROM staff UNION SELECT password FROM secrets",
    "SELECT name FROM staff WHERE name IN (SELECT password FROM secrets)",
    "WITH secrets AS (SELECT 1 AS password) SELECT * FROM secrets",
    "WITH sqlite_master AS (SELECT 1 AS sql) SELECT * FROM main.sqlite_master",
    "SELECT (WITH sqlite_master AS (SELECT 1 AS a) SELECT a FROM sqlite_master), sql"
    " FROM sqlite_master",
    "SELECT salary FROM staff",
    "SELECT rowid FROM staff",
    "SELECT load_extension('evil.so')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('evil.db', 'x')",
    "SELECT hex(randomblob(300000000))",
    "SELECT length(zeroblob(900000000))",
    "SELECT printf('%.*c', 900000000, 'x')",
    "SELECT format('%.*c', 900000000, 'x')",
    "SELECT fts3_tokenizer('x')",
    "SELECT sqlite_version()",
    "SELECT edit('x')",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT SUM(x) FROM c",
    "SELECT COUNT(*) FROM sales_data a, sales_data b, sales_data c",
    "SELECT replace(replace(replace(replace(replace(replace('aaaaaaaaaa','a','aaaaaaaaaa'),'a',"
    "'aaaaaaaaaa'),'a','aaaaaaaaaa'),'a','aaaaaaaaaa'),'a','aaaaaaaaaa'),'a','aaaaaaaaaa')",
    SLOW_OPCODE,
    "SELECT " + "(" * 400 + "1" + ")" * 400,
    "SELECT " + "-" * 1 + "1+" * 3000 + "1",
    "EXPLAIN SELECT 1",
    "VALUES (1)",
    "SELECT name INTO evil FROM staff",
    "COPY staff TO 'evil.db'",
    "SELECT ?",
    "SELECT date('now')",
    "表结构信息不足，无法回答",
    "",
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a table and a column that the semantic file does not name."""
    path = tmp_path_factory.mktemp("guarded") / "company.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE staff(name TEXT, department TEXT, hire_date TEXT, salary INTEGER);"
            "CREATE TABLE secrets(password TEXT);"
            "CREATE TABLE sales_data(name TEXT, price REAL);"
            "INSERT INTO staff VALUES ('王伟','研发部','2020-01-01',99999);"
            "INSERT INTO secrets VALUES ('hunter2');"
        )
        database.executemany(
            "INSERT INTO sales_data VALUES (?, ?)", ((f"n{i}", float(i)) for i in range(3000))
        )
        database.commit()
    return path


TABLES = {"staff": ("name", "department", "hire_date"), "sales_data": ("name", "price")}
SEMANTIC = Semantic(
    tuple(
        TableCard(table, table, tuple(ColumnCard(c, c) for c in columns))
        for table, columns in TABLES.items()
    )
)


@pytest.fixture(scope="module")
def guarded_tool(guarded: Path) -> Iterator[SqlTool]:
    tool = SqlTool(guarded, SEMANTIC, timeout_s=0.5, workers=2)
    yield tool
    tool.close()


def _state(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("sql", HOSTILE)
def test_hostile_statements_write_nothing_and_end(
    guarded_tool: SqlTool, guarded: Path, context: Context, sql: str
) -> None:
    before = _state(guarded.parent)
    with pytest.raises(ToolError) as caught:
        guarded_tool.run({"sql": sql}, context())
    assert "hunter2" not in str(caught.value)
    assert _state(guarded.parent) == before
    # The next question is answered by a live worker.
    assert guarded_tool.run({"sql": "SELECT COUNT(*) AS n FROM staff"}, context()).content == (
        "n\n1\n共1行"
    )


@pytest.mark.parametrize("sql", [sql for sql in HOSTILE if sql and "now" not in sql])
def test_the_database_walls_hold_without_the_checker(guarded: Path, sql: str) -> None:
    before = _state(guarded.parent)
    pool = WorkerPool(guarded, TABLES, size=1)
    try:
        answer = pool.ask(WorkerRequest(sql, ("x", "c"), 0.5, 200, 50_000))
    except ToolTimeoutError:
        answer = {"error": "killed"}
    finally:
        pool.close()
    assert "hunter2" not in str(answer)
    assert "99999" not in str(answer)
    assert "CREATE" not in str(answer.get("rows"))
    assert str(guarded.parent) not in str(answer)
    assert _state(guarded.parent) == before


def test_one_long_opcode_is_ended_by_killing_the_process(guarded: Path) -> None:
    pool = WorkerPool(guarded, TABLES, size=1)
    try:
        with pytest.raises(ToolTimeoutError, match="已被终止"):
            pool.ask(WorkerRequest(SLOW_OPCODE, (), 0.3, 10, 1000))
        request = WorkerRequest("SELECT COUNT(*) FROM staff", (), 1.0, 10, 1000)
        assert pool.ask(request)["rows"] == [[1]]
    finally:
        pool.close()


def test_a_stopped_turn_kills_the_statement_and_the_next_one_is_answered(guarded: Path) -> None:
    endless = (
        SLOW_OPCODE,
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT SUM(x) FROM c",
    )
    pool = WorkerPool(guarded, TABLES, size=1)
    try:
        for sql in endless:
            with pytest.raises(ToolCancelledError):
                pool.ask(WorkerRequest(sql, ("c",), 60.0, 10, 1000), lambda: True)
            request = WorkerRequest("SELECT COUNT(*) FROM staff", (), 1.0, 10, 1000)
            assert pool.ask(request)["rows"] == [[1]]
    finally:
        pool.close()


OWN = {"staff": ("name", "hire_date")}
BEYOND = [
    "SELECT department FROM staff",
    "SELECT name FROM staff WHERE department='研发部'",
    "SELECT name FROM staff ORDER BY department",
    "SELECT COUNT(*) FROM staff GROUP BY department",
    "SELECT * FROM staff",
    "SELECT rowid FROM staff",
    "SELECT x FROM (SELECT department AS x FROM staff)",
    "WITH a AS (SELECT department AS x FROM staff) SELECT x FROM a",
    "SELECT a.name FROM staff a NATURAL JOIN (SELECT department FROM staff) b",
    "SELECT COUNT(*) FROM sales_data",
    "SELECT 1 FROM sales_data",
    "SELECT name FROM staff WHERE name IN (SELECT name FROM sales_data)",
    "SELECT name FROM staff WHERE name IN sales_data",
    "SELECT name FROM staff UNION SELECT name FROM sales_data",
    "SELECT password FROM secrets",
]


@pytest.mark.parametrize("sql", BEYOND)
def test_sqlite_itself_refuses_what_this_user_may_not_read(guarded: Path, sql: str) -> None:
    readable = {**OWN, "secrets": ("password",)}  # what is not listed stays closed
    pool = WorkerPool(guarded, TABLES, size=1)
    try:
        # Somebody with all rights asks the same before and after, of the same process.
        for rights in (None, readable, None, readable):
            answer = pool.ask(WorkerRequest(sql, ("a",), 1.0, 10, 1000, rights))
            if rights is not None:
                assert answer["error"] == "denied"
        own = "SELECT COUNT(*), MAX(name), MAX(hire_date) FROM staff"
        assert pool.ask(WorkerRequest(own, (), 1.0, 10, 1000, readable))["rows"] == [
            [1, "王伟", "2020-01-01"]
        ]
    finally:
        pool.close()


def test_a_hole_in_the_check_shows_no_more_than_the_user_may_read(
    guarded: Path, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = {"staff.department", "sales_data"}
    tool = SqlTool(guarded, SEMANTIC, may_read=lambda user, name: name not in hidden)
    monkeypatch.setattr(sql_check, "refuse_unreadable", lambda *_: None)
    try:
        for sql in (
            "SELECT department FROM staff",
            "SELECT name FROM staff WHERE department='研发'",
            "SELECT COUNT(*) FROM sales_data",
        ):
            with pytest.raises(ToolError, match="不允许使用") as caught:
                tool.run({"sql": sql}, context())
            assert "研发部" not in str(caught.value)
        assert tool.run({"sql": "SELECT name FROM staff"}, context()).content.startswith(
            "name\n王伟"
        )
    finally:
        tool.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT s.name FROM staff s JOIN staff t USING (department)",
        "SELECT s.name FROM staff s NATURAL JOIN staff t",
        "SELECT COUNT(*) FROM staff s JOIN staff t USING (salary)",
    ],
)
def test_columns_of_using_and_natural_joins_are_refused_by_the_check(
    guarded: Path, context: Context, sql: str
) -> None:
    """SQLite asks its authorizer about neither."""
    tool = SqlTool(guarded, SEMANTIC, may_read=lambda user, name: name != "staff.department")
    try:
        wanted = ToolError if "salary" in sql else ToolForbiddenError
        with pytest.raises(wanted):
            tool.run({"sql": sql}, context())
    finally:
        tool.close()

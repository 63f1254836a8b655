"""Hostile and broken statements on SQLite, PostgreSQL and MariaDB: nothing written, nothing hangs.

Each goes through the tool as a model would send it, and once more straight to the connection, as
if the checker had let it through.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sql_servers import READER_PASSWORD, Server
from tools.base import ToolContext, ToolError
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql import SqlTool
from tools.sql_process import WorkerRequest
from tools.sql_server import SqlServer

Context = Callable[..., ToolContext]
CAP_S = 0.6
GRACE_S = 2.0
SECRET = "hunter2"
GUARDED = "guarded"
TABLES = {"staff": ("name", "department", "hire_date"), "sales_data": ("name", "price")}
_DOUBLED = "WITH a0 AS (SELECT 'xxxxxxxxxx' AS s), " + ", ".join(
    f"a{i} AS (SELECT s||s||s||s||s||s||s||s AS s FROM a{i - 1})" for i in range(1, 10)
)
STATEMENTS = [
    # writing
    "DROP TABLE sales_data",
    "DELETE FROM sales_data",
    "UPDATE sales_data SET price=0",
    "INSERT INTO staff VALUES ('x','y','2020-01-01',1)",
    "REPLACE INTO staff VALUES ('x','y','2020-01-01',1)",
    "TRUNCATE TABLE staff",
    "CREATE TABLE evil(x INT)",
    "CREATE TEMP TABLE evil AS SELECT 1",
    "CREATE TEMPORARY TABLE evil AS SELECT 1 AS a",
    "CREATE VIEW evil AS SELECT 1",
    "CREATE INDEX evil ON staff(name)",
    "CREATE DATABASE evil",
    "CREATE ROLE evil SUPERUSER",
    "CREATE USER evil IDENTIFIED BY 'x'",
    "CREATE FUNCTION evil() RETURNS INT RETURN 1",
    "ALTER TABLE staff ADD COLUMN x INT",
    "ALTER ROLE reader SUPERUSER",
    "GRANT ALL ON staff TO reader",
    "GRANT ALL PRIVILEGES ON *.* TO reader@'%'",
    "SET PASSWORD = 'x'",
    "MERGE INTO staff USING sales_data ON 1=1 WHEN MATCHED THEN DELETE",
    "WITH x AS (DELETE FROM staff RETURNING *) SELECT * FROM x",
    "WITH x AS (SELECT 1) DELETE FROM staff",
    "SELECT name INTO evil FROM staff",
    "SELECT name INTO OUTFILE '/tmp/hutong-evil' FROM staff",
    "SELECT name INTO DUMPFILE '/tmp/hutong-evil' FROM staff",
    "SELECT name INTO @evil FROM staff",
    "COPY staff TO '/tmp/hutong-evil'",
    "COPY staff TO PROGRAM 'touch /tmp/hutong-evil'",
    "LOAD DATA INFILE '/etc/passwd' INTO TABLE staff",
    "VACUUM INTO '/tmp/hutong-evil'",
    "ATTACH DATABASE '/tmp/hutong-evil' AS evil",
    "DO $$ BEGIN DELETE FROM staff; END $$",
    "CALL evil()",
    "PREPARE p AS DELETE FROM staff",
    "EXECUTE IMMEDIATE 'DELETE FROM staff'",
    "LOCK TABLES staff WRITE",
    "SELECT name FROM staff FOR UPDATE",
    "SELECT nextval('evil')",
    # session and several statements
    "SET statement_timeout=0; SELECT pg_sleep(30)",
    "SET SESSION max_statement_time=0",
    "SET TRANSACTION READ WRITE",
    "SET SESSION TRANSACTION READ WRITE",
    "BEGIN READ WRITE",
    "COMMIT",
    "ROLLBACK; DELETE FROM staff",
    "SELECT 1; DROP TABLE staff",
    "SELECT 1;\nSELECT 2",
    "SELECT 1 /*!50000 ; DROP TABLE staff */",
    "SELECT name FROM staff /*! UNION SELECT password FROM secrets */ WHERE name='无'",
    "SELECT set_config('default_transaction_read_only','off',false)",
    "SELECT @@version",
    "SELECT @evil := 1",
    "PRAGMA writable_schema=1",
    # what is not listed
    "SELECT * FROM secrets",
    "SELECT (SELECT password FROM secrets)",
    "SELECT name FROM staff UNION SELECT password FROM secrets",
    "SELECT name FROM staff WHERE name IN (SELECT password FROM secrets)",
    "WITH secrets AS (SELECT 1 AS password) SELECT * FROM secrets",
    f"SELECT * FROM {GUARDED}.secrets",
    "SELECT * FROM public.secrets",
    "SELECT salary FROM staff",
    "SELECT staff.salary FROM staff",
    "SELECT staff FROM staff",
    "SELECT row_to_json(s) FROM staff s",
    "SELECT COUNT(s.*) FROM staff s, staff t GROUP BY s.salary",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM pg_shadow",
    "SELECT * FROM pg_catalog.pg_authid",
    "SELECT table_name FROM information_schema.tables",
    "SELECT user, password FROM mysql.user",
    "TABLE secrets",
    "SHOW TABLES",
    "SHOW GRANTS",
    "EXPLAIN ANALYZE DELETE FROM staff",
    "DESCRIBE secrets",
    # files, system, other servers
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT load_file('/etc/passwd')",
    "SELECT readfile('/etc/passwd')",
    "SELECT load_extension('evil.so')",
    "SELECT dblink('host=127.0.0.1', 'SELECT 1')",
    "SELECT current_user",
    "SELECT version()",
    "SELECT pg_terminate_backend(1)",
    "SELECT query_to_xml('SELECT * FROM secrets', true, true, '')",
    "SELECT CAST('secrets' AS regclass)",
    # time and memory
    "SELECT pg_sleep(30)",
    "SELECT sleep(30)",
    "SELECT benchmark(1000000000, md5('x'))",
    "SELECT get_lock('x', 30)",
    "SELECT repeat('x', 900000000)",
    "SELECT rpad('x', 900000000, 'x')",
    "SELECT * FROM generate_series(1, 1000000000)",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT SUM(x) FROM c",
    "SELECT COUNT(*) FROM sales_data a, sales_data b, sales_data c, sales_data d",
    f"{_DOUBLED} SELECT s FROM a9",
    "SELECT group_concat(a.name) AS x FROM sales_data a, sales_data b, sales_data c",
    "SELECT " + "(" * 400 + "1" + ")" * 400,
    "SELECT " + "1+" * 3000 + "1",
    # broken
    "SELECT nothing FROM staff",
    "SELECT name FROM stuff",
    "SELECT name FROM staff WHERE",
    "SELECT evil(name) FROM staff",
    "SELECT name FROM staff GROUP BY",
    "SELECT '未闭合",
    "表结构信息不足，无法回答",
    "",
]
# Answered where they are nothing worse than odd; the answer is the number one or the sum.
HARMLESS = {
    # MariaDB does not show the account that there is such a table; the name hides it.
    "WITH secrets AS (SELECT 1 AS password) SELECT * FROM secrets",
    "SELECT 1 /*!50000 ; DROP TABLE staff */",
    "SELECT CAST('secrets' AS regclass)",
    "SELECT " + "1+" * 3000 + "1",
}


@dataclass(frozen=True)
class Guarded:
    """A database with a table and a column that nobody may read, and a tool over the rest."""

    tool: SqlTool
    backend: SqlServer | None
    state: Callable[[], str]


_ROWS = (
    "CREATE TABLE staff(name VARCHAR(20), department VARCHAR(20), hire_date DATE, salary INT)",
    "CREATE TABLE secrets(password VARCHAR(20))",
    "CREATE TABLE sales_data(name VARCHAR(20), price NUMERIC(10,2))",
    "INSERT INTO staff VALUES ('王伟','研发部','2020-01-01',99999)",
    f"INSERT INTO secrets VALUES ('{SECRET}')",
    "INSERT INTO sales_data VALUES " + ", ".join(f"('n{i}', {i}.5)" for i in range(3000)),
)


def _semantic() -> Semantic:
    return Semantic(
        tuple(
            TableCard(table, table, tuple(ColumnCard(c, c) for c in columns))
            for table, columns in TABLES.items()
        )
    )


def _postgres_state(server: Server) -> str:
    rows: list[object] = [
        server.run(f"SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM {table} t",
                   database=GUARDED)
        for table in ("staff", "secrets", "sales_data")
    ]  # fmt: skip
    for query in (
        "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " ORDER BY 1",
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema='public'"
        " ORDER BY 1, 2",
        "SELECT rolname, rolsuper FROM pg_roles ORDER BY 1",
        "SELECT datname FROM pg_database ORDER BY 1",
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    ):
        rows.append(server.run(query, database=GUARDED))
    return str(rows)


def _mariadb_state(server: Server) -> str:
    rows: list[object] = []
    for query in (
        "CHECKSUM TABLE staff, secrets, sales_data",
        "SELECT COUNT(*) FROM staff",
        "SELECT table_schema, table_name, column_name FROM information_schema.columns"
        " WHERE table_schema NOT IN ('information_schema', 'performance_schema') ORDER BY 1, 2, 3",
        "SELECT user, host, authentication_string FROM mysql.user ORDER BY 1, 2",
        "SELECT * FROM information_schema.table_privileges ORDER BY 1, 2, 3, 4, 5",
        "SELECT routine_name FROM information_schema.routines WHERE routine_schema <> 'sys'",
    ):
        rows.append(server.run(query, database=GUARDED))
    return str(rows)


@contextlib.contextmanager
def _sqlite(folder: Path) -> Iterator[Guarded]:
    path = folder / "guarded.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in _ROWS:
            database.execute(statement)
        database.commit()

    def state() -> str:
        files = sorted(folder.iterdir())
        return str([(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files])

    tool = SqlTool(path, _semantic(), timeout_s=CAP_S, workers=2)
    yield Guarded(tool, None, state)
    tool.close()


@contextlib.contextmanager
def _served(server: Server) -> Iterator[Guarded]:
    server.create_database(GUARDED)
    server.run(*_ROWS, database=GUARDED)
    who = "reader" if server.kind == "postgres" else "reader@'%'"
    for table, columns in TABLES.items():
        grant = f"GRANT SELECT ({', '.join(columns)}) ON {table} TO {who}"
        server.run(grant, database=GUARDED)
    url = server.url("reader", READER_PASSWORD, GUARDED)
    state = _postgres_state if server.kind == "postgres" else _mariadb_state
    tool = SqlTool(url, _semantic(), timeout_s=CAP_S, workers=2)
    backend = SqlServer(url, TABLES, connections=1)
    yield Guarded(tool, backend, lambda: state(server))
    tool.close()
    backend.close()


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    if request.param == "sqlite":
        with _sqlite(tmp_path_factory.mktemp("guarded")) as made:
            yield made
    else:
        with _served(request.getfixturevalue(f"{request.param}_server")) as made:
            yield made


def test_there_are_enough_statements() -> None:
    assert len(set(STATEMENTS)) == len(STATEMENTS) >= 60


def test_hostile_statements_write_nothing_and_end(guarded: Guarded, context: Context) -> None:
    before = guarded.state()
    wrong: list[str] = []
    for sql in STATEMENTS:
        started_s = time.monotonic()
        try:
            content = guarded.tool.run({"sql": sql}, context()).content
            if sql not in HARMLESS:
                wrong.append(f"answered {content[:80]!r}: {sql}")
        except ToolError as error:
            if SECRET in str(error) or "99999" in str(error):
                wrong.append(f"told {error}: {sql}")
        took_s = time.monotonic() - started_s
        if took_s > CAP_S + GRACE_S:
            wrong.append(f"took {took_s:.1f} s: {sql}")
        # The next question is answered.
        good = guarded.tool.run({"sql": "SELECT COUNT(*) AS n FROM staff"}, context())
        assert good.content == "n\n1\n共1行", sql
    assert wrong == []
    assert guarded.state() == before


def test_the_walls_hold_without_the_checker(guarded: Guarded) -> None:
    """Those of SQLite are tested in ``test_sql_walls``, one process a statement."""
    backend = guarded.backend
    if backend is None:
        return
    before = guarded.state()
    wrong: list[str] = []
    for sql in STATEMENTS:
        started_s = time.monotonic()
        try:
            answer = backend.ask(WorkerRequest(sql, (), CAP_S, 200, 50_000))
        except ToolError as error:
            answer = {"error": str(error)}
        took_s = time.monotonic() - started_s
        if SECRET in str(answer) or "99999" in str(answer) or "root:" in str(answer):
            wrong.append(f"leaked: {sql}")
        if took_s > CAP_S + GRACE_S:
            wrong.append(f"took {took_s:.1f} s: {sql}")
    assert wrong == []
    assert guarded.state() == before
    assert not Path("/tmp/hutong-evil").exists()

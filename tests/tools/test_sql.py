"""SQL: right answers, read-only in depth, errors that help to repair."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import (
    Table,
    ToolArgumentError,
    ToolContext,
    ToolError,
    ToolTimeoutError,
    ToolUnavailableError,
)
from tools.semantic import ColumnCard, Semantic, TableCard
from tools.sql import NO_ROWS, SqlTool, content_of
from tools.sql_process import WorkerPool, WorkerRequest

Context = Callable[..., ToolContext]
TOP5 = (
    "SELECT product_name, SUM(quantity*price) AS 销售额 FROM sales_data "
    "WHERE region='华东' AND year=2024 AND quarter=3 "
    "GROUP BY product_name ORDER BY 销售额 DESC LIMIT 5"
)
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


@pytest.fixture(scope="module")
def guarded_tool(guarded: Path):
    cards = tuple(
        TableCard(table, table, tuple(ColumnCard(c, c) for c in columns))
        for table, columns in TABLES.items()
    )
    tool = SqlTool(guarded, Semantic(cards), timeout_s=0.5, workers=2)
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


def test_top_five_is_exact_and_named(sql_tool: SqlTool, company_db: Path, context: Context) -> None:
    result = sql_tool.run({"sql": TOP5, "chart": "bar"}, context())
    with contextlib.closing(sqlite3.connect(company_db)) as database:
        expected = tuple(database.execute(TOP5).fetchall())
    assert result.table == Table(("产品", "销售额"), expected)
    assert result.chart == "bar"
    assert result.scope == "2024年第3季度；区域=华东"
    assert result.content.split("\n")[0] == "产品|销售额"
    assert result.content.split("\n")[-1] == "共5行"


@pytest.mark.parametrize(
    ("select", "ordered_by"),
    [
        ("product_name, SUM(quantity) AS n, SUM(price) AS p {} ORDER BY p DESC", "p"),
        ("product_name, SUM(quantity), SUM(quantity*price) {} ORDER BY 3", "销售额"),
        ("product_name, SUM(quantity) {} ORDER BY SUM(quantity) DESC", "销量"),
        ("product_name, SUM(quantity) {} ORDER BY MAX(price)", ""),
        ("product_name, SUM(quantity) {}", ""),
    ],
)
def test_the_table_knows_what_it_is_ordered_by(
    sql_tool: SqlTool, context: Context, select: str, ordered_by: str
) -> None:
    sql = "SELECT " + select.format("FROM sales_data WHERE year=2024 GROUP BY product_name")
    table = sql_tool.run({"sql": sql}, context()).table
    assert table is not None
    assert table.ordered_by == ordered_by


def test_the_scope_names_the_last_day_with_data(
    sql_tool: SqlTool, company_db: Path, context: Context
) -> None:
    with contextlib.closing(sqlite3.connect(company_db)) as database:
        last = database.execute("SELECT MAX(date) FROM sales_data").fetchone()[0]
    result = sql_tool.run(
        {"sql": "SELECT SUM(quantity) FROM sales_data WHERE year=2024"}, context()
    )
    assert result.scope == f"2024年（截至{last}）"


def test_the_model_reads_at_most_twelve_rows(sql_tool: SqlTool, context: Context) -> None:
    result = sql_tool.run({"sql": "SELECT name FROM staff"}, context())
    assert result.table is not None
    assert len(result.table.rows) == 99
    lines = result.content.split("\n")
    assert (len(lines), lines[-1]) == (14, "…共99行")


def test_rows_and_bytes_are_capped(sql_tool: SqlTool, context: Context) -> None:
    result = sql_tool.run({"sql": "SELECT order_id, price FROM sales_data"}, context())
    assert result.table is not None
    assert (len(result.table.rows), result.table.truncated) == (200, True)
    assert result.content.endswith("…共200行以上")
    wide = "SELECT " + ", ".join(f"customer AS c{i}" for i in range(40)) + " FROM sales_data"
    table = sql_tool.run({"sql": wide}, context()).table
    assert table is not None
    assert table.truncated
    assert sum(len(str(cell).encode()) for row in table.rows for cell in row) <= 50_000


def test_order_numbers_are_not_figures(sql_tool: SqlTool, context: Context) -> None:
    sql = "SELECT order_id FROM sales_data ORDER BY order_id LIMIT 1"
    assert sql_tool.run({"sql": sql}, context()).content == "订单号\n100001\n共1行"


@pytest.mark.parametrize(
    "where",
    [
        "year=2020",
        "region='西北' AND category='手机' AND year=2020",
        "date='2024-02-30'",
        "customer='' AND region='华东'",
    ],
)
def test_no_rows_says_so(sql_tool: SqlTool, context: Context, where: str) -> None:
    for what in ("product_name", "SUM(quantity*price)"):
        result = sql_tool.run({"sql": f"SELECT {what} FROM sales_data WHERE {where}"}, context())
        assert result.content == NO_ROWS
        assert result.table is not None
        assert result.table.rows == ()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT COUNT(*) FROM sales_data WHERE product_name='星云41手机'",
            "产品没有“星云41手机”，相近的有：星云X1手机",
        ),
        (
            "SELECT SUM(quantity) FROM sales_data WHERE region IN ('华东','火星区')",
            "区域没有“火星区”，有：东北/华东/华中/华北/华南/西北/西南",
        ),
        (
            "SELECT SUM(quantity) FROM sales_data WHERE region='上海' AND year=2024",
            "“上海”是客户的城市",
        ),
        ("SELECT COUNT(*) FROM sales_data WHERE salesperson<>'某某某'", "销售员没有“某某某”"),
        (
            "SELECT 品 FROM (SELECT product_name AS 品 FROM sales_data) WHERE 品='星云41手机'",
            "产品没有“星云41手机”",
        ),
        (
            "SELECT SUM(CASE WHEN s.category='飞机' THEN 1 ELSE 0 END) FROM sales_data s",
            "品类没有“飞机”",
        ),
        (
            "WITH a AS (SELECT name FROM staff WHERE department='太空部') SELECT COUNT(*) FROM a",
            "部门没有“太空部”",
        ),
    ],
)
def test_a_value_that_does_not_exist_is_refused(
    sql_tool: SqlTool, context: Context, sql: str, message: str
) -> None:
    with pytest.raises(ToolArgumentError) as caught:
        sql_tool.run({"sql": sql}, context())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("product_name='星云x1手机'", "product_name='星云X1手机'"),
        ("product_name=' 星云Ｘ1 手机 '", "product_name='星云X1手机'"),
        ("region='华东区'", "region='华东'"),
        ("region IN ('華東','华南地区')", "region IN ('华东','华南')"),
        ("'华东大区'=region", "region='华东'"),
    ],
)
def test_another_spelling_of_a_value_is_repaired(
    sql_tool: SqlTool, context: Context, written: str, meant: str
) -> None:
    sql = "SELECT COUNT(*) FROM sales_data WHERE year=2024 AND "
    got = sql_tool.run({"sql": sql + written}, context())
    wanted = sql_tool.run({"sql": sql + meant}, context())
    assert wanted.table is not None
    assert wanted.table.rows[0][0] != 0
    assert (got.table, got.scope) == (wanted.table, wanted.scope)


def test_values_that_other_filters_exclude_are_no_mistake(
    sql_tool: SqlTool, context: Context
) -> None:
    sql = "SELECT COUNT(*) AS 单数 FROM sales_data WHERE year=2020 AND region='西北'"
    assert sql_tool.run({"sql": sql}, context()).content == "单数\n0\n共1行"


def test_a_value_added_to_a_live_database_is_known_at_once(
    tmp_path: Path, context: Context
) -> None:
    path = tmp_path / "live.db"
    cards = (
        TableCard("t", "表", (ColumnCard("c", "城市"), ColumnCard("n", "数"))),
        TableCard("u", "城市表", (ColumnCard("city", "城市"),)),
    )
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t(c TEXT, n INTEGER)")
        database.execute("CREATE TABLE u(city TEXT)")
        database.execute("INSERT INTO t VALUES ('上海', 1)")
        database.execute("INSERT INTO u VALUES ('杭州')")
        database.commit()
        tool = SqlTool(path, Semantic(cards))
        sql = {"sql": "SELECT n FROM t WHERE c='北京'"}
        try:
            with pytest.raises(ToolArgumentError, match=r"城市没有“北京”，有：上海/杭州"):
                tool.run(sql, context())
            database.execute("INSERT INTO t VALUES ('北京', 2)")
            database.commit()
            assert tool.run(sql, context()).content == "数\n2\n共1行"
            # Known under the same title in another table: no rows is the right answer.
            other = {"sql": "SELECT n FROM t WHERE c='杭州'"}
            assert tool.run(other, context()).content == NO_ROWS
        finally:
            tool.close()


def test_zero_is_an_answer(sql_tool: SqlTool, context: Context) -> None:
    sql = "SELECT COUNT(*) AS 单数 FROM sales_data WHERE year=2020"
    assert sql_tool.run({"sql": sql}, context()).content == "单数\n0\n共1行"


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT 产品名称 FROM sales_data", "product_name"),
        ("SELECT regon FROM sales_data", "region"),
        ("SELECT s.regon FROM sales_data s", "region"),
        ("SELECT 销售额 FROM sales_data", "SUM(quantity*price)"),
        ("SELECT region FROM sale_data", "sales_data"),
        ("SELECT 部门 FROM staff", "department"),
        ("SELECT name FROM customers, staff", "表名.name"),
        ("SELECT x.region FROM sales_data s", "别名"),
        ("SELECT \"不存在的列\" FROM sales_data WHERE region='华东'", "不存在的列"),
        ("SELECT summ(price) FROM sales_data", "sum"),
        ("SELECT region FROM sales_data WHERE (", "语法错误"),
        ("SELECT region sum(price) FROM sales_data", "语法错误"),
        ("SELECT SUM(price) FROM sales_data WHERE region='华东", "语法错误"),
        ("SELECT CURRENT_DATE", "2024-11-15"),
        ("我不知道", "SELECT"),
    ],
)
def test_errors_help_to_repair(sql_tool: SqlTool, context: Context, sql: str, hint: str) -> None:
    with pytest.raises(ToolArgumentError, match=r".") as caught:
        sql_tool.run({"sql": sql}, context())
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SUM（quantity） AS n FROM sales_data WHERE region＝“华东” AND year＝２０２４；",
        "```sql\nSELECT SUM(quantity) AS n FROM sales_data WHERE region='华东' AND year=2024;\n```",
        "SQL: SELECT SUM(quantity) AS n FROM sales_data WHERE region=‘华东’ AND year=2024。",
        'SELECT SUM(quantity) AS n FROM sales_data WHERE region="华东" AND year=2024',
        "SELECT SUM(quantity) AS n FROM sales_data WHERE region='华东' AND year=2024 -- 完",
        "select sum(QUANTITY) as n from SALES_DATA where REGION='华东' and YEAR=2024",
    ],
)
def test_near_misses_are_repaired(sql_tool: SqlTool, context: Context, sql: str) -> None:
    exact = "SELECT SUM(quantity) AS n FROM sales_data WHERE region='华东' AND year=2024"
    wanted = sql_tool.run({"sql": exact}, context())
    got = sql_tool.run({"sql": sql}, context())
    assert got.table is not None
    assert wanted.table is not None
    assert got.table.rows == wanted.table.rows
    assert got.scope == wanted.scope == "2024年（截至2024-11-14）；区域=华东"


@pytest.mark.parametrize(
    ("select", "header"),
    [
        ("product_name", "产品"),
        ("SUM(price * quantity)", "销售额"),
        ("ROUND(SUM(quantity*price), 2)", "销售额"),
        ("SUM(quantity)", "销量"),
        ("AVG(price)", "平均单价"),
        ("COUNT(*)", "销售订单数"),
        ("COUNT(DISTINCT customer)", "客户数"),
        ("MAX(date) AS 最近", "最近"),
        ("sales_data.region", "区域"),
    ],
)
def test_headers_are_words(sql_tool: SqlTool, context: Context, select: str, header: str) -> None:
    table = sql_tool.run({"sql": f"SELECT {select} FROM sales_data LIMIT 1"}, context()).table
    assert table is not None
    assert table.columns == (header,)


def test_date_functions(sql_tool: SqlTool, context: Context) -> None:
    sql = (
        "SELECT quarter('2024-11-15') AS q, date_trunc('quarter','2024-11-15') AS t,"
        " dateadd('month', 1, '2024-01-31') AS m, date_trunc('week','2024-11-15') AS w,"
        " quarter('x') AS n"
    )
    table = sql_tool.run({"sql": sql}, context()).table
    assert table is not None
    assert table.rows == ((4, "2024-10-01", "2024-02-29", "2024-11-11", None),)


def test_a_replaced_database_is_seen(tmp_path: Path, context: Context) -> None:
    def write(path: Path, price: float) -> None:
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE t(price REAL)")
            database.execute("INSERT INTO t VALUES (?)", (price,))
            database.commit()

    path = tmp_path / "a.db"
    write(path, 1)
    tool = SqlTool(path, Semantic((TableCard("t", "表", (ColumnCard("price", "价"),)),)))
    try:
        assert tool.run({"sql": "SELECT price FROM t"}, context()).content == "价\n1\n共1行"
        write(tmp_path / "b.db", 2)
        os.replace(tmp_path / "b.db", path)
        assert tool.run({"sql": "SELECT price FROM t"}, context()).content == "价\n2\n共1行"
    finally:
        tool.close()


def test_a_missing_database_or_column_is_named(tmp_path: Path) -> None:
    semantic = Semantic((TableCard("t", "表", (ColumnCard("price", "价"),)),))
    with pytest.raises(ToolUnavailableError, match="HUTONG_SQL_DATABASE"):
        SqlTool(tmp_path / "none.db", semantic)
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t(x)")
        database.commit()
    with pytest.raises(ToolUnavailableError, match="price"):
        SqlTool(path, semantic)


def test_a_spent_deadline_runs_nothing(sql_tool: SqlTool) -> None:
    spent = ToolContext("u", datetime.date(2024, 11, 15), time.monotonic() - 1)
    with pytest.raises(ToolTimeoutError):
        sql_tool.run({"sql": TOP5}, spent)


def test_many_threads_get_their_own_rows(sql_tool: SqlTool, context: Context) -> None:
    wrong: list[str] = []

    def ask(month: int) -> None:
        for _ in range(5):
            sql = f"SELECT DISTINCT month FROM sales_data WHERE year=2023 AND month={month}"
            content = sql_tool.run({"sql": sql}, context()).content
            if content != f"月\n{month}\n共1行":
                wrong.append(content)

    threads = [threading.Thread(target=ask, args=(month,)) for month in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_cells_cannot_break_the_rows() -> None:
    table = Table(("a|b",), (("x|y\nz",), ("长" * 100,)))
    assert content_of(table) == f"a¦b\nx¦y z\n{'长' * 59}…\n共2行"

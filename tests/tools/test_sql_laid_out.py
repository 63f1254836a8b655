"""The statement that is shown on request: what ran, without what we put around it."""

from __future__ import annotations

import pytest
import sqlglot

from tools.sql_dialect import laid_out, written


@pytest.mark.parametrize(
    ("limit", "shown"), [("", ""), (" LIMIT 201", ""), (" LIMIT 5", "\nLIMIT 5")]
)
@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_a_servers_statement_is_in_its_own_dialect_without_guard_and_row_limit(
    dialect: str, limit: str, shown: str
) -> None:
    tree = sqlglot.parse_one(f"SELECT t.a AS a FROM t AS t WHERE t.a > 2{limit}", read="sqlite")
    ran = written(tree, dialect, {"t": "t", "a": "a"}, max_rows=201)  # type: ignore[arg-type]
    assert ("OCTET_LENGTH" in ran) == (dialect == "postgres")
    mark = "`" if dialect == "mysql" else '"'
    expected = 'SELECT\n  "t"."a" AS "a"\nFROM "t" AS "t"\nWHERE\n  "t"."a" > 2' + shown
    assert laid_out(ran, dialect, max_rows=201) == expected.replace('"', mark)  # type: ignore[arg-type]


def test_a_users_own_subquery_limit_and_comment_on_sqlite() -> None:
    sql = "SELECT * FROM (SELECT a FROM t LIMIT 201) AS x -- note\nLIMIT 201"
    assert laid_out(sql, "sqlite", max_rows=201) == (
        "SELECT\n  *\nFROM (\n  SELECT\n    a\n  FROM t\n  LIMIT 201\n) AS x"
    )

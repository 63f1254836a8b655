"""Refuses a database account that could write, and says which GRANTs make one that cannot.

Owns reading an account's rights from PostgreSQL, MySQL and MariaDB. The read-only transactions of
``sql_server`` are the second wall; the account's rights are the first.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from sqlalchemy.engine import Connection

from tools.base import ToolUnavailableError
from tools.sql_backend import Dialect

log = logging.getLogger(__name__)

_POSTGRES_ROLES = (
    "pg_write_all_data", "pg_write_server_files", "pg_read_server_files",
    "pg_execute_server_program", "pg_signal_backend",
)  # fmt: skip
_POSTGRES_TABLES = """
SELECT n.nspname || '.' || c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND left(n.nspname, 3) <> 'pg_'
  AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
LIMIT 3
"""
_POSTGRES_SCHEMAS = """
SELECT nspname FROM pg_namespace
WHERE nspname NOT IN ('pg_catalog', 'information_schema') AND left(nspname, 3) <> 'pg_'
  AND has_schema_privilege(oid, 'CREATE')
LIMIT 3
"""
_HARMLESS = frozenset({"USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES"})
_GRANT = re.compile(r"GRANT (?P<rights>.+?) ON (?P<place>.+?) TO ", re.I)


def refuse_writers(connection: Connection, dialect: Dialect, tables: Sequence[str]) -> None:
    """Raises ``ToolUnavailableError`` with what the account may do too much of."""
    found = _postgres(connection) if dialect == "postgres" else _mysql(connection)
    if found:
        raise ToolUnavailableError(
            f"数据库账号不是只读的（{'；'.join(found)}），为了安全没有使用它。"
            f"请让数据库管理员建一个只读账号：\n{grants(dialect, connection, tables)}"
        )


def grants(dialect: Dialect, connection: Connection, tables: Sequence[str]) -> str:
    """The statements that make an account which can read ``tables`` and nothing else."""
    database = connection.engine.url.database or ""
    if dialect == "postgres":
        return postgres_grants(database, tables)
    return mysql_grants(database, tables)


def postgres_grants(database: str, tables: Sequence[str]) -> str:
    """For PostgreSQL; up to version 14 everybody may create in the schema public."""
    lines = [
        "CREATE ROLE hutong LOGIN PASSWORD '换成密码' NOSUPERUSER NOCREATEDB NOCREATEROLE;",
        "ALTER ROLE hutong SET default_transaction_read_only = on;",
        f'REVOKE CREATE, TEMPORARY ON DATABASE "{database}" FROM PUBLIC;',
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC;",
        f'GRANT CONNECT ON DATABASE "{database}" TO hutong;',
        "GRANT USAGE ON SCHEMA public TO hutong;",
        "GRANT SELECT ON " + ", ".join(f'"{table}"' for table in tables) + " TO hutong;",
    ]
    return "\n".join(lines)


def mysql_grants(database: str, tables: Sequence[str]) -> str:
    """For MySQL and MariaDB."""
    lines = ["CREATE USER 'hutong'@'%' IDENTIFIED BY '换成密码';"]
    lines += [f"GRANT SELECT ON `{database}`.`{table}` TO 'hutong'@'%';" for table in tables]
    return "\n".join(lines)


def _postgres(connection: Connection) -> list[str]:
    found = []
    role = connection.exec_driver_sql(
        "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
        " FROM pg_roles WHERE rolname = current_user"
    ).one()
    names = ("SUPERUSER", "CREATEROLE", "CREATEDB", "REPLICATION", "BYPASSRLS")
    found += [name for name, on in zip(names, role, strict=True) if on]
    held = connection.exec_driver_sql(
        "SELECT rolname FROM pg_roles WHERE rolname IN ("
        + ", ".join(f"'{name}'" for name in _POSTGRES_ROLES)
        + ") AND pg_has_role(current_user, oid, 'MEMBER')"
    )
    found += [str(name) for (name,) in held]
    if "SUPERUSER" in found:
        return found
    tables = [str(name) for (name,) in connection.exec_driver_sql(_POSTGRES_TABLES)]
    if tables:
        found.append(f"能写表 {'、'.join(tables)}")
    schemas = [str(name) for (name,) in connection.exec_driver_sql(_POSTGRES_SCHEMAS)]
    if schemas:
        found.append(f"能在模式 {'、'.join(schemas)} 里建表")
    creates, temporary = connection.exec_driver_sql(
        "SELECT has_database_privilege(current_database(), 'CREATE'),"
        " has_database_privilege(current_database(), 'TEMPORARY')"
    ).one()
    if creates:
        found.append("能在数据库里建模式")
    if temporary and not found:
        log.warning("the database account may create temporary tables; see docs/tools.md")
    return found


def _mysql(connection: Connection) -> list[str]:
    rows = connection.exec_driver_sql("SHOW GRANTS")
    return excess_grants([str(row[0]) for row in rows])


def excess_grants(lines: Sequence[str]) -> list[str]:
    """What the lines of SHOW GRANTS allow beyond reading; a granted role counts as too much."""
    found: dict[str, None] = {}
    for line in lines:
        match = _GRANT.match(line)
        if not match:
            if line.upper().startswith("GRANT "):
                found[f"角色 {line[6:40].split(' TO ')[0]}（请直接授权，不要经过角色）"] = None
            continue
        rights = re.sub(r"\([^)]*\)", "", match["rights"])
        names = [right.strip().upper() for right in rights.split(",")]
        if " WITH GRANT OPTION" in line.upper():
            names.append("GRANT OPTION")
        for name in names:
            if name not in _HARMLESS:
                found[f"{name} ON {match['place']}"] = None
    return list(found)[:5]

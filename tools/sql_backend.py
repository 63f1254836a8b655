"""What ``sql_query`` needs of a database: its columns, one guarded query, an end.

Owns the contract and the backend over one SQLite file. The one over a server is in
``sql_server``. Knows nothing of statements: what arrives here was checked.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tools.base import Cancelled, ToolUnavailableError, never
from tools.sql_process import WorkerPool, WorkerRequest

Dialect = Literal["sqlite", "postgres", "mysql"]
"""sqlglot's names; ``mysql`` is MariaDB too."""
Tables = Mapping[str, tuple[str, ...]]
SETTING = "HUTONG_SQL_DATABASE"


@dataclass(frozen=True)
class Reflected:
    """What the database itself says of its tables.

    ``types``: for each table that may be read, its columns with their types as sqlglot names them
    (``BIGINT``, ``DOUBLE``, ``DECIMAL``, ``DATE``, ``TIMESTAMP``, ``BOOLEAN``, else ``TEXT``).
    ``others``: every other name in the database, which a WITH clause must not take.
    """

    types: Mapping[str, Mapping[str, str]]
    others: frozenset[str]


class Backend(Protocol):
    """One database. Thread-safe."""

    @property
    def dialect(self) -> Dialect: ...

    def open(self) -> Reflected:
        """Reach the database and compare it with the semantic file; cheap when done before.

        Raises ``ToolUnavailableError`` that says what to do.
        """
        ...

    def ask(self, request: WorkerRequest, cancelled: Cancelled = never) -> dict[str, Any]:
        """``columns``, ``rows``, ``truncated``; or ``error`` and ``message``.

        ``error`` is timeout, too_big, unavailable, denied or failed. Raises ``ToolError``, among
        them ``ToolCancelledError`` within a second after the turn was stopped.
        """
        ...

    def state(self) -> Hashable:
        """Differs when the data may have changed."""
        ...

    def close(self) -> None: ...


class SqliteFile:
    """One SQLite file, read by processes that can be killed."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path, tables: Tables, *, workers: int = 4) -> None:
        self._path = path
        self._tables = tables
        self._reflected: Reflected | None = None
        self._pool = WorkerPool(path.resolve(), tables, size=workers)

    def open(self) -> Reflected:
        """As the contract says; a file that lacks a named column is refused."""
        if self._reflected is None:
            self._reflected = _reflected(self._path, self._tables)
        return self._reflected

    def ask(self, request: WorkerRequest, cancelled: Cancelled = never) -> dict[str, Any]:
        """Run one checked statement in a child process."""
        return self._pool.ask(request, cancelled)

    def state(self) -> Hashable:
        """Changes with every write: a live database in WAL mode grows its log first."""
        try:
            stat = self._path.stat()
        except OSError:
            return 0
        log = self._path.with_name(f"{self._path.name}-wal")
        return stat.st_ino, stat.st_mtime_ns, log.stat().st_mtime_ns if log.is_file() else 0

    def close(self) -> None:
        """End the query processes; a later call starts new ones."""
        self._pool.close()


def missing_columns(table: str, missing: list[str]) -> ToolUnavailableError:
    """The error for a semantic file that names what the database has not."""
    return ToolUnavailableError(f"数据库的表 {table} 缺少 {'、'.join(missing)}，请对照语义文件检查")


def _reflected(path: Path, tables: Tables) -> Reflected:
    if not path.is_file():
        raise ToolUnavailableError(f"没有找到数据库文件 {path}，请检查 {SETTING}")
    types: dict[str, dict[str, str]] = {}
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as connection:
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            for table, columns in tables.items():
                found = dict(
                    connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,))
                )
                missing = [column for column in columns if column not in found]
                if missing:
                    raise missing_columns(table, missing)
                types[table] = {column: _affinity(found[column]) for column in columns}
    except sqlite3.Error as error:
        raise ToolUnavailableError(f"数据库 {path} 打不开：{error}") from error
    return Reflected(types, frozenset(name for name in names if name not in tables))


def _affinity(declared: str) -> str:
    """By SQLite's own rules for declared types (datatype3.html, 3.1)."""
    upper = declared.upper()
    if "INT" in upper:
        return "BIGINT"
    if "TIME" in upper:  # text to SQLite, but its values hold more than a day
        return "TIMESTAMP"
    return "DOUBLE" if any(part in upper for part in ("REAL", "FLOA", "DOUB")) else "TEXT"

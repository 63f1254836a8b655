"""The company's own PostgreSQL, MySQL or MariaDB: read-only connections that are cut off on time.

Owns connections, their session settings and the clock. A statement is stopped three ways: by the
server's own limit, by a cancel from here (when it is late or its user stops the turn), and at last
by closing the connection. What the account
may do is checked in ``sql_server_rights``; words for errors are in ``sql_server_errors``. The URL
holds a password and is never logged or shown. Knows nothing of statements: they were checked.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import os
import socket
import threading
import time
from collections.abc import Hashable, Iterator
from typing import Any

import sqlalchemy
from sqlalchemy import event, pool
from sqlalchemy.engine import URL, Connection, CursorResult, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from tools.base import Cancelled, ToolUnavailableError, never
from tools.cancellation import POLL_S, refuse_cancelled
from tools.sql_backend import SETTING, Dialect, Reflected, Tables, missing_columns
from tools.sql_process import WorkerRequest
from tools.sql_server_errors import code_of, connection_error, message_of
from tools.sql_server_rights import refuse_writers

CONNECT_TIMEOUT_S = 5
CANCEL_GRACE_S = 1.0
"""How long a cancelled statement may take to end before its connection is closed."""
STATE_S = 300.0
"""How long values read for spelling checks are trusted: a server does not say when data changed."""
_DRIVERS: dict[str, Dialect] = {"postgresql+psycopg": "postgres", "mysql+pymysql": "mysql"}
_SQL_MODE = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)


def is_url(text: str) -> bool:
    """Whether a setting names a server rather than a file."""
    return "://" in text


def parsed_url(text: str) -> tuple[URL, Dialect]:
    """The URL and its dialect. Raises ``ToolUnavailableError`` that does not repeat it."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ToolUnavailableError(f"{SETTING} 不是有效的数据库网址，请检查格式") from None
    named = url.drivername.replace("mariadb", "mysql")
    driver = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}.get(named, named)
    if driver not in _DRIVERS:
        known = " 或 ".join(f"{name}://" for name in _DRIVERS)
        raise ToolUnavailableError(f"{SETTING} 的网址要以 {known} 开头")
    if not url.database:
        raise ToolUnavailableError(f"{SETTING} 的网址里没有写数据库名，应以 /数据库名 结尾")
    return url.set(drivername=driver), _DRIVERS[driver]


def session_statements(dialect: Dialect, version: str, timeout_s: float) -> tuple[str, ...]:
    """What a connection is told before each query. ``version`` is the server's own word.

    MySQL limits SELECTs in milliseconds, MariaDB any statement in seconds. Both get one sql_mode,
    whatever the server's is: without ANSI_QUOTES and PIPES_AS_CONCAT as sqlglot writes it, with
    backslashes as escapes, and with ONLY_FULL_GROUP_BY, so that no row is picked by chance.
    """
    limit_ms = max(1, round(timeout_s * 1000))
    if dialect == "postgres":
        return (
            "SET TRANSACTION READ ONLY",
            f"SET LOCAL statement_timeout = {limit_ms}",
            f"SET LOCAL lock_timeout = {limit_ms}",
            "SET LOCAL idle_in_transaction_session_timeout = 60000",
            "SET LOCAL standard_conforming_strings = on",
        )
    limits = (
        # By default MariaDB ends a recursion after some steps and returns what it has so far.
        (
            f"SET SESSION max_statement_time = {limit_ms / 1000:.3f}",
            "SET SESSION max_recursive_iterations = 4294967295",
        )
        if "mariadb" in version.lower()
        else (f"SET SESSION max_execution_time = {limit_ms}",)
    )
    return (
        *limits,
        f"SET SESSION lock_wait_timeout = {max(1, round(timeout_s))}",
        f"SET SESSION sql_mode = '{_SQL_MODE}'",
        "SET SESSION div_precision_increment = 10",
        "SET SESSION group_concat_max_len = 100000",
        "SET SESSION TRANSACTION READ ONLY",
        "START TRANSACTION READ ONLY",
    )


class SqlServer:
    """One database of a server. Thread-safe."""

    def __init__(self, url: str, tables: Tables, *, connections: int = 4) -> None:
        parsed, dialect = parsed_url(url)
        self.dialect: Dialect = dialect
        self._tables = tables
        self._version = ""
        self._reflected: Reflected | None = None
        self._engine = _engine(parsed, dialect, connections)
        # Cancelling must not wait for a connection that the queries hold.
        self._canceller = _engine(parsed, dialect, 0)

    def open(self) -> Reflected:
        """Reflect the tables and check that the account cannot write; done once.

        Raises ``Unreachable`` when the server does not answer and ``ToolUnavailableError`` when
        its answer shows that something must be set right first.
        """
        if self._reflected is None:
            try:
                with self._engine.connect() as connection:
                    self._version = str(connection.exec_driver_sql("SELECT version()").scalar())
                    refuse_writers(connection, self.dialect, tuple(self._tables))
                    self._reflected = _reflected(connection, self._tables)
            except SQLAlchemyError as error:
                raise connection_error(error) from None
        return self._reflected

    def ask(self, request: WorkerRequest, cancelled: Cancelled = never) -> dict[str, Any]:
        """Run one checked statement in a read-only transaction that is rolled back."""
        self.open()
        try:
            connection = self._engine.connect()
        except SQLAlchemyError as error:
            raise connection_error(error) from None
        with connection:
            clock = _Clock(self, connection, request.timeout_s, cancelled)
            try:
                with clock:
                    answer = self._fetched(connection, request)
            except SQLAlchemyError as error:
                answer = self._failure(connection, error, clock.rang)
            except (OSError, ValueError) as error:
                # A value that the driver cannot read, or a socket closed under it.
                connection.invalidate()
                code = "timeout" if clock.rang else "failed"
                answer = {"error": code, "message": type(error).__name__}
            if clock.rang and not connection.invalidated:
                # A late cancel must not hit the next statement on this connection.
                connection.invalidate()
        if clock.stopped:
            refuse_cancelled(cancelled)
        return answer

    def state(self) -> Hashable:
        """Time in steps of five minutes."""
        return int(time.monotonic() / STATE_S)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._engine.dispose()
        self._canceller.dispose()

    def cancel(self, connection: Any, thread_id: int) -> None:
        """Ask the server to stop what ``connection`` (the driver's) is running."""
        if self.dialect == "postgres":
            connection.cancel_safe(timeout=CANCEL_GRACE_S)
            return
        with self._canceller.connect() as other:
            other.exec_driver_sql(f"KILL QUERY {int(thread_id)}")

    def _fetched(self, connection: Connection, request: WorkerRequest) -> dict[str, Any]:
        for statement in session_statements(self.dialect, self._version, request.timeout_s):
            connection.exec_driver_sql(statement)
        streamed = connection.execution_options(
            # PostgreSQL's statement holds its own row limit and row size (see sql_dialect).
            stream_results=self.dialect == "mysql",
            max_row_buffer=10,
            no_parameters=True,
        )
        result = streamed.exec_driver_sql(request.sql)
        answer = _read(result, request)
        if answer["truncated"]:
            # MySQL would send all that is left before the next statement, however large.
            connection.invalidate()
        else:
            result.close()
            connection.rollback()
        return answer

    def _failure(
        self, connection: Connection, error: SQLAlchemyError, rang: bool
    ) -> dict[str, Any]:
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        if lost and not connection.invalidated:
            connection.invalidate()
        if rang:
            return {"error": "timeout", "message": ""}
        return {"error": code_of(error), "message": message_of(error)}


def _read(result: CursorResult[Any], request: WorkerRequest) -> dict[str, Any]:
    """Rows up to the caps of ``request``."""
    columns = [str(name) for name in tuple(result.keys())]
    rows: list[list[Any]] = []
    size_bytes = 0
    for row in result:
        cells = [_value(cell) for cell in row]
        size_bytes += sum(len(c.encode()) if isinstance(c, str) else 8 for c in cells)
        if len(rows) >= request.max_rows or size_bytes > request.max_bytes:
            return {"columns": columns, "rows": rows, "truncated": True}
        rows.append(cells)
    return {"columns": columns, "rows": rows, "truncated": False}


class _Clock:
    """Cancels a query past its time or of a turn that was stopped, then closes its socket."""

    def __init__(
        self, server: SqlServer, connection: Connection, timeout_s: float, cancelled: Cancelled
    ) -> None:
        self._server = server
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._thread_id = int(driver.thread_id()) if server.dialect == "mysql" else 0
        self._timeout_s = timeout_s
        self._cancelled = cancelled
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.rang = False
        """The query was cancelled, for whatever reason."""
        self.stopped = False
        """The reason was that the turn was stopped."""

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended.set()

    def _watch(self) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        stopped = False
        while not stopped and (left_s := deadline_s - time.monotonic()) > 0:
            if self._ended.wait(min(left_s, POLL_S)):
                return
            stopped = self._cancelled()
        with self._lock:
            if self._ended.is_set():
                return
            self.rang, self.stopped = True, stopped
        # A server that does not even take the cancel is cut off a second later.
        canceller = threading.Thread(target=self._cancel, daemon=True)
        canceller.start()
        if not self._ended.wait(CANCEL_GRACE_S):
            self._cut()

    def _cancel(self) -> None:
        with contextlib.suppress(Exception):
            self._server.cancel(self._driver, self._thread_id)

    def _cut(self) -> None:
        with contextlib.suppress(OSError, AttributeError), _socket(self._driver) as connected:
            connected.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _socket(driver: Any) -> Iterator[socket.socket]:
    """A second handle on the driver's socket."""
    number = driver.fileno() if hasattr(driver, "fileno") else driver._sock.fileno()
    with socket.socket(fileno=os.dup(number)) as connected:
        yield connected


def _engine(url: URL, dialect: Dialect, connections: int) -> Engine:
    if dialect == "postgres":
        arguments: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "hutong",
            "tcp_user_timeout": 15_000,
            "client_encoding": "utf8",
        }
    else:
        arguments = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": 60,
            "write_timeout": 15,
            "local_infile": False,
            "charset": "utf8mb4",
        }
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    options: dict[str, Any] = {"hide_parameters": True, "connect_args": arguments}
    if connections:
        engine = sqlalchemy.create_engine(
            url, pool_size=connections, max_overflow=0, pool_timeout=CONNECT_TIMEOUT_S,
            pool_pre_ping=True, pool_recycle=1800, **options,
        )  # fmt: skip
    else:
        engine = sqlalchemy.create_engine(url, poolclass=pool.NullPool, **options)
    event.listen(engine, "connect", _read_only(dialect))
    return engine


def _read_only(dialect: Dialect) -> Any:
    """A listener that makes a new connection read-only before anybody uses it."""
    statement = (
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
        if dialect == "postgres"
        else "SET SESSION TRANSACTION READ ONLY"
    )

    def prepare(connection: Any, record: object) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(statement)
        connection.commit()

    return prepare


def _reflected(connection: Connection, tables: Tables) -> Reflected:
    inspector = sqlalchemy.inspect(connection)
    others = {*inspector.get_table_names(), *inspector.get_view_names()} - set(tables)
    types: dict[str, dict[str, str]] = {}
    for table, columns in tables.items():
        try:
            found = (
                _listed(connection, table)
                if connection.dialect.name == "mysql"
                else {c["name"]: _kind(c["type"]) for c in inspector.get_columns(table)}
            )
            if not found:
                raise sqlalchemy.exc.NoSuchTableError(table)
        except sqlalchemy.exc.NoSuchTableError:
            raise ToolUnavailableError(
                f"数据库里没有表 {table}，或者账号没有读它的权限，请对照语义文件检查"
            ) from None
        missing = [column for column in columns if column not in found]
        if missing:
            raise missing_columns(table, missing)
        types[table] = {column: found[column] for column in columns}
    return Reflected(types, frozenset(others))


def _listed(connection: Connection, table: str) -> dict[str, str]:
    """Columns that the account may read: SHOW CREATE TABLE wants the right to the whole table."""
    kinds = {
        "double": "DOUBLE", "float": "DOUBLE", "decimal": "DECIMAL", "date": "DATE",
        "datetime": "TIMESTAMP", "timestamp": "TIMESTAMP",
    }  # fmt: skip
    rows = connection.execute(
        sqlalchemy.text(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name = :name"
        ),
        {"name": table},
    )
    return {
        str(name): "BIGINT" if str(kind).endswith("int") else kinds.get(str(kind), "TEXT")
        for name, kind in rows
    }


def _kind(declared: Any) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (sqlalchemy.Boolean, "BOOLEAN"),
        (sqlalchemy.Integer, "BIGINT"),
        (sqlalchemy.Float, "DOUBLE"),
        (sqlalchemy.Numeric, "DECIMAL"),
        (sqlalchemy.DateTime, "TIMESTAMP"),
        (sqlalchemy.Date, "DATE"),
    )
    return next((name for kind, name in kinds if isinstance(declared, kind)), "TEXT")


def _value(cell: Any) -> Any:
    """What the tools know stays as it is; everything else becomes text."""
    if cell is None or isinstance(
        cell, bool | int | float | decimal.Decimal | datetime.date | datetime.datetime | str
    ):
        return cell
    if isinstance(cell, bytes | bytearray | memoryview):
        return f"<{len(cell)} bytes>"
    return str(cell)

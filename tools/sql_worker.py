"""The child process that runs checked SELECTs on SQLite; it can be killed at any moment.

Started by ``sql`` as a plain script with the standard library only: ``sql_worker.py DATABASE
CONFIG``, CONFIG a JSON object ``{"tables": {name: [column, ...]}, "memory_bytes": n}``. One JSON
line in (``sql``, ``names``, ``readable``, ``timeout_s``, ``max_rows``, ``max_bytes``), one JSON
line out (``columns``, ``rows``, ``truncated`` or ``error``, ``message``). Ends when its input ends.

Walls: read-only connection, query_only, an authorizer that allows SELECT over the listed tables,
columns and functions only, SQLite's own limits, a progress handler for the time limit, and limits
of the operating system on memory, CPU time and file size. What runs inside one opcode past all of
these is ended by the parent, which kills the process.
"""

import contextlib
import datetime
import json
import os
import pathlib
import resource
import sqlite3
import sys
import time
from typing import Any

_ALLOWED = (
    "abs avg sum total count min max round coalesce ifnull nullif iif if length lower upper substr "
    "substring trim ltrim rtrim instr replace concat date datetime time julianday strftime "
    "group_concat like glob sign sqrt power pow mod exp ln log log10 floor ceil ceiling "
    "row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value "
    "nth_value year quarter month day date_trunc dateadd typeof"
)
FUNCTIONS = frozenset(_ALLOWED.split())
LENGTH_LIMIT_BYTES = 1_000_000
HEAP_LIMIT_BYTES = 200_000_000
FILE_LIMIT_BYTES = 1 << 20
PROGRESS_OPCODES = 20_000


def _day(value: Any) -> datetime.date | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.date.fromisoformat(value[:10])
    except ValueError:
        return None


def year(value: Any) -> int | None:
    """Year of an ISO date, NULL for anything else."""
    day = _day(value)
    return day.year if day else None


def quarter(value: Any) -> int | None:
    """1-4 for an ISO date, NULL for anything else."""
    day = _day(value)
    return (day.month + 2) // 3 if day else None


def month(value: Any) -> int | None:
    """1-12 for an ISO date, NULL for anything else."""
    day = _day(value)
    return day.month if day else None


def day_of_month(value: Any) -> int | None:
    """1-31 for an ISO date, NULL for anything else."""
    day = _day(value)
    return day.day if day else None


def date_trunc(unit: Any, value: Any) -> str | None:
    """First day of the year, quarter, month, week (Monday) or day that holds ``value``."""
    day = _day(value)
    if day is None:
        return None
    match str(unit).lower():
        case "year":
            day = day.replace(month=1, day=1)
        case "quarter":
            day = day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
        case "month":
            day = day.replace(day=1)
        case "week":
            day -= datetime.timedelta(days=day.weekday())
        case "day":
            pass
        case _:
            return None
    return day.isoformat()


def dateadd(unit: Any, amount: Any, value: Any) -> str | None:
    """``value`` plus ``amount`` years, quarters, months, weeks or days; clipped to month ends."""
    day = _day(value)
    if day is None or not isinstance(amount, int) or abs(amount) > 100_000:
        return None
    months = {"year": 12, "quarter": 3, "month": 1}.get(str(unit).lower())
    try:
        if months is None:
            days = {"week": 7, "day": 1}.get(str(unit).lower())
            return (day + datetime.timedelta(days=days * amount)).isoformat() if days else None
        index = day.year * 12 + day.month - 1 + months * amount
        first = datetime.date(index // 12, index % 12 + 1, 1)
        following = datetime.date((index + 1) // 12, (index + 1) % 12 + 1, 1)
        last = (following - datetime.timedelta(days=1)).day
        return first.replace(day=min(day.day, last)).isoformat()
    except (OverflowError, ValueError):
        return None


def concat(*values: Any) -> str:
    """All arguments as one text, NULL as nothing."""
    return "".join("" if value is None else str(value) for value in values)


def choose(condition: Any, yes: Any, no: Any = None) -> Any:
    """``if(condition, yes, no)``."""
    return yes if condition else no


class Authorizer:
    """Allows reading the listed tables and calling the listed functions, nothing else.

    ``names`` are those a WITH clause or a subquery defines in the present statement: SQLite
    reports ``count(*)`` over them as a read of a table by that name.
    """

    def __init__(self, tables: dict[str, list[str]]) -> None:
        self._listed = _lowered(tables)
        self._tables = self._listed
        self._names: frozenset[str] = frozenset()
        self.denied = ""

    def expect(self, names: list[str], readable: dict[str, list[str]] | None) -> None:
        """Guard the next statement: of what is listed, only ``readable`` when it is given."""
        self._names = frozenset(name.lower() for name in names)
        self.denied = ""
        self._tables = self._listed
        if readable is not None:
            self._tables = {
                table: columns & self._listed[table]
                for table, columns in _lowered(readable).items()
                if table in self._listed
            }

    def __call__(
        self,
        action: int,
        first: str | None,
        second: str | None,
        database: str | None,
        trigger: str | None,
    ) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and self._may_read(first or "", second or "", database):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS:
            return sqlite3.SQLITE_OK
        self.denied = self.denied or (second if action == sqlite3.SQLITE_FUNCTION else first) or ""
        return sqlite3.SQLITE_DENY

    def _may_read(self, table: str, column: str, database: str | None) -> bool:
        table = table.lower()
        if table in self._tables:
            return database in ("main", None) and (
                column == "" or column.lower() in self._tables[table]
            )
        return table in self._names or (table == "" and column == "")


def _lowered(tables: dict[str, list[str]]) -> dict[str, set[str]]:
    return {table.lower(): {name.lower() for name in names} for table, names in tables.items()}


class Database:
    """One guarded connection; opened again when the file was replaced."""

    def __init__(self, path: pathlib.Path, tables: dict[str, list[str]]) -> None:
        self._path = path
        self._tables = tables
        self._identity: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._authorizer = Authorizer(tables)
        self._deadline_s = 0.0

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request; every database error becomes an ``error`` entry."""
        try:
            connection = self._opened()
        except (OSError, sqlite3.Error) as error:
            return {"error": "unavailable", "message": str(error)}
        self._authorizer.expect(request["names"], request["readable"])
        self._deadline_s = time.monotonic() + request["timeout_s"]
        try:
            with contextlib.closing(connection.execute(request["sql"])) as cursor:
                return _fetched(cursor, request["max_rows"], request["max_bytes"])
        except MemoryError:
            return {"error": "too_big", "message": "out of memory"}
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return self._failure(error)

    def _failure(self, error: Exception) -> dict[str, Any]:
        message = str(error)
        if message == "interrupted":
            return {"error": "timeout", "message": message}
        if "too big" in message or "out of memory" in message:
            return {"error": "too_big", "message": message}
        if self._authorizer.denied or "not authorized" in message or "prohibited" in message:
            return {"error": "denied", "message": self._authorizer.denied or message}
        return {"error": "failed", "message": message}

    def _opened(self) -> sqlite3.Connection:
        stat = self._path.stat()
        identity = (stat.st_ino, stat.st_mtime_ns)
        if self._connection is None or self._identity != identity:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._connect()
            self._identity = identity
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        # No statement is kept: SQLite asks the authorizer only when it prepares one.
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=ro", uri=True, timeout=1.0, cached_statements=0
        )
        for pragma in (
            "query_only=1",
            "trusted_schema=0",
            "temp_store=2",
            f"hard_heap_limit={HEAP_LIMIT_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LENGTH_LIMIT_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 20_000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 20)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200)
        connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
        for name, arguments, function in (
            ("year", 1, year),
            ("quarter", 1, quarter),
            ("month", 1, month),
            ("day", 1, day_of_month),
            ("date_trunc", 2, date_trunc),
            ("dateadd", 3, dateadd),
            ("concat", -1, concat),
            ("if", -1, choose),
        ):
            connection.create_function(name, arguments, function, deterministic=True)
        connection.set_progress_handler(self._overdue, PROGRESS_OPCODES)
        # Last: the authorizer would refuse the PRAGMAs above.
        connection.set_authorizer(self._authorizer)
        return connection

    def _overdue(self) -> int:
        return 1 if time.monotonic() > self._deadline_s else 0


def _fetched(cursor: sqlite3.Cursor, max_rows: int, max_bytes: int) -> dict[str, Any]:
    if cursor.description is None:
        return {"error": "denied", "message": "not a SELECT"}
    columns = [str(entry[0]) for entry in cursor.description]
    rows: list[list[Any]] = []
    size_bytes = 0
    truncated = False
    for row in cursor:
        cells = [f"<{len(c)} bytes>" if isinstance(c, bytes) else c for c in row]
        size_bytes += sum(len(c.encode()) if isinstance(c, str) else 8 for c in cells)
        if len(rows) >= max_rows or size_bytes > max_bytes:
            truncated = True
            break
        rows.append(cells)
    return {"columns": columns, "rows": rows, "truncated": truncated}


def _limit_process(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, FILE_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))


def _limit_cpu(timeout_s: float) -> None:
    """Let a child whose parent is gone still end: its CPU time for this request is bounded."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + timeout_s) + 4
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))


def main() -> None:
    """Serve requests from standard input until it ends."""
    config = json.loads(sys.argv[2])
    _limit_process(config["memory_bytes"])
    database = Database(pathlib.Path(os.path.abspath(sys.argv[1])), config["tables"])
    for line in sys.stdin:
        request = json.loads(line)
        _limit_cpu(request["timeout_s"])
        answer = database.run(request)
        sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""A real PostgreSQL and a real MariaDB for the tests, from Debian's packages.

Each runs in a folder of its own on a free port of the loopback address, as the package's user when
we are root (neither server runs as root), with a superuser for the tests and an account ``reader``
that can only read. Both are stopped by their process ids. ``MISSING`` names missing packages.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy
from sqlalchemy.engine import URL

READY_S = 30.0
OWNER_PASSWORD = "owner-password"
READER_PASSWORD = "reader-password"
DATABASE = "company"


def _postgres_bin() -> str:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return str(Path(found[-1]).parent) if found else ""


MISSING = {
    "postgres": "" if _postgres_bin() else "needs Debian's package postgresql",
    "mariadb": ""
    if shutil.which("mariadbd", path="/usr/sbin:/usr/bin") and shutil.which("mariadb-install-db")
    else "needs Debian's package mariadb-server",
}
MOST_MEMORY_BYTES = 3 * 2**30


@dataclass(frozen=True)
class Server:
    """A running server. ``owner`` may do everything in ``company``."""

    kind: str
    port: int
    pid: int

    def url(self, user: str, password: str, database: str = DATABASE) -> str:
        """URL of one account."""
        driver = "postgresql+psycopg" if self.kind == "postgres" else "mysql+pymysql"
        url = URL.create(driver, user, password, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    @property
    def owner(self) -> str:
        return self.url("owner", OWNER_PASSWORD)

    @property
    def reader(self) -> str:
        return self.url("reader", READER_PASSWORD)

    def run(self, *statements: str, database: str = DATABASE) -> list[tuple[object, ...]]:
        """Run statements as the owner; the rows of the last one."""
        url = self.url("owner", OWNER_PASSWORD, database)
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        rows: list[tuple[object, ...]] = []
        with engine.connect().execution_options(no_parameters=True) as connection:
            for statement in statements:
                result = connection.exec_driver_sql(statement)
                rows = [tuple(row) for row in result] if result.returns_rows else []
        engine.dispose()
        return rows

    def create_database(self, name: str) -> None:
        """An empty database in which ``reader`` may do nothing yet."""
        if self.kind == "postgres":
            self.run(
                f"CREATE DATABASE {name}",
                f"REVOKE CREATE, TEMPORARY ON DATABASE {name} FROM PUBLIC",
                database="postgres",
            )
            self.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=name)
        else:
            self.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4", database="mysql")


@contextlib.contextmanager
def postgres() -> Iterator[Server]:
    """PostgreSQL up inside the block."""
    with _folder("postgres") as (folder, user):
        binaries, port = _postgres_bin(), _free_port()
        data, secret = folder / "data", folder / "password"
        _write(secret, OWNER_PASSWORD, user)
        _run(
            [
                f"{binaries}/initdb",
                "-D",
                str(data),
                "-U",
                "owner",
                "-A",
                "scram-sha-256",
                f"--pwfile={secret}",
                "-E",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ],
            user,
        )
        command = [f"{binaries}/postgres", "-D", str(data), "-p", str(port), "-k", str(folder)]
        command += [
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "fsync=off",
            "-c",
            "max_connections=30",
        ]
        with _process(command, user, folder / "log", signal.SIGINT) as process:
            server = Server("postgres", port, process.pid)
            _wait(server.url("owner", OWNER_PASSWORD, "postgres"), folder / "log")
            server.run(
                f"CREATE ROLE reader LOGIN PASSWORD '{READER_PASSWORD}'", database="postgres"
            )
            server.create_database(DATABASE)
            yield server


@contextlib.contextmanager
def mariadb() -> Iterator[Server]:
    """MariaDB up inside the block."""
    with _folder("mysql") as (folder, user):
        port, data = _free_port(), folder / "data"
        start = folder / "start.sql"
        _write(
            start,
            f"CREATE USER owner@'%' IDENTIFIED BY '{OWNER_PASSWORD}';\n"
            "GRANT ALL ON *.* TO owner@'%' WITH GRANT OPTION;\n"
            f"CREATE USER reader@'%' IDENTIFIED BY '{READER_PASSWORD}';\n",
            user,
        )
        _run(["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"], user)
        command = ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}"]
        command += ["--bind-address=127.0.0.1", f"--socket={folder}/s", f"--pid-file={folder}/pid"]
        command += [f"--init-file={start}", "--innodb-flush-log-at-trx-commit=0"]
        command += ["--skip-name-resolve", "--innodb-buffer-pool-size=64M"]
        with _process(command, user, folder / "log", signal.SIGTERM) as process:
            server = Server("mariadb", port, process.pid)
            _wait(server.url("owner", OWNER_PASSWORD, "mysql"), folder / "log")
            server.create_database(DATABASE)
            yield server


def grant_reader(server: Server, tables: Sequence[str], database: str = DATABASE) -> None:
    """Let ``reader`` read ``tables``."""
    if server.kind == "postgres":
        server.run(f"GRANT SELECT ON {', '.join(tables)} TO reader", database=database)
    else:
        grants = (f"GRANT SELECT ON {database}.{table} TO reader@'%'" for table in tables)
        server.run(*grants, database=database)


@contextlib.contextmanager
def _folder(package_user: str) -> Iterator[tuple[Path, str]]:
    """A folder under /tmp (its path must be short, for sockets) and who owns it."""
    folder = Path(tempfile.mkdtemp(prefix="hutong-", dir="/tmp"))
    user = package_user if os.geteuid() == 0 else ""
    if user:
        entry = pwd.getpwnam(user)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    try:
        yield folder, user
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, text: str, user: str) -> None:
    path.write_text(text, encoding="utf-8")
    if user:
        shutil.chown(path, user)


def _run(command: list[str], user: str) -> None:
    subprocess.run(
        command, user=user or None, group=user or None, cwd="/", check=True, timeout=60,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(),
    )  # fmt: skip


def _little_memory() -> None:
    """A statement that grows without end fails in the server, not in the whole machine."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


@contextlib.contextmanager
def _process(
    command: list[str], user: str, log: Path, stop: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, user=user or None, group=user or None, cwd="/", env=_environment(),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            preexec_fn=_little_memory,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}


def _wait(url: str, log: Path) -> None:
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            with engine.connect():
                return
        except sqlalchemy.exc.OperationalError:
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"not ready: {log.read_text(errors='replace')[-2000:]}"
                ) from None
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_TYPES = {
    "date": "DATE", "registered_date": "DATE", "hire_date": "DATE", "price": "NUMERIC(12,2)",
    "amount": "NUMERIC(14,2)", "order_id": "BIGINT",
}  # fmt: skip
_KEYS = {"sales_data": "PRIMARY KEY (order_id)"}


def load_company(server: Server, path: Path, database: str = DATABASE) -> tuple[str, ...]:
    """Copy the demo company from its SQLite file, with the types a company would use.

    Returns the tables; ``reader`` may read them.
    """
    with contextlib.closing(sqlite3.connect(path)) as source:
        tables = [
            str(row[0])
            for row in source.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        for table in tables:
            described = source.execute("SELECT name, type FROM pragma_table_info(?)", (table,))
            columns = [
                f"{name} {_TYPES.get(name, 'INT' if kind == 'INTEGER' else 'VARCHAR(60)')}"
                for name, kind in described.fetchall()
            ]
            columns += [_KEYS[table]] if table in _KEYS else []
            server.run(f"CREATE TABLE {table} ({', '.join(columns)})", database=database)
            rows = source.execute(f"SELECT * FROM {table}").fetchall()
            _fill(server, database, table, rows)
    server.run(
        "CREATE INDEX sales_period ON sales_data (year, quarter, region)",
        *(["ANALYZE"] if server.kind == "postgres" else []),
        database=database,
    )
    grant_reader(server, tables, database)
    return tuple(tables)


def _fill(server: Server, database: str, table: str, rows: list[tuple[object, ...]]) -> None:
    engine = sqlalchemy.create_engine(server.url("owner", OWNER_PASSWORD, database))
    with engine.begin() as connection, contextlib.closing(connection.connection.cursor()) as cursor:
        if server.kind == "postgres":
            with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        else:
            marks = ",".join(["%s"] * len(rows[0]))
            cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    engine.dispose()

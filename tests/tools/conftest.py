"""The demo company's real database and the tools over it, built once a session."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import sql_servers
from tests.sql_servers import Server
from tools import demo_company, semantic
from tools.base import Table, ToolContext
from tools.demo_company.generate import generate
from tools.python_exec import PythonTool
from tools.sql import SqlTool

TODAY = datetime.date(2024, 11, 15)


@pytest.fixture(scope="session")
def company_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``company.db`` in a folder of its own."""
    path = tmp_path_factory.mktemp("company") / "company.db"
    generate(path)
    return path


@pytest.fixture(scope="session")
def company_semantic() -> semantic.Semantic:
    return semantic.load(demo_company.SEMANTIC_FILE)


@pytest.fixture(scope="session")
def sql_tool(company_db: Path, company_semantic: semantic.Semantic) -> Iterator[SqlTool]:
    tool = SqlTool(company_db, company_semantic, timeout_s=2.0)
    yield tool
    tool.close()


@pytest.fixture(scope="session")
def python_tool() -> Iterator[PythonTool]:
    tool = PythonTool(time_limit_s=1.0)
    yield tool
    tool.close()


@pytest.fixture
def context() -> Callable[..., ToolContext]:
    """``context(*tables)``: who asks, with a minute left."""

    def make(*tables: Table) -> ToolContext:
        return ToolContext("zhangsan", TODAY, time.monotonic() + 60, tables)

    return make


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """PostgreSQL for this session."""
    if sql_servers.MISSING["postgres"]:
        pytest.skip(sql_servers.MISSING["postgres"])
    with sql_servers.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Server]:
    """MariaDB for this session."""
    if sql_servers.MISSING["mariadb"]:
        pytest.skip(sql_servers.MISSING["mariadb"])
    with sql_servers.mariadb() as server:
        yield server


@pytest.fixture(scope="session", params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each server in turn."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found

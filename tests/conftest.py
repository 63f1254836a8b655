"""Fixtures shared by all tests: one real Redis, and skips that cannot hide.

A test that needs something of the machine is skipped by name where it is missing. With
``HUTONG_NO_SKIPS=1`` the session fails when any test not marked ``gpu`` was skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the GPU machine may have no Redis; its tests need none
    import redis

    from app.store.server import RedisServer

# Taken out of the environment: the settings table refuses variables it does not know.
NO_SKIPS = os.environ.pop("HUTONG_NO_SKIPS", "") == "1"
_session_skips: list[str] = []


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The server of this test session, with AOF, in its own folder."""
    from app.store.server import RedisServer

    with RedisServer(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of the session's server, emptied for this test."""
    from app.store.server import connect

    with connect(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the emptied server."""
    from app.store.server import connect

    with connect(redis_url) as client:
        yield client


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu`` leave out what holds no such test: a GPU machine may lack its imports."""
    if config.option.markexpr != "gpu" or not collection_path.match("test_*.py"):
        return None
    words = ("mark.gpu", "kernels")
    text = collection_path.read_text(encoding="utf-8")
    return None if any(word in text for word in words) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, by name, what this machine cannot run."""
    missing = {}
    if shutil.which("chromium") is None:
        missing["browser"] = "needs Debian's package chromium (apt-get install chromium)"
    if not Path("/dev/nvidia0").exists():
        missing["gpu"] = "needs an NVIDIA GPU"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skips of single tests."""
    if report.skipped and "gpu" not in report.keywords:
        _session_skips.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Remember skips of whole modules."""
    if report.skipped:
        _session_skips.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session that promised no skips."""
    if NO_SKIPS and _session_skips and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the skips that failed the session."""
    if NO_SKIPS and _session_skips:
        terminalreporter.section("skipped although HUTONG_NO_SKIPS=1")
        for nodeid in _session_skips:
            terminalreporter.line(nodeid)

"""``python -m app data`` on a real Redis: what it writes, refuses and says."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import redis

from app import data
from app.cli import main
from app.settings import Settings, load
from app.store.inbox import Inbox
from app.store.lease import Leases
from app.store.server import RedisServer, connect
from tests.app.store.messages import tag_of
from tests.app.store.test_members import fill
from tests.workers.fakes import wait_for


def test_export_writes_json_lines_into_a_new_private_file(
    configured: Settings, redis_client: redis.Redis, tmp_path: Path
) -> None:
    fill(redis_client, "zhang")
    out = tmp_path / "zhang.jsonl"
    assert data.main(["export", "zhang", "--out", str(out)], configured) == 0
    header, *records = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert (header["record"], header["user"], header["format"]) == ("member", "zhang", 1)
    assert "zhang的问题2" in [r["value"].get("text") for r in records if r["record"] == "turn"]
    assert out.stat().st_mode & 0o077 == 0
    assert data.main(["export", "zhang", "--out", str(out)], configured) == 1


def test_export_goes_to_the_output(
    configured: Settings, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(redis_client, "zhang")
    assert data.main(["export", "zhang"], configured) == 0
    shown = capsys.readouterr()
    assert all(json.loads(line) for line in shown.out.splitlines())
    assert "问题和答案 2" in shown.err
    assert data.main(["export", "nobody"], configured) == 0
    assert "没有存任何东西" in capsys.readouterr().err


def test_delete_asks_then_removes_then_finds_nothing(
    configured: Settings, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(redis_client, "zhang")
    assert data.main(["delete", "zhang"], configured) == 1
    shown = capsys.readouterr()
    assert "问题和答案 2" in shown.out
    assert "--yes" in shown.err
    assert Inbox(redis_client).head(tag_of("zhang")) == "zhang-2"
    assert data.main(["delete", "zhang", "--yes"], configured) == 0
    assert "问题和答案 2" in capsys.readouterr().out
    assert redis_client.keys("*zhang*") == []
    assert data.main(["delete", "zhang", "--yes"], configured) == 0
    assert "没有存任何东西" in capsys.readouterr().out


def test_what_was_deleted_leaves_the_disk_too(environ: dict[str, str], tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, connect(server.url) as client:

        def on_disk() -> bool:
            words = "zhang的问题".encode()
            with contextlib.suppress(FileNotFoundError):  # a rewrite removes what it replaced
                return any(words in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
            return True

        fill(client, "zhang")
        wait_for(on_disk)
        settings = load({**environ, "REDIS_URL": server.url})
        assert data.main(["delete", "zhang", "--yes"], settings) == 0
        wait_for(lambda: not on_disk())


def test_delete_waits_for_a_running_turn_unless_forced(
    configured: Settings, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(redis_client, "zhang")
    assert Leases(redis_client, "turn").acquire(tag_of("zhang"))
    assert data.main(["delete", "zhang", "--yes"], configured) == 1
    assert "--force" in capsys.readouterr().err
    assert data.main(["delete", "zhang", "--yes", "--force"], configured) == 0
    assert redis_client.keys("*zhang*") == []


def test_backup_and_restore_say_what_they_did(
    configured: Settings,
    redis_client: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(redis_client, "zhang")
    folder = str(tmp_path / "copy")
    assert data.main(["backup", folder], configured) == 0
    assert "1 位成员" in capsys.readouterr().out
    assert data.main(["restore", folder], configured) == 1
    assert "--replace" in capsys.readouterr().err
    assert data.main(["restore", folder, "--replace"], configured) == 0
    shown = capsys.readouterr().out
    assert "1 个问题在排队，1 位成员有待发的消息" in shown


def test_without_redis_it_says_so(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**environ, "REDIS_URL": "redis://:secret@127.0.0.1:1/0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["data", "delete", "zhang", "--yes"]) == 1
    shown = capsys.readouterr().err
    assert "Redis 没有回答" in shown
    assert "secret" not in shown

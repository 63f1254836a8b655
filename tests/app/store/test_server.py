"""The embedded server: started, adopted, killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from app.store import server as server_module
from app.store.inbox import Inbox
from app.store.server import RedisServer, RedisServerError, connect, socket_path
from app.store.turns import Turns
from tests.app.store.messages import tag_of, text_message


def test_starts_with_aof_and_without_eviction(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, connect(server.url) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        socket = socket_path(tmp_path / "redis")
        assert socket.stat().st_mode & 0o077 == 0


def test_every_write_can_be_synced(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path, appendfsync="always") as server,
        connect(server.url) as client,
    ):
        assert client.config_get("appendfsync") == {"appendfsync": "always"}


def test_stop_keeps_the_data_and_a_second_start_finds_it(tmp_path: Path) -> None:
    for expected in (1, 2):
        with RedisServer(tmp_path) as server, connect(server.url) as client:
            assert client.incr("starts") == expected
    with pytest.raises(redis.ConnectionError), connect(server.url) as client:
        client.ping()


def test_adopts_a_live_server_and_leaves_it_running(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as owner:
        with RedisServer(tmp_path) as guest:
            assert guest.url == owner.url
            assert guest.pid is None
            assert owner.pid is not None
        with connect(owner.url) as client:
            assert client.ping()


def test_two_processes_starting_at_once_share_one_server(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from app.store.server import RedisServer\n"
        "s = RedisServer(pathlib.Path(sys.argv[1])); s.start()\n"
        "print(s.pid or 0, flush=True); sys.stdin.read(); s.stop()"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": root}
    first = subprocess.Popen(command, **pipes)
    second = subprocess.Popen(command, **pipes)
    with first, second:
        pids = [int(p.stdout.readline()) for p in (first, second)]
        assert sorted(pid > 0 for pid in pids) == [False, True]


def test_kill_9_and_restart_keep_every_acknowledged_message(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    with connect(server.start()) as client:
        inbox = Inbox(client)
        for number in range(200):
            inbox.put(text_message(f"u{number % 7}", str(number)), f"t{number}")
        server.kill()
        server.start()
        try:
            turns = Turns(client)
            assert [turns.get(f"t{n}").msg_id for n in range(200)] == [str(n) for n in range(200)]
            pending = inbox.pending([tag_of(f"u{n}") for n in range(7)])
            assert sum(len(ids) for ids in pending.values()) == 200
            again = [inbox.put(text_message(f"u{n % 7}", str(n)), f"x{n}") for n in range(200)]
            assert [put.turn_id for put in again] == [f"t{n}" for n in range(200)]
            assert all(put.duplicate for put in again)
        finally:
            server.stop()


def test_given_url_is_used_and_never_stopped(tmp_path: Path, redis_url: str) -> None:
    with RedisServer(tmp_path, redis_url) as server:
        assert server.url == redis_url
        assert server.pid is None
    with connect(redis_url) as client:
        assert client.ping()


def test_given_url_without_a_server_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(RedisServerError, match="REDIS_URL"):
        RedisServer(tmp_path, f"unix://{tmp_path}/nobody.sock").start()


def test_damaged_data_is_left_alone_and_the_log_is_named(tmp_path: Path) -> None:
    aof = tmp_path / "redis" / "appendonlydir"
    aof.mkdir(parents=True)
    manifest = aof / "appendonly.aof.manifest"
    manifest.write_text("this is no manifest\n")
    with pytest.raises(RedisServerError, match=r"redis\.log"):
        RedisServer(tmp_path).start()
    assert manifest.read_text() == "this is no manifest\n"


def test_long_paths_get_a_private_socket_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("长" * 60)
    socket = socket_path(deep)
    assert len(os.fsencode(socket)) <= server_module.MAX_SOCKET_PATH_BYTES
    assert socket.parent.stat().st_mode & 0o077 == 0
    with RedisServer(deep) as server, connect(server.url) as client:
        assert client.ping()
    socket.parent.rmdir()

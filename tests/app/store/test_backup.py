"""A backup is whole, holds no secret, and is restored only where it does no harm."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from app.store import backup, keys
from app.store.backup import BackupError
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.pending import PendingIndex
from app.store.presence import Presence
from app.store.server import RedisServer, connect
from app.store.token_cache import RedisTokenCache
from app.store.turns import Finish, Turns
from tests.app.store.messages import tag_of
from tests.app.store.test_members import fill


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("other")) as server:
        yield server


@pytest.fixture
def other(other_server: RedisServer) -> Iterator[redis.Redis]:
    """A fresh Redis to restore into."""
    with connect(other_server.url) as client:
        client.flushall()
        yield client


def values(client: redis.Redis) -> dict[bytes, object]:
    return {name: client.dump(name) for name in client.keys("hutong:*")}


def test_what_was_there_is_there_again_with_its_end_of_life(
    redis_client: redis.Redis, other: redis.Redis, tmp_path: Path
) -> None:
    fill(redis_client, "zhang")
    fill(redis_client, "li")
    redis_client.hset(keys.METRICS, "x", 1)
    redis_client.set(UserKeys(tag_of("li")).rate, "x", px=1)
    manifest = backup.write(redis_client, tmp_path / "copy")
    assert manifest.members == 2
    done = backup.restore(other, tmp_path / "copy")
    assert (done.keys + done.expired, done.queued, done.unsent) == (manifest.keys, 2, 2)
    same = values(redis_client)
    for index in (keys.PENDING_USERS, keys.PENDING_OUTBOXES):
        same.pop(index.encode())
    restored = values(other)
    assert {name: restored[name] for name in same} == same
    assert {w.tag for w in PendingIndex(other, "turn").waiting()} == {tag_of("zhang"), tag_of("li")}
    turn = UserKeys(tag_of("zhang")).turn("zhang-1")
    assert abs(other.pttl(turn) - redis_client.pttl(turn)) < 5_000
    assert Turns(other).get("li-2") is not None


def test_tokens_leases_and_heartbeats_stay_out(redis_client: redis.Redis, tmp_path: Path) -> None:
    fill(redis_client, "zhang")
    RedisTokenCache(redis_client).set_if("corp:1", None, "the-access-token", 60)
    Leases(redis_client, "turn").acquire(tag_of("zhang"))
    with Presence(redis_client, "web"):
        backup.write(redis_client, tmp_path / "copy")
    text = gzip.decompress((tmp_path / "copy" / backup.KEYS_FILE).read_bytes()).decode()
    names = [name for line in text.splitlines() for name, _, _ in json.loads(line)]
    assert names
    for part in ("access-token", "process:", "celery", "}:lease:", "pending-", "hutong:queue"):
        assert not [name for name in names if part in name]
    assert "the-access-token" not in text
    for file in (tmp_path / "copy").iterdir():
        assert file.stat().st_mode & 0o077 == 0


def test_a_store_that_holds_something_is_replaced_only_when_asked(
    redis_client: redis.Redis, other: redis.Redis, tmp_path: Path
) -> None:
    fill(redis_client, "zhang")
    backup.write(redis_client, tmp_path / "copy")
    fill(other, "wang")
    other.set("of-somebody-else", 1)
    before = values(other)
    with pytest.raises(BackupError, match="--replace"):
        backup.restore(other, tmp_path / "copy")
    assert values(other) == before
    backup.restore(other, tmp_path / "copy", replace=True)
    assert not other.keys("*wang*")
    assert other.get("of-somebody-else") == b"1"
    assert Turns(other).get("zhang-2") is not None


def test_nothing_is_restored_under_living_processes(
    redis_client: redis.Redis, other: redis.Redis, tmp_path: Path
) -> None:
    backup.write(redis_client, tmp_path / "copy")
    with Presence(other, "turns"), pytest.raises(BackupError, match="turns"):
        backup.restore(other, tmp_path / "copy", replace=True)


def test_a_broken_or_unfinished_backup_is_refused_before_anything_is_touched(
    redis_client: redis.Redis, other: redis.Redis, tmp_path: Path
) -> None:
    fill(redis_client, "zhang")
    fill(other, "li")
    before = values(other)
    folder = tmp_path / "copy"
    backup.write(redis_client, folder)
    file, manifest = folder / backup.KEYS_FILE, folder / backup.MANIFEST
    whole, text = file.read_bytes(), manifest.read_text()
    cases = [
        (whole[:-9], text, "校验和"),
        (whole, text.replace('"format": 1', '"format": 2'), "格式"),
        (whole, "{", "不是胡同的备份"),
        (whole, None, "不是一份完整的备份"),
    ]
    for content, said, reason in cases:
        file.write_bytes(content)
        manifest.unlink(missing_ok=True)
        if said is not None:
            manifest.write_text(said)
        with pytest.raises(BackupError, match=reason):
            backup.restore(other, folder, replace=True)
    assert values(other) == before


def test_a_used_folder_is_left_alone(redis_client: redis.Redis, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="不是空的"):
        backup.write(redis_client, tmp_path)


def test_a_member_is_copied_at_one_moment_while_turns_end(
    redis_client: redis.Redis, other: redis.Redis, tmp_path: Path
) -> None:
    """In every copy a turn waits, or its answer does: never neither, never both."""
    for number in range(20):
        fill(redis_client, f"user{number}")
    stop = threading.Event()

    def end_turns() -> None:
        turns = Turns(redis_client)
        for number in range(20):
            tag = tag_of(f"user{number}")
            lease = Leases(redis_client, "turn").acquire(tag)
            assert lease
            turns.begin(lease, f"user{number}-2")
            turns.finish(lease, f"user{number}-2", Finish("done", "答", ("新答案",)))
            lease.release()
            stop.wait(0.002)

    worker = threading.Thread(target=end_turns)
    worker.start()
    for round_number in range(5):
        backup.write(redis_client, tmp_path / str(round_number))
    worker.join()
    for round_number in range(5):
        backup.restore(other, tmp_path / str(round_number), replace=True)
        for number in range(20):
            user = UserKeys(tag_of(f"user{number}"))
            waits = other.llen(user.inbox)
            answered = other.exists(user.part(f"user{number}-2:1"))
            assert (waits, answered) in ((1, 0), (0, 1))

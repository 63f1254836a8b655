"""The picture of an answer wherever a member's data goes: export, removal, backup."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from app.store import backup
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.members import Members
from app.store.server import RedisServer, connect
from app.store.turns import MAX_IMAGE_BYTES, Finish, Image, Turns
from tests.app.store.messages import tag_of, text_message

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def fill(client: redis.Redis, user: str, turn_id: str = "t1", png: bytes = PNG) -> None:
    """A turn of ``user`` that ended with a picture."""
    Inbox(client).put(text_message(user, turn_id), turn_id)
    lease = Leases(client, "turn").acquire(tag_of(user))
    assert lease
    turns = Turns(client)
    turns.begin(lease, turn_id)
    finish = Finish("done", "答", ("答",), image=Image(png, "[图片] 表格"))
    assert turns.finish(lease, turn_id, finish)
    lease.release()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[redis.Redis]:
    """A fresh Redis to restore into."""
    with RedisServer(tmp_path / "other") as server, connect(server.url) as client:
        yield client


def test_the_export_holds_the_picture_as_an_address_a_browser_opens(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "zhang")
    fill(redis_client, "li", "t2", PNG + b"li")
    records = list(Members(redis_client).export("zhang"))
    (image,) = [record for record in records if record["record"] == "image"]
    kind, _, encoded = image["value"].partition(";base64,")
    assert (kind, base64.b64decode(encoded)) == ("data:image/png", PNG)
    assert [r["value"]["body"] for r in records if r["record"] == "part"] == ["答", "[图片] 表格"]


def test_deleting_a_member_deletes_the_picture_and_nobody_elses(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "zhang")
    fill(redis_client, "li", "t2")
    assert Members(redis_client).delete("zhang")["image"] == 1
    assert redis_client.keys("*image:*") == [UserKeys(tag_of("li")).image("t2:2").encode()]


def test_a_backup_brings_the_picture_back(
    redis_client: redis.Redis, other: redis.Redis, tmp_path: Path
) -> None:
    fill(redis_client, "zhang")
    backup.write(redis_client, tmp_path / "copy")
    backup.restore(other, tmp_path / "copy")
    assert other.get(UserKeys(tag_of("zhang")).image("t1:2")) == PNG


def test_no_copy_has_a_part_without_its_picture(
    redis_client: redis.Redis, other: redis.Redis, tmp_path: Path
) -> None:
    """Answers come into being while the backup looks."""
    fill(redis_client, "zhang", "t0")
    stop = threading.Event()

    def answer() -> None:
        for number in range(1, 60):
            fill(redis_client, "zhang", f"t{number}")
            stop.wait(0.001)

    worker = threading.Thread(target=answer)
    worker.start()
    for copy in range(5):
        backup.write(redis_client, tmp_path / str(copy))
    worker.join()
    for copy in range(5):
        backup.restore(other, tmp_path / str(copy), replace=True)
        user = UserKeys(tag_of("zhang"))
        waiting = [item.decode() for item in other.lrange(user.outbox, 0, -1)]
        pictures = [part_id for part_id in waiting if part_id.endswith(":2")]
        assert pictures
        assert [other.get(user.image(part_id)) for part_id in pictures] == [PNG] * len(pictures)


def test_a_picture_beyond_the_limit_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        Image(b"x" * (MAX_IMAGE_BYTES + 1), "")
    with pytest.raises(AssertionError):
        Image(b"", "")

"""A portable copy of the store: written while everything runs, restored into an empty one.

Owns the format: a folder with ``manifest.json`` and ``keys.jsonl.gz``, one line per member (all
keys of the member at one moment) or per batch of other keys, values as DUMP gives them and ends
of life as points in time. Left out: access tokens, heartbeats, leases, what limits guesses, and
Celery's wakes and the indexes, which are made anew. Knows nothing of the command line.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from app.store import keys
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.members import kind_of, tag_of
from app.store.pending import PendingIndex
from app.store.presence import reports
from app.store.scripts import script
from app.store.turns import Turns

FORMAT = 1
MANIFEST, KEYS_FILE = "manifest.json", "keys.jsonl.gz"
_BATCH = 500
_MADE_ANEW = (keys.PENDING_USERS, keys.PENDING_OUTBOXES, keys.QUEUE)
_PASSING = ("process:", "celery:", "access-token:", "wrong-tokens:")
_PASSING_OF_MEMBERS = ("lease:", "woken:")


class BackupError(Exception):
    """A folder cannot be written or restored; the message says what was kept and what to do."""

    retryable = False


@dataclass(frozen=True)
class Manifest:
    """What a backup holds. ``sha256`` is that of the file of keys."""

    format: int
    created_ms: int
    server: str
    keys: int
    members: int
    sha256: str


@dataclass(frozen=True)
class Restored:
    """``expired`` keys had come to their end since the backup and were left out."""

    keys: int
    expired: int
    queued: int
    unsent: int


def write(client: redis.Redis, folder: Path) -> Manifest:
    """Copy the store into ``folder``, which must be empty or missing.

    The manifest is written last: a folder without one is no backup. Raises ``BackupError``.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BackupError(f"{folder} 不是空的，什么也没有写。请换一个新目录。")
        created_ms = int(time.time() * 1000)
        key_count, members = 0, set()
        path = folder / KEYS_FILE
        with _private(path) as raw, gzip.open(raw, "wt", compresslevel=6) as file:
            for group in _groups(client):
                key_count += len(group)
                members.add(tag_of(group[0][0]))
                record = [(name, end_ms, _encoded(value)) for name, end_ms, value in group]
                file.write(json.dumps(record) + "\n")
        server = str(client.info("server").get("redis_version", ""))
        manifest = Manifest(
            FORMAT, created_ms, server, key_count, len(members - {""}), _digest(path)
        )
        with _private(folder / MANIFEST) as raw:
            raw.write((json.dumps(asdict(manifest), indent=1) + "\n").encode())
    except OSError as error:
        raise BackupError(f"{folder} 写不了（{error.strerror}）；备份没有做完。") from error
    return manifest


def check(folder: Path) -> Manifest:
    """Read the manifest and compare the checksum. Raises ``BackupError``."""
    try:
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text("utf-8")))
        digest = _digest(folder / KEYS_FILE)
    except OSError as error:
        raise BackupError(
            f"{error.filename} 读不了（{error.strerror}）；{folder} 不是一份完整的备份。"
        ) from error
    except (ValueError, TypeError) as error:
        raise BackupError(f"{folder / MANIFEST} 的内容不对；这不是胡同的备份。") from error
    if manifest.format != FORMAT:
        raise BackupError(f"备份的格式是 {manifest.format}，这个版本只认 {FORMAT}。")
    if digest != manifest.sha256:
        raise BackupError(f"{folder / KEYS_FILE} 的校验和不对：文件坏了或被改过。")
    return manifest


def restore(client: redis.Redis, folder: Path, *, replace: bool = False) -> Restored:
    """Put a backup into the store; ``replace`` empties it of Hutong's keys before.

    Nothing is touched unless the backup is whole, no process of Hutong lives and the store is
    empty or to be replaced. Raises ``BackupError``.
    """
    manifest = check(folder)
    living = reports(client)
    if living:
        names = "、".join(sorted({report.role for report in living}))
        raise BackupError(f"还有进程在用这个 Redis（{names}），什么也没有改动。请先停掉它们。")
    held = [*_held(client)]
    if held and not replace:
        raise BackupError(
            f"这个 Redis 里已有胡同的 {len(held)} 个键，什么也没有改动。"
            "请换一个空的 Redis，或者加 --replace 先清空再恢复。"
        )
    for batch in _batches(held):
        client.unlink(*batch)
    restored, expired = _restore_keys(client, folder / KEYS_FILE)
    if restored + expired != manifest.keys:
        raise BackupError("恢复的键数和清单不符，备份可能不完整；请用 --replace 换一份备份再试。")
    queued, unsent = _make_indexes(client)
    return Restored(restored, expired, queued, unsent)


def _groups(client: redis.Redis) -> Iterator[list[tuple[str, int, bytes]]]:
    """Name, end of life (ms since 1970, 0: never) and value, in groups that belong together."""
    others: list[str] = []
    members: defaultdict[str, list[str]] = defaultdict(list)
    for raw in client.scan_iter(match=keys.PREFIX + "*", count=1000):
        name = raw.decode()
        tag, kind = tag_of(name), kind_of(name)
        if tag:
            if not kind.startswith(_PASSING_OF_MEMBERS):
                members[tag].append(name)
        elif name not in _MADE_ANEW and not kind.startswith(_PASSING):
            others.append(name)
    dump_member = script(client, "dump_member")
    while members:
        tag, names = members.popitem()
        user = UserKeys(tag)
        lead = [user.inbox, user.outbox, user.epoch, user.session()]
        prefixes = [user.turn(""), user.part(""), user.image("")]
        flat: list[Any] = dump_member(keys=[*lead, *prefixes, *names], args=[])
        group = [
            (name.decode(), int(end_ms), value)
            for name, end_ms, value in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        ]
        if group:
            yield group
    for batch in _batches(others):
        group = _dumped(client, batch)
        if group:
            yield group


def _dumped(client: redis.Redis, names: list[str]) -> list[tuple[str, int, bytes]]:
    now_ms = _now_ms(client)
    with client.pipeline(transaction=True) as pipe:
        for name in names:
            pipe.dump(name)
            pipe.pttl(name)
        answers: list[Any] = pipe.execute()
    return [
        (name, now_ms + left_ms if left_ms > 0 else 0, value)
        for name, value, left_ms in zip(names, answers[::2], answers[1::2], strict=True)
        if value is not None
    ]


def _restore_keys(client: redis.Redis, path: Path) -> tuple[int, int]:
    restored = expired = 0
    now_ms = _now_ms(client)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            # A member at once: nobody ever sees an inbox without its turns.
            with client.pipeline(transaction=True) as pipe:
                for name, end_ms, value in json.loads(line):
                    if end_ms and end_ms <= now_ms:
                        expired += 1
                        continue
                    pipe.restore(name, end_ms, base64.b64decode(value), absttl=bool(end_ms))
                    restored += 1
                try:
                    pipe.execute()
                except redis.ResponseError as error:
                    version = client.info("server").get("redis_version", "")
                    raise BackupError(
                        f"这个 Redis（{version}）不接受备份里的值：{error}。恢复停在半途；"
                        "请换一个不比原来旧的空 Redis，或者加 --replace 再试。"
                    ) from error
    return restored, expired


def _make_indexes(client: redis.Redis) -> tuple[int, int]:
    """Write anew what leads to waiting work; how many turns and how many members it is for."""
    PendingIndex(client, "turn").repair()
    unsent = PendingIndex(client, "send").repair()
    turns, queued = Turns(client), 0
    for raw in client.scan_iter(match=f"{keys.PREFIX}{{*}}:inbox", count=1000):
        tag = tag_of(raw.decode())
        ids = Inbox(client).pending([tag])[tag]
        for turn in turns.read_many([(tag, turn_id) for turn_id in ids]):
            client.zadd(keys.QUEUE, {turn.id: turn.created_ms})
            client.set(keys.turn_index(turn.id), tag, nx=True, ex=2 * keys.ENDED_EXPIRY_S)
            queued += 1
    return queued, unsent


def _held(client: redis.Redis) -> Iterator[str]:
    """Every key of Hutong but those of Celery, which may say that a process lived."""
    for raw in client.scan_iter(match=keys.PREFIX + "*", count=1000):
        name = raw.decode()
        if not name.startswith(keys.BROKER_PREFIX):
            yield name


def _batches(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), _BATCH):
        yield names[start : start + _BATCH]


def _now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _private(path: Path) -> Any:
    """A new file that only its owner can read: it holds what people wrote."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

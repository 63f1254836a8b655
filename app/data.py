"""``python -m app data export|delete|backup|restore``: what is stored, for those who must answer
for it.

Owns the arguments, the files and what is said. Knows no keys. Exit status: 0 done, 1 not done
(the text says why and what was kept), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TextIO

import redis

from app.settings import Settings
from app.store import backup
from app.store.backup import BackupError
from app.store.members import MemberBusyError, Members
from app.store.server import RedisServer, connect

EXPORT_FORMAT = 1
_TIMEOUT_S = 30.0
_KINDS = {
    "turn": "问题和答案",
    "part": "发出或待发的消息",
    "image": "表格图片",
    "session": "会话记忆",
    "inbox": "排队列表",
    "outbox": "待发列表",
    "dedupe": "去重标记",
    "departments": "所在部门",
    "indexes": "索引里的条目",
    "wakes": "还没处理的唤醒",
}


def main(argv: Sequence[str], settings: Settings) -> int:
    """Run one command on the store of ``settings``."""
    options = _parser().parse_args(argv)
    command: Callable[[redis.Redis, argparse.Namespace], int] = options.run
    url = RedisServer(settings.data_dir, settings.redis_url).url
    try:
        with connect(url, timeout_s=_TIMEOUT_S) as client:
            return command(client, options)
    except BackupError as error:
        return _not_done(str(error))
    except redis.RedisError as error:
        return _not_done(f"Redis 没有回答（{type(error).__name__}）；没有做完，可以再运行一次。")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app data")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    export = commands.add_parser("export", help="everything stored of one member, JSON lines")
    export.add_argument("user", metavar="USER", help="user id of the member")
    export.add_argument("--out", type=Path, metavar="FILE", help="a new file; else the output")
    export.set_defaults(run=_export)
    delete = commands.add_parser("delete", help="remove everything stored of one member")
    delete.add_argument("user", metavar="USER")
    delete.add_argument("--yes", action="store_true", help="really remove it")
    delete.add_argument("--force", action="store_true", help="also while a turn is running")
    delete.set_defaults(run=_delete)
    copy = commands.add_parser("backup", help="copy the store into a new folder")
    copy.add_argument("folder", type=Path, metavar="DIR")
    copy.set_defaults(run=_backup)
    restore = commands.add_parser("restore", help="put a backup into an empty store")
    restore.add_argument("folder", type=Path, metavar="DIR")
    restore.add_argument("--replace", action="store_true", help="empty the store before")
    restore.set_defaults(run=_restore)
    return parser


def _export(client: redis.Redis, options: argparse.Namespace) -> int:
    try:
        target = _new_file(options.out) if options.out else nullcontext(sys.stdout)
    except OSError as error:
        return _not_done(f"{options.out} 写不了（{error.strerror}）；已有的文件不会被覆盖。")
    counts: Counter[str] = Counter()
    with target as file:
        header = {
            "record": "member",
            "format": EXPORT_FORMAT,
            "user": options.user,
            "exported_ms": int(time.time() * 1000),
        }
        print(json.dumps(header, ensure_ascii=False), file=file)
        for record in Members(client).export(options.user):
            counts[record["record"]] += _entries(record)
            print(json.dumps(record, ensure_ascii=False), file=file)
    print(f"{options.user}：{_listed(counts) or '没有存任何东西'}", file=sys.stderr)
    return 0


def _delete(client: redis.Redis, options: argparse.Namespace) -> int:
    members = Members(client)
    if not options.yes:
        counts: Counter[str] = Counter()
        for record in members.export(options.user):
            counts[record["record"]] += _entries(record)
        if not _listed(counts):
            print(f"{options.user}：没有存任何东西。")
            return 0
        print(f"会删除 {options.user} 的：{_listed(counts)}。")
        return _not_done("什么也没有删。加 --yes 才真的删除，删了不能恢复。")
    try:
        removed = members.delete(options.user, force=options.force)
    except MemberBusyError:
        return _not_done(
            "这位成员的问题正在回答或答案正在发送，什么也没有删。"
            "请过一会儿再试，或者加 --force（正在做的那个答案会作废）。"
        )
    if not removed:
        print(f"{options.user}：没有存任何东西。")
        return 0
    print(f"删除了 {options.user} 的：{_listed(removed)}。")
    print(_forget_on_disk(client))
    print("不在这里的：以前的备份、导出的文件、日志里的成员 ID，以及已经发到企业微信里的消息。")
    return 0


def _forget_on_disk(client: redis.Redis) -> str:
    """Redis' log on disk holds what was removed until it is written anew."""
    try:
        client.bgrewriteaof()
    except redis.ResponseError as error:
        return f"Redis 现在不能重写 AOF（{error}）：请稍后运行 redis-cli BGREWRITEAOF。"
    return "Redis 正在重写 AOF，写完后磁盘上也没有了。"


def _backup(client: redis.Redis, options: argparse.Namespace) -> int:
    manifest = backup.write(client, options.folder)
    size_mb = sum(path.stat().st_size for path in options.folder.iterdir()) / 1e6
    print(
        f"备份到 {options.folder}：{manifest.members} 位成员，{manifest.keys} 个键，"
        f"{size_mb:.1f} MB。里面有员工的问题和答案，请像对待数据库一样保管。"
    )
    return 0


def _restore(client: redis.Redis, options: argparse.Namespace) -> int:
    done = backup.restore(client, options.folder, replace=options.replace)
    made = datetime.datetime.fromtimestamp(backup.check(options.folder).created_ms / 1000)
    print(
        f"恢复了 {made:%Y-%m-%d %H:%M:%S} 的备份：{done.keys} 个键"
        f"（{done.expired} 个已到期，没有恢复），{done.queued} 个问题在排队，"
        f"{done.unsent} 位成员有待发的消息。"
    )
    print("现在可以启动各进程；它们会接着回答和发送。备份之后才发出的答案可能会再发一次。")
    return 0


def _entries(record: Mapping[str, Any]) -> int:
    """How many things a record of the export stands for."""
    if record["record"] != "indexes":
        return 1
    return len(record["turn_ids"]) + sum(len(names) for names in record["entries"].values())


def _listed(counts: Mapping[str, int]) -> str:
    known = [f"{title} {counts[kind]}" for kind, title in _KINDS.items() if counts.get(kind)]
    # Of leases only the numbers stay for a while; nobody asks for those.
    other = sum(count for kind, count in counts.items() if kind not in {*_KINDS, "lease", "fence"})
    return "，".join([*known, *([f"其他标记 {other}"] if other else [])])


def _new_file(path: Path) -> AbstractContextManager[TextIO]:
    """For its owner only; never one that is there already."""
    return os.fdopen(
        os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8"
    )


def _not_done(text: str) -> int:
    print(text, file=sys.stderr)
    return 1

"""Everything stored of one member: found, read and removed.

Owns which keys and index entries belong to a member, of every corp and app in this store. Knows
nothing of files or of the command line. User ids are compared without case, as WeCom does.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from app.store import keys
from app.store.keys import UserKeys, split_tag
from app.store.lease import Lease, Leases

_BATCH = 500
_HOLD_S = 60.0
_PASSES = 5
_TAG_INDEXES = (keys.PENDING_USERS, keys.PENDING_OUTBOXES)
_TURN_INDEXES = (keys.QUEUE, keys.RECENT_TURNS)


class MemberBusyError(Exception):
    """A turn or a delivery of the member is under way; nothing was removed. Retryable."""

    retryable = True


@dataclass
class Found:
    """What belongs to a member. ``own`` lie in the hash slot of a tag; ``turn_ids`` are those of
    the index of turns and of ``own``."""

    tags: set[str] = field(default_factory=set)
    own: list[str] = field(default_factory=list)
    turn_ids: set[str] = field(default_factory=set)
    departments: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tags or self.turn_ids or self.departments)


class Members:
    """The members this store knows."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def find(self, user: str) -> Found:
        """Look at every key of Hutong once, and at the indexes."""
        found, indexed = Found(), []
        wanted = user.lower()
        for raw in self._redis.scan_iter(match=keys.PREFIX + "*", count=1000):
            name = raw.decode()
            rest = name.removeprefix(keys.PREFIX)
            tag = tag_of(name)
            if tag:
                if _user_of(tag) == wanted:
                    found.tags.add(tag)
                    found.own.append(name)
            elif rest.startswith("turn:"):
                indexed.append(name)
            elif rest.startswith("departments:") and _user_of(rest) == wanted:
                found.departments.append(name)
        for index in _TAG_INDEXES:
            for raw, _ in self._redis.zscan_iter(index, count=1000):
                if _user_of(raw.decode()) == wanted:
                    found.tags.add(raw.decode())
        found.turn_ids |= self._indexed_of(wanted, indexed)
        for name in found.own:
            kind, _, rest = kind_of(name).partition(":")
            if kind == "turn":
                found.turn_ids.add(rest)
        return found

    def export(self, user: str) -> Iterator[dict[str, Any]]:
        """One record per key and index, of JSON values; what expires meanwhile is left out."""
        found = self.find(user)
        for name in sorted(found.own):
            record = self._record(name)
            if record is not None:
                yield record
        for name in sorted(found.departments):
            record = self._record(name)
            if record is not None:
                yield record
        if found:
            entries = self._index_entries(found)
            yield {"record": "indexes", "turn_ids": sorted(found.turn_ids), "entries": entries}

    def delete(self, user: str, *, force: bool = False) -> Mapping[str, int]:
        """Remove all of it; how many of each kind. Removing it again removes nothing.

        Raises ``MemberBusyError`` while a turn or a delivery runs, unless ``force``: its worker
        then finds its fencing token gone, and whatever it still writes is refused.
        """
        removed: dict[str, int] = {}
        for _ in range(_PASSES):
            found = self.find(user)
            if not found:
                break
            try:
                leases = [] if force else self._hold(found.tags)
            except MemberBusyError:
                if removed:
                    break  # a message that came after the removal
                raise
            try:
                self._remove(found, removed)
            except redis.RedisError:
                for lease in leases:
                    lease.release()
                raise
        # The keys of leases are ours, taken to remove the rest.
        return {kind: count for kind, count in removed.items() if kind not in ("lease", "fence")}

    def _indexed_of(self, wanted: str, names: Sequence[str]) -> set[str]:
        found = set()
        for start in range(0, len(names), _BATCH):
            batch = names[start : start + _BATCH]
            for name, tag in zip(batch, self._redis.mget(batch), strict=True):
                if isinstance(tag, bytes) and _user_of(tag.decode()) == wanted:
                    found.add(name.removeprefix(keys.turn_index("")))
        return found

    def _hold(self, tags: set[str]) -> list[Lease]:
        """Both leases of every tag, without a heartbeat: removing takes far less than they last."""
        held: list[Lease] = []
        for tag in sorted(tags):
            for kind in ("turn", "send"):
                lease = Leases(self._redis, kind, _HOLD_S).acquire(tag)
                if lease is None:
                    for other in held:
                        other.release()
                    raise MemberBusyError
                held.append(lease)
        return held

    def _remove(self, found: Found, removed: dict[str, int]) -> None:
        def count(kind: str, number: int) -> None:
            if number:
                removed[kind] = removed.get(kind, 0) + number

        # First what would make others look for the member's keys, then the keys.
        count("wakes", self._remove_wakes(found.tags))
        entries = self._index_entries(found)
        for index, members in entries.items():
            if members:
                count("indexes", self._redis.zrem(index, *members))
        # The lists that lead to the rest come first, should this be cut short.
        lists = {key for tag in found.tags for key in (UserKeys(tag).inbox, UserKeys(tag).outbox)}
        own = sorted(
            {*found.own, *self._lease_keys(found.tags)}, key=lambda name: name not in lists
        )
        for name in own:
            count(kind_of(name).partition(":")[0], self._redis.unlink(name))
        for turn_id in found.turn_ids:
            count("indexes", self._redis.unlink(keys.turn_index(turn_id)))
        for name in found.departments:
            count("departments", self._redis.unlink(name))

    def _lease_keys(self, tags: set[str]) -> list[str]:
        users = [UserKeys(tag) for tag in tags]
        kinds = ("turn", "send")
        return [key for u in users for kind in kinds for key in (u.lease(kind), u.fence(kind))]

    def _index_entries(self, found: Found) -> dict[str, list[str]]:
        """Entries of the member in the indexes of the whole installation."""
        entries: dict[str, list[str]] = {}
        for indexes, members in ((_TAG_INDEXES, found.tags), (_TURN_INDEXES, found.turn_ids)):
            for index in indexes:
                entries[index] = [
                    name for name in sorted(members) if self._redis.zscore(index, name) is not None
                ]
        prefixes = tuple(f"{tag} " for tag in found.tags)
        problems = (raw.decode() for raw, _ in self._redis.zscan_iter(keys.PROBLEM_PARTS))
        entries[keys.PROBLEM_PARTS] = [name for name in problems if name.startswith(prefixes)]
        return entries

    def _remove_wakes(self, tags: set[str]) -> int:
        """Wakes that no worker has taken yet name the member too."""
        removed = 0
        for key in self._redis.scan_iter(match=keys.BROKER_PREFIX + "*", _type="list"):
            for item in cast("list[bytes]", self._redis.lrange(key, 0, -1)):
                if _woken_tag(item) in tags:
                    removed += self._redis.lrem(key, 1, item.decode())
        return removed

    def _record(self, name: str) -> dict[str, Any] | None:
        kind = kind_of(name).partition(":")[0]
        value: Any = self._data_url(name) if kind == "image" else _read(self._redis, name)
        if value is None:
            return None
        if kind == "turn":
            value["steps"] = _parsed(value.get("steps", "[]"))
        elif kind == "session":
            value = [_parsed(document) for document in value]
        ttl_s = self._redis.ttl(name)
        return {
            "record": kind,
            "key": name,
            "expires_in_s": ttl_s if ttl_s >= 0 else None,
            "value": value,
        }

    def _data_url(self, name: str) -> str | None:
        png = self._redis.get(name)
        if not isinstance(png, bytes):
            return None
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def tag_of(name: str) -> str:
    """The tag in the name of a user's key, "" for a key of the whole installation."""
    start = keys.PREFIX + "{"
    return name.removeprefix(start).partition("}:")[0] if name.startswith(start) else ""


def kind_of(name: str) -> str:
    """What a key is for: ``turn:<id>``, ``inbox``, ``departments:...``"""
    return name.partition("}:")[2] if tag_of(name) else name.removeprefix(keys.PREFIX)


def _user_of(address: str) -> str:
    """The user at the end of ``...:corp:agent:user``, without case."""
    try:
        return split_tag(":".join(["", "", *address.split(":")][-3:])).user.lower()
    except ValueError:
        return ""


def _woken_tag(item: bytes) -> str:
    """The tag a Celery message is about, "" when it is none of ours."""
    try:
        arguments = json.loads(base64.b64decode(json.loads(item)["body"]))[0]
        return str(arguments[0])
    except (ValueError, KeyError, IndexError, TypeError, binascii.Error):
        return ""


def _read(client: redis.Redis, name: str) -> Any:
    """The value of a key of any type, decoded; None when it is gone."""

    def text(raw: bytes) -> str:
        return raw.decode("utf-8", "replace")

    kind = cast(bytes, client.type(name))
    if kind == b"hash":
        raw = cast("dict[bytes, bytes]", client.hgetall(name))
        return {text(key): text(value) for key, value in raw.items()}
    if kind == b"list":
        return [text(item) for item in cast("list[bytes]", client.lrange(name, 0, -1))]
    if kind == b"zset":
        pairs = cast("list[tuple[bytes, float]]", client.zrange(name, 0, -1, withscores=True))
        return {text(item): score for item, score in pairs}
    value = client.get(name) if kind == b"string" else None
    return text(value) if isinstance(value, bytes) else None


def _parsed(document: str) -> Any:
    try:
        return json.loads(document)
    except ValueError:
        return document

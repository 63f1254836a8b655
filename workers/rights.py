"""Which user may use which tool and read which data, for the turn worker's tools.

Owns the reading of the rules from settings. Knows neither tools nor the agent; of the data, the
names in the semantic file.
"""

from __future__ import annotations

from collections.abc import Callable

import redis

from app import access
from app.directory import departments_of
from app.settings import Settings, SettingsError
from app.store.server import connect
from tools.semantic import Semantic


def tool_rights(settings: Settings) -> Callable[[str, str], bool]:
    """``allowed(user, tool name)``. Raises ``SettingsError`` for a broken access file.

    In doubt the answer is no: a member whose departments cannot be found out now, or a Redis
    that cannot be asked, closes the tools that are named in the file and no others.
    """
    policy = _policy(settings)
    if not policy.tools:
        return lambda user, tool: True
    look_up = departments_of(settings, connect(settings.redis_url))

    def allowed(user: str, tool: str) -> bool:
        try:
            return policy.may_use(user, tool, look_up)
        except redis.RedisError:
            return False

    return allowed


def data_rights(settings: Settings) -> Callable[[str, str], bool]:
    """``may_read(user, "table" or "table.column")``; raises and doubts as ``tool_rights``."""
    policy = _policy(settings)
    if not policy.data:
        return lambda user, name: True
    look_up = departments_of(settings, connect(settings.redis_url))

    def may_read(user: str, name: str) -> bool:
        try:
            return policy.may_read(user, name, look_up)
        except redis.RedisError:
            return False

    return may_read


def refuse_unknown_data(settings: Settings, meaning: Semantic) -> None:
    """Raises ``SettingsError`` for rules about data that does not exist: a typo would open it."""
    known = {table.name.lower() for table in meaning.tables}
    known |= {f"{t.name}.{c.name}".lower() for t in meaning.tables for c in t.columns}
    unknown = sorted(_policy(settings).data.keys() - known)
    if unknown:
        raise SettingsError(
            f"HUTONG_ACCESS_FILE 的 data 里有语义文件没有的表或列：{'、'.join(unknown)}"
        )


def _policy(settings: Settings) -> access.AccessPolicy:
    return access.load(
        settings.allowed_users,
        settings.allowed_departments,
        settings.admins,
        settings.access_file,
    )

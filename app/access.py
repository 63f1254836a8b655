"""Who may write to the assistant, who may use which tool and who may read which data.

Owns the rules: allow-lists of members and departments, admins, rights per tool and per table or
column of the company's database. Knows nothing of Redis, of WeCom or of how a member's
departments are found out.

The file (TOML) is optional::

    [departments]                # members by department; used before WeCom is asked
    "2" = ["zhang", "li"]

    [tools.python_exec]          # a tool that is not named here is for everyone
    users = ["zhang"]
    departments = ["2"]

    [data.staff]                 # a table that is not named here is for everyone
    departments = ["2"]

    [data."customers.level"]     # one column
    users = ["zhang"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.settings import SettingsError

DepartmentsOf = Callable[[str], frozenset[str] | None]
"""Ids of a member's departments; None when they cannot be found out now."""


@dataclass(frozen=True)
class Group:
    """Members named one by one or by department."""

    users: frozenset[str] = frozenset()
    departments: frozenset[str] = frozenset()


@dataclass(frozen=True)
class AccessPolicy:
    """The rules of one installation. An empty ``allowed`` group means everyone.

    User ids are compared without case, as WeCom does. Admins may always write, use every tool and
    read all data.
    """

    allowed: Group = Group()
    admins: frozenset[str] = frozenset()
    tools: Mapping[str, Group] = field(default_factory=dict)
    data: Mapping[str, Group] = field(default_factory=dict)
    """By ``table`` or ``table.column``, in lower case."""
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Departments by member, from the file."""

    def is_admin(self, user: str) -> bool:
        """True for an administrator."""
        return user.lower() in self.admins

    def may_write(self, user: str, departments_of: DepartmentsOf) -> bool | None:
        """Whether ``user`` may write; None when that cannot be found out now."""
        if not self.allowed.users and not self.allowed.departments:
            return True
        return self._belongs(user, self.allowed, departments_of)

    def may_use(self, user: str, tool: str, departments_of: DepartmentsOf) -> bool:
        """Whether ``user`` may use ``tool``; what cannot be found out is a no."""
        group = self.tools.get(tool)
        return group is None or self._belongs(user, group, departments_of) is True

    def may_read(self, user: str, name: str, departments_of: DepartmentsOf) -> bool:
        """Whether ``user`` may read ``table`` or ``table.column``; in doubt no.

        A column needs the right to its table too.
        """
        lower = name.lower()
        groups = (self.data.get(part) for part in {lower, lower.split(".")[0]})
        return all(
            group is None or self._belongs(user, group, departments_of) is True for group in groups
        )

    def _belongs(self, user: str, group: Group, departments_of: DepartmentsOf) -> bool | None:
        name = user.lower()
        if name in self.admins or name in group.users:
            return True
        if not group.departments:
            return False
        if self.members.get(name, frozenset()) & group.departments:
            return True
        found = departments_of(user)
        return None if found is None else bool(found & group.departments)


def load(users: str, departments: str, admins: str, file: Path | None) -> AccessPolicy:
    """The policy of comma-separated lists and the file. Raises ``SettingsError``."""
    read: dict[str, Any] = {}
    if file is not None:
        try:
            read = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"HUTONG_ACCESS_FILE={file} 读不了：{error}") from error
    unknown = sorted(read.keys() - {"departments", "tools", "data"})
    if unknown:
        raise SettingsError(f"HUTONG_ACCESS_FILE={file} 里有不认识的表 {'、'.join(unknown)}")
    members: dict[str, set[str]] = {}
    for department, names in _tables(file, read.get("departments", {})).items():
        for name in _names(file, names):
            members.setdefault(name.lower(), set()).add(department)
    return AccessPolicy(
        allowed=Group(_listed(users, lower=True), _listed(departments)),
        admins=_listed(admins, lower=True),
        tools=_groups(file, "tools", read),
        data={name.lower(): group for name, group in _groups(file, "data", read).items()},
        members={name: frozenset(ids) for name, ids in members.items()},
    )


def _groups(file: Path | None, section: str, read: dict[str, Any]) -> dict[str, Group]:
    groups = {}
    for name, group in _tables(file, read.get(section, {})).items():
        keys = _tables(file, group)
        if keys.keys() - {"users", "departments"}:
            raise SettingsError(f"HUTONG_ACCESS_FILE={file} 的 {section}.{name} 里有不认识的键")
        groups[name] = Group(
            frozenset(member.lower() for member in _names(file, keys.get("users", []))),
            frozenset(_names(file, keys.get("departments", []))),
        )
    return groups


def _listed(text: str, *, lower: bool = False) -> frozenset[str]:
    names = (name.strip() for name in text.replace("，", ",").split(","))
    return frozenset(name.lower() if lower else name for name in names if name)


def _tables(file: Path | None, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"HUTONG_ACCESS_FILE={file} 里应是表的地方是 {value!r}")
    return value


def _names(file: Path | None, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str | int) for name in value):
        raise SettingsError(f"HUTONG_ACCESS_FILE={file} 里应是列表的地方是 {value!r}")
    return [str(name) for name in value]

"""Access rules: lists, departments, admins, tools, and files that are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.access import AccessPolicy, load
from app.settings import SettingsError

FILE = """
[departments]
"2" = ["Zhang", "li"]
[tools.python_exec]
users = ["wang"]
departments = ["2"]
[tools.sql_query]
"""


def unknown(user: str) -> frozenset[str] | None:
    return None


def in_three(user: str) -> frozenset[str] | None:
    return frozenset({"3"})


def policy_of(tmp_path: Path, text: str = FILE, **lists: str) -> AccessPolicy:
    file = tmp_path / "access.toml"
    file.write_text(text, "utf-8")
    return load(lists.get("users", ""), lists.get("departments", ""), lists.get("admins", ""), file)


def test_without_rules_everyone_may_do_everything() -> None:
    policy = load("", "", "", None)
    assert policy.may_write("anybody", unknown)
    assert policy.may_use("anybody", "python_exec", unknown)
    assert not policy.is_admin("anybody")


def test_lists_are_read_without_case_and_with_either_comma() -> None:
    policy = load("Zhang, li，王五", "", "Boss", None)
    for user in ("zhang", "LI", "王五", "boss"):
        assert policy.may_write(user, unknown)
    assert policy.may_write("mallory", unknown) is False
    assert policy.is_admin("BOSS")


def test_departments_come_from_the_file_first_then_from_wecom(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, departments="2,3")
    assert policy.may_write("zhang", unknown), "the file knows"
    assert policy.may_write("wang", in_three)
    assert policy.may_write("wang", unknown) is None
    assert policy.may_write("wang", lambda user: frozenset()) is False


def test_tools_named_in_the_file_are_for_their_group_only(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, admins="boss")
    assert [policy.may_use(u, "python_exec", in_three) for u in ("wang", "li", "boss", "zhao")] == [
        True,
        True,
        True,
        False,
    ]
    assert not policy.may_use("zhao", "python_exec", unknown), "in doubt, no"
    assert not policy.may_use("wang", "sql_query", in_three), "an empty group is nobody"
    assert policy.may_use("zhao", "doc_search", unknown)


@pytest.mark.parametrize(
    "text",
    ["[tools", "[tool.x]\nusers=[]", "tools = 1", "[tools.x]\nusers='a'", "[tools.x]\nuser=[]"],
)
def test_a_broken_file_stops_the_start_and_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"HUTONG_ACCESS_FILE=.*access\.toml"):
        policy_of(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HUTONG_ACCESS_FILE"):
        load("", "", "", tmp_path / "none.toml")


def test_data_named_in_the_file_is_for_its_group_only(tmp_path: Path) -> None:
    text = '[data.staff]\nusers = ["wang"]\n[data."staff.salary"]\nusers = ["boss"]\n'
    policy = policy_of(tmp_path, text, admins="root")
    assert policy.may_read("anybody", "sales_data.price", unknown)
    assert policy.may_read("Wang", "Staff.name", unknown)
    assert not policy.may_read("wang", "staff.salary", unknown)
    assert not policy.may_read("boss", "staff.salary", unknown), "not without the table"
    assert policy.may_read("root", "staff.salary", unknown)

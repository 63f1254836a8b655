"""Rights to tools and data from settings: what the file names is closed to others, in doubt too."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from app.settings import Settings, SettingsError, load
from app.store.gate import DepartmentCache
from tools import demo_company, semantic
from workers.rights import data_rights, refuse_unknown_data, tool_rights


def test_rights_of_tools(redis_url: str, redis_client: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text('[tools.python_exec]\nusers = ["zhang"]\ndepartments = ["2"]\n', "utf-8")
    DepartmentCache(redis_client, "ww1").put("li", frozenset({"2"}))
    DepartmentCache(redis_client, "ww1").put("wang", frozenset({"3"}))
    allowed = tool_rights(
        load(
            {
                "HUTONG_ACCESS_FILE": str(file),
                "REDIS_URL": redis_url,
                "WECOM_CORP_ID": "ww1",
                "WECOM_API_BASE": "http://127.0.0.1:9",
            }
        )
    )
    users = ("zhang", "li", "wang", "nobody-knows")
    assert [allowed(user, "python_exec") for user in users] == [True, True, False, False]
    assert allowed("wang", "sql_query")


def test_without_a_file_every_tool_is_for_everyone() -> None:
    assert tool_rights(load({}))("anybody", "python_exec")


ADMIN_RULES = """
[data.staff]
departments = ["2"]
[data."customers.level"]
users = ["Zhang"]
[data."staff.hire_date"]
users = ["li", "zhang"]
"""


def _settings(file: Path, redis_url: str = "") -> Settings:
    return load(
        {
            "HUTONG_ACCESS_FILE": str(file),
            "HUTONG_ADMINS": "boss",
            "REDIS_URL": redis_url,
            "WECOM_CORP_ID": "ww1",
            "WECOM_API_BASE": "http://127.0.0.1:9",
        }
    )


def test_rights_of_tables_and_columns(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    file = tmp_path / "access.toml"
    file.write_text(ADMIN_RULES, "utf-8")
    departments = DepartmentCache(redis_client, "ww1")
    departments.put("li", frozenset({"2"}))
    departments.put("zhang", frozenset({"3"}))
    may_read = data_rights(_settings(file, redis_url))
    names = ("staff", "staff.name", "staff.hire_date", "customers", "customers.level", "sales_data")
    rights = {user: [may_read(user, name) for name in names] for user in ("li", "ZHANG", "boss")}
    assert rights == {
        "li": [True, True, True, True, False, True],
        # A column of a table that stays closed is closed.
        "ZHANG": [False, False, False, True, True, True],
        "boss": [True] * 6,
    }
    assert may_read("li", "Staff.Name"), "names are compared without case, as databases do"
    assert not may_read("unknown", "staff"), "WeCom cannot be asked who that is"
    assert may_read("unknown", "sales_data")


def test_without_redis_what_departments_decide_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(ADMIN_RULES, "utf-8")
    may_read = data_rights(_settings(file, "redis://127.0.0.1:9/0"))
    assert not may_read("li", "staff")
    assert may_read("zhang", "customers.level")
    assert may_read("li", "sales_data")


def test_without_a_file_every_table_is_for_everyone() -> None:
    assert data_rights(load({}))("anybody", "staff.hire_date")


@pytest.mark.parametrize("name", ["staf", "staff.salary", "sales_data.regoin"])
def test_a_rule_for_data_that_does_not_exist_stops_the_start(name: str, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(f'{ADMIN_RULES}\n[data."{name}"]\nusers = ["li"]\n', "utf-8")
    meaning = semantic.load(demo_company.SEMANTIC_FILE)
    with pytest.raises(SettingsError, match=rf"HUTONG_ACCESS_FILE.*没有的表或列：{name}$"):
        refuse_unknown_data(_settings(file), meaning)


def test_rules_for_data_that_exists_are_taken_in_any_case(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text('[data."Staff.Name"]\nusers = ["li"]\n', "utf-8")
    refuse_unknown_data(_settings(file), semantic.load(demo_company.SEMANTIC_FILE))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[date.staff]\nusers = []\n", "不认识的表 date"),
        ('[data.staff]\ngroups = ["a"]\n', "data.staff 里有不认识的键"),
        ('[data]\nstaff = "li"\n', "应是表的地方"),
        ('[data.staff]\nusers = "li"\n', "应是列表的地方"),
        ("[data.staff\n", "读不了"),
    ],
)
def test_a_broken_access_file_is_named(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=words):
        data_rights(_settings(file))

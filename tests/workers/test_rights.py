"""Tool rights from settings: what the file names is closed to others, in doubt too."""

from __future__ import annotations

from pathlib import Path

import redis

from app.settings import load
from app.store.gate import DepartmentCache
from workers.rights import tool_rights


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

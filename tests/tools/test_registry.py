"""Rights and validation of tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tools import schemas
from tools.base import (
    ToolArgumentError,
    ToolContext,
    ToolForbiddenError,
    ToolResult,
)
from tools.python_exec import PythonTool
from tools.registry import ToolRegistry, fault
from tools.sql import SqlTool

Context = Callable[..., ToolContext]


@pytest.fixture
def registry(sql_tool: SqlTool, python_tool: PythonTool) -> ToolRegistry:
    return ToolRegistry([python_tool, sql_tool])


def test_specs_are_the_frozen_schemas_in_order(registry: ToolRegistry) -> None:
    assert registry.specs("zhangsan") == (schemas.SQL_QUERY, schemas.PYTHON_EXEC)


def test_a_call_runs(registry: ToolRegistry, context: Context) -> None:
    result = registry.run("sql_query", {"sql": "SELECT COUNT(*) AS n FROM staff"}, context())
    assert result.content == "n\n99\n共1行"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("rm", {}, "没有工具"),
        ("http_api", {"name": "x", "params": {}}, "没有工具"),
        ("sql_query", {}, "缺少sql"),
        ("sql_query", {"sql": 1}, "sql应是文本"),
        ("sql_query", {"sql": "SELECT 1", "chart": "pie"}, "只能是bar、line、share、none"),
        ("sql_query", {"sql": "SELECT 1", "limit": 3}, "没有参数“limit”"),
        ("sql_query", ["SELECT 1"], "应是对象"),
        ("python_exec", {"code": None}, "code应是文本"),
    ],
)
def test_bad_calls_are_refused_in_words(
    registry: ToolRegistry, context: Context, name: str, arguments: Any, words: str
) -> None:
    with pytest.raises(ToolArgumentError) as caught:
        registry.run(name, arguments, context())
    assert words in str(caught.value)


def test_rights_hide_and_refuse_a_tool(sql_tool: SqlTool, context: Context) -> None:
    registry = ToolRegistry([sql_tool], allowed=lambda user, tool: user == "boss")
    assert registry.specs("boss") == (schemas.SQL_QUERY,)
    assert registry.specs("zhangsan") == ()
    with pytest.raises(ToolForbiddenError):
        registry.run("sql_query", {"sql": "SELECT 1"}, context())


def test_two_tools_of_one_name_are_a_bug(python_tool: PythonTool) -> None:
    with pytest.raises(ValueError, match="same name"):
        ToolRegistry([python_tool, python_tool])


def test_close_closes_the_tools() -> None:
    closed: list[str] = []

    class Closing:
        name = "closing"
        description = ""
        parameters: Mapping[str, Any] = schemas.SEARCH_DOCS.parameters

        def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
            return ToolResult("")

        def close(self) -> None:
            closed.append(self.name)

    ToolRegistry([Closing()]).close()
    assert closed == ["closing"]


@pytest.mark.parametrize(
    ("value", "schema", "words"),
    [
        (True, {"type": "integer"}, "参数应是整数"),
        (1.5, {"type": "number"}, ""),
        ([1, "x"], {"type": "array", "items": {"type": "integer"}}, "参数[1]应是整数"),
        ("", {"type": "string", "minLength": 1}, "参数太短"),
        ("abc", {"type": "string", "maxLength": 2}, "参数太长"),
        ({"a": {"b": 1}}, {"properties": {"a": {"properties": {"b": {"type": "string"}}}}}, "a.b"),
    ],
)
def test_fault(value: Any, schema: Mapping[str, Any], words: str) -> None:
    assert fault(value, schema).startswith(words)
    assert bool(fault(value, schema)) == bool(words)


def test_an_unknown_schema_keyword_is_a_bug() -> None:
    with pytest.raises(ValueError, match="oneOf"):
        fault(1, {"oneOf": []})


@pytest.mark.parametrize("schema", schemas.ALL, ids=lambda schema: schema.name)
def test_every_frozen_schema_can_be_validated(schema: schemas.ToolSchema) -> None:
    assert fault({}, schema.parameters).startswith("缺少")

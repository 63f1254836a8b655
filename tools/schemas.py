"""Names, descriptions and JSON schemas of the five tools.

Frozen: the shipped models are trained on exactly these texts. A change here means retraining.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolSchema:
    """What the model is shown of one tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


SQL_QUERY = ToolSchema(
    "sql_query",
    "在公司数据库执行一条只读SELECT",
    _object(
        {
            "sql": {"type": "string"},
            "chart": {"type": "string", "enum": ["bar", "line", "share", "none"]},
        },
        ["sql"],
    ),
)
PYTHON_EXEC = ToolSchema(
    "python_exec",
    "运行Python代码计算，tables是已查到的表",
    _object({"code": {"type": "string"}}, ["code"]),
)
SEARCH_DOCS = ToolSchema(
    "search_docs",
    "检索公司制度和产品文档",
    _object({"query": {"type": "string"}}, ["query"]),
)
HTTP_API = ToolSchema(
    "http_api",
    "调用已登记的业务接口",
    _object({"name": {"type": "string"}, "params": {"type": "object"}}, ["name", "params"]),
)
REPORT = ToolSchema(
    "report",
    "生成已登记的报告",
    _object({"name": {"type": "string"}, "period": {"type": "string"}}, ["name", "period"]),
)

ALL: tuple[ToolSchema, ...] = (SQL_QUERY, PYTHON_EXEC, SEARCH_DOCS, HTTP_API, REPORT)

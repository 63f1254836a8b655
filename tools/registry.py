"""Which tools exist, who may use them, and whether a call's arguments fit the schema.

Owns rights and validation, so that no tool runs on arguments it did not declare. Knows nothing of
models; a call that is refused raises ``ToolError`` with the reason in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools import schemas
from tools.base import Tool, ToolArgumentError, ToolContext, ToolForbiddenError, ToolResult
from tools.schemas import ToolSchema

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_TYPE_WORDS = {
    "object": "对象",
    "array": "列表",
    "string": "文本",
    "integer": "整数",
    "number": "数字",
    "boolean": "true或false",
    "null": "null",
}


def anyone(user: str, tool: str) -> bool:
    """The default right: every user may use every registered tool."""
    return True


class ToolRegistry:
    """The tools of this process, in the order of ``schemas.ALL``.

    ``allowed(user, tool name)`` is asked before a tool is shown and again before it runs.
    """

    def __init__(
        self, tools: Sequence[Tool], *, allowed: Callable[[str, str], bool] = anyone
    ) -> None:
        order = {schema.name: index for index, schema in enumerate(schemas.ALL)}
        self._tools = {
            tool.name: tool for tool in sorted(tools, key=lambda t: order.get(t.name, len(order)))
        }
        if len(self._tools) != len(tools):
            raise ValueError("two tools have the same name")
        self._allowed = allowed

    def specs(self, user: str) -> tuple[ToolSchema, ...]:
        """What the model is shown for ``user``."""
        return tuple(
            ToolSchema(tool.name, tool.description, tool.parameters)
            for tool in self._tools.values()
            if self._allowed(user, tool.name)
        )

    def run(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Validate and run one call.

        Raises ``ToolArgumentError`` for an unknown tool or arguments outside its schema,
        ``ToolForbiddenError`` when the user has no right, and what the tool itself raises.
        """
        tool = self._tools.get(name)
        if tool is None:
            names = "、".join(schema.name for schema in self.specs(context.user))
            raise ToolArgumentError(f"没有工具“{name[:40]}”，可用的工具：{names}")
        if not self._allowed(context.user, name):
            raise ToolForbiddenError(f"您没有使用{name}的权限")
        problem = fault(arguments, tool.parameters)
        if problem:
            raise ToolArgumentError(f"{name}的参数不对：{problem}")
        return tool.run(arguments, context)

    def close(self) -> None:
        """Close every tool that holds processes."""
        for tool in self._tools.values():
            close = getattr(tool, "close", None)
            if close is not None:
                close()


def fault(value: Any, schema: Mapping[str, Any], where: str = "") -> str:
    """The first way in which ``value`` breaks ``schema``, "" when it fits.

    Understands type, enum, properties, required, additionalProperties, items, minLength and
    maxLength: what our schemas use. A keyword outside this list is a bug and raises ValueError.
    """
    unknown = schema.keys() - {
        "type", "enum", "properties", "required", "additionalProperties", "items", "minLength",
        "maxLength", "description",
    }  # fmt: skip
    if unknown:
        raise ValueError(f"schema keywords not supported: {sorted(unknown)}")
    label = where or "参数"
    kind = schema.get("type")
    if kind is not None and not _is_type(value, kind):
        return f"{label}应是{_TYPE_WORDS[kind]}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{label}只能是{'、'.join(map(str, schema['enum']))}"
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            return f"{label}太短"
        if len(value) > schema.get("maxLength", len(value)):
            return f"{label}太长"
    if isinstance(value, Mapping):
        return _object_fault(value, schema, where)
    if isinstance(value, list | tuple) and "items" in schema:
        faults = (fault(item, schema["items"], f"{label}[{i}]") for i, item in enumerate(value))
        return next((text for text in faults if text), "")
    return ""


def _object_fault(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> str:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"缺少{name}"
    for name, item in value.items():
        if name not in properties:
            if schema.get("additionalProperties", True) is False:
                return f"没有参数“{str(name)[:40]}”，可用：{'、'.join(properties)}"
            continue
        text = fault(item, properties[name], f"{where}.{name}" if where else name)
        if text:
            return text
    return ""


def _is_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind in {"integer", "number"}:
        return False
    return isinstance(value, _TYPES[kind])

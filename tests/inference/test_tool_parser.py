from __future__ import annotations

from typing import Any

import pytest

from inference.errors import ToolCallSyntaxError
from inference.protocol import ToolCall, ToolSpec
from inference.tool_parser import parse_call, parse_message

SEARCH = ToolSpec(
    "search",
    "",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "score": {"type": "number"},
            "fuzzy": {"type": "boolean"},
            "tags": {"type": "array"},
            "filter": {"type": "object"},
            "either": {"type": ["integer", "string"]},
            "maybe": {"type": ["string", "null"]},
        },
    },
)


def test_json_form() -> None:
    body = '\n{"name": "sql_query", "arguments": {"sql": "SELECT \\"华东\\"", "chart": "bar"}}\n'
    assert parse_call(body) == ToolCall("sql_query", {"sql": 'SELECT "华东"', "chart": "bar"})


def test_xml_form_keeps_strings_verbatim() -> None:
    sql = 'SELECT a\nFROM "t"  WHERE x < 3 AND y = \'{"k": 1}\''
    body = f"\n<function=search>\n<parameter=query>\n{sql}\n</parameter>\n</function>\n"
    assert parse_call(body, [SEARCH]) == ToolCall("search", {"query": sql})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("query", "123", "123"),
        ("query", "true", "true"),
        ("query", "", ""),
        ("limit", "5", 5),
        ("score", "0.5", 0.5),
        ("score", "2", 2),
        ("fuzzy", "True", True),
        ("fuzzy", "false", False),
        ("tags", '["a", 1]', ["a", 1]),
        ("filter", '{"a": {"b": null}}', {"a": {"b": None}}),
        ("either", "7", 7),
        ("either", "seven", "seven"),
        ("maybe", "null", None),
        ("maybe", "x", "x"),
        ("unknown", "7", "7"),
    ],
)
def test_xml_values_get_the_type_of_the_schema(name: str, text: str, value: Any) -> None:
    body = f"<function=search>\n<parameter={name}>\n{text}\n</parameter>\n</function>"
    assert parse_call(body, [SEARCH]).arguments == {name: value}
    assert type(parse_call(body, [SEARCH]).arguments[name]) is type(value)


def test_xml_with_several_parameters_and_tags_inside_a_value() -> None:
    body = (
        "<function=search><parameter=query>\na </parameter> b\n</parameter>\n"
        "<parameter=limit>\n3\n</parameter>\n</function>"
    )
    assert parse_call(body, [SEARCH]).arguments == {"query": "a </parameter> b", "limit": 3}
    assert parse_call("<function=now>\n</function>").arguments == {}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        '{"name": "a", "arguments": {"x": 1}',
        '{"name": "a", "arguments": [1]}',
        '{"arguments": {}}',
        '{"name": "a", "arguments": {}} trailing',
        "<function=search><parameter=query>x</function>",
        "<function=search><parameter=query>x</parameter>",
        "<function=search>prose<parameter=query>x</parameter></function>",
        "<function=search><parameter=limit>\nmany\n</parameter></function>",
        "<function=search><parameter=limit>\n1.5\n</parameter></function>",
        "<function=search><parameter=limit>\ntrue\n</parameter></function>",
    ],
)
def test_bad_calls_are_refused(body: str) -> None:
    with pytest.raises(ToolCallSyntaxError):
        parse_call(body, [SEARCH])


def test_a_whole_message_with_thinking_prose_and_two_calls() -> None:
    raw = (
        "<think>\n先查\n</think>\n\n我来查。\n"
        '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {"x": 1}}\n</tool_call>'
    )
    parsed = parse_message(raw)
    assert (parsed.text, parsed.reasoning, parsed.malformed) == ("我来查。", "先查", "")
    assert parsed.tool_calls == (ToolCall("a", {}), ToolCall("b", {"x": 1}))


def test_output_that_starts_inside_thinking() -> None:
    parsed = parse_message("想一想\n</think>\n\n答案", starts_thinking=True)
    assert (parsed.text, parsed.reasoning) == ("答案", "想一想")
    unfinished = parse_message("想一想", starts_thinking=True)
    assert (unfinished.text, unfinished.reasoning) == ("", "想一想")


def test_a_cut_off_or_bad_call_is_kept_raw() -> None:
    assert parse_message('x<tool_call>\n{"name": "a"').malformed == '\n{"name": "a"'
    parsed = parse_message('<tool_call>oops</tool_call><tool_call>{"name": "b"}</tool_call>')
    assert parsed.malformed == "oops"
    assert parsed.tool_calls == (ToolCall("b", {}),)

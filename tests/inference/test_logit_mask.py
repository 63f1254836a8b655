from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.errors import GrammarError
from inference.logit_mask import ControlTokens, GrammarCompiler, ToolCallMask, tool_call_grammar
from inference.protocol import ToolSpec
from inference.tokenizer import Tokenizer
from inference.tool_parser import parse_call

VOCAB = 640


def tool(name: str, properties: dict[str, Any], required: list[str]) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return ToolSpec(name, "", schema)


TOOLS = (
    tool(
        "sql_query",
        {"sql": {"type": "string"}, "chart": {"type": "string", "enum": ["bar", "line"]}},
        ["sql"],
    ),
    tool("limits", {"n": {"type": "integer"}, "on": {"type": "boolean"}}, ["n", "on"]),
    tool("http_api", {"name": {"type": "string"}, "params": {"type": "object"}}, ["name"]),
)


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer(tiny_model_dir)


@pytest.fixture
def control(tokenizer: Tokenizer) -> ControlTokens:
    return ControlTokens.of(tokenizer, [tokenizer.special_ids["<|im_end|>"]])


@pytest.fixture
def compiler(tokenizer: Tokenizer, control: ControlTokens) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, control, VOCAB)


def new_mask(
    tokenizer: Tokenizer,
    control: ControlTokens,
    compiler: GrammarCompiler,
    tools: tuple[ToolSpec, ...] = TOOLS,
    *,
    starts_thinking: bool = False,
    may_think: bool = True,
) -> ToolCallMask:
    return ToolCallMask(
        tokenizer,
        control,
        compiler=compiler,
        tools=tools,
        starts_thinking=starts_thinking,
        may_think=may_think,
    )


def allowed(mask: ToolCallMask) -> set[int]:
    """Ids the mask allows; both forms of the mask must agree."""
    logits = torch.zeros(VOCAB)
    mask.apply(logits)
    ids = set(torch.isfinite(logits).nonzero().flatten().tolist())
    words = mask.packed(VOCAB)
    assert words.dtype is torch.int32
    assert words.shape == ((VOCAB + 31) // 32,)
    assert ids == {i for i in range(VOCAB) if int(words[i // 32]) >> (i % 32) & 1}
    return ids


def start_call(mask: ToolCallMask, control: ControlTokens) -> None:
    assert control.call_start is not None
    mask.accept(control.call_start)


def follow(mask: ToolCallMask, tokenizer: Tokenizer, text: str) -> int:
    """Feed ``text``; returns how many of its tokens the mask allowed."""
    for count, token_id in enumerate(tokenizer.encode(text)):
        if token_id not in allowed(mask):
            return count
        mask.accept(token_id)
    return len(tokenizer.encode(text))


@pytest.mark.parametrize("seed", range(25))
def test_any_walk_through_the_mask_is_a_valid_call(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler, seed: int
) -> None:
    mask = new_mask(tokenizer, control, compiler)
    start_call(mask, control)
    chooser = random.Random(seed)
    body: list[int] = []
    for step in range(2000):
        choices = sorted(allowed(mask))
        assert choices
        if step > 60:  # long enough: prefer whatever closes strings and objects
            closing = [i for i in choices if set(tokenizer.token_bytes(i)) <= set(b'"}]\n')]
            choices = closing or choices
        token_id = chooser.choice(choices)
        mask.accept(token_id)
        if token_id == control.call_end:
            break
        body.append(token_id)
    else:
        pytest.fail("the call did not end")
    text = tokenizer.decode(body)
    call = parse_call(text, TOOLS)
    expected = {spec.name: spec.parameters for spec in TOOLS}[call.name]
    assert set(call.arguments) <= set(expected["properties"])
    assert set(expected["required"]) <= set(call.arguments)
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict}
    for key, value in call.arguments.items():
        assert isinstance(value, kinds[expected["properties"][key]["type"]])
    assert call.arguments.get("chart", "bar") in ("bar", "line")
    assert compiler.failures == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"sql": "SELECT '华东', \"a\" FROM t\nWHERE x < 3 \\ 😀"},
        {"sql": "", "chart": "line"},
    ],
)
def test_json_dumps_form_is_allowed_token_by_token(
    tokenizer: Tokenizer,
    control: ControlTokens,
    compiler: GrammarCompiler,
    arguments: dict[str, Any],
) -> None:
    mask = new_mask(tokenizer, control, compiler)
    start_call(mask, control)
    call = json.dumps({"name": "sql_query", "arguments": arguments}, ensure_ascii=False)
    text = f"\n{call}\n</tool_call>"
    assert follow(mask, tokenizer, text) == len(tokenizer.encode(text))


def test_nested_free_objects_are_allowed(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    mask = new_mask(tokenizer, control, compiler)
    start_call(mask, control)
    params = {"a": [1, 2.5, {"b": None}], "c": True, "d": {}}
    arguments = {"name": "x", "params": params}
    text = f"\n{json.dumps({'name': 'http_api', 'arguments': arguments})}\n</tool_call>"
    assert follow(mask, tokenizer, text) == len(tokenizer.encode(text))


@pytest.mark.parametrize(
    "text",
    [
        '{"name"',
        '\n{"name": "drop_table"',
        '\n{"name": "sql_query", "arguments": {"sql": 3',
        '\n{"name": "sql_query", "arguments": {"chart": "bar"}}',
        '\n{"name": "sql_query", "arguments": {"sql": "a", "chart": "pie"',
        '\n{"name": "sql_query", "arguments": {"sql": "a", "other": 1',
        '\n{"name": "limits", "arguments": {"n": 1.5',
        '\n{"name": "sql_query", "arguments": {"sql": "a"}}</tool_call>',
        '\n{"name": "sql_query", "arguments": {"sql": "a<|im_end|>',
    ],
)
def test_everything_else_is_stopped(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler, text: str
) -> None:
    mask = new_mask(tokenizer, control, compiler)
    start_call(mask, control)
    assert follow(mask, tokenizer, text) < len(tokenizer.encode(text))


def test_outside_a_call_text_is_free_and_control_tokens_are_not(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    specials = set(tokenizer.special_ids.values())
    mask = new_mask(tokenizer, control, compiler)
    assert allowed(mask) & specials == {*control.eos, control.call_start, control.think_start}
    assert allowed(mask) - specials == set(range(tokenizer.vocab_size)) - specials
    mask.accept(tokenizer.encode("好")[0])
    assert allowed(mask) & specials == {*control.eos, control.call_start}


def test_without_tools_no_call_can_start(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    mask = new_mask(tokenizer, control, compiler, (), may_think=False)
    assert allowed(mask) & set(tokenizer.special_ids.values()) == set(control.eos)


def test_thinking_ends_with_its_tag_only(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    mask = new_mask(tokenizer, control, compiler, starts_thinking=True)
    specials = set(tokenizer.special_ids.values())
    assert control.think_end is not None
    assert allowed(mask) & specials == {control.think_end}
    mask.accept(control.think_end)
    assert allowed(mask) & specials == {*control.eos, control.call_start}


def test_after_a_call_another_may_follow(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    mask = new_mask(tokenizer, control, compiler)
    for _ in range(2):
        start_call(mask, control)
        text = '\n{"name": "limits", "arguments": {"n": 3, "on": true}}\n</tool_call>'
        assert follow(mask, tokenizer, text) == len(tokenizer.encode(text))
        assert control.call_start in allowed(mask)


def test_a_schema_that_cannot_be_compiled_degrades_and_is_counted(
    tokenizer: Tokenizer,
    control: ControlTokens,
    compiler: GrammarCompiler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = ToolSpec("x", "", {"type": "object", "properties": {"a": {"type": "no such type"}}})
    mask = new_mask(tokenizer, control, compiler, (broken,))
    start_call(mask, control)
    assert compiler.failures == 1
    assert "not masked" in caplog.text
    specials = set(tokenizer.special_ids.values())
    assert allowed(mask) & specials == {control.call_end}
    assert allowed(mask) - specials == set(range(tokenizer.vocab_size)) - specials


def test_a_matcher_that_fails_on_the_way_degrades_and_is_counted(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    mask = new_mask(tokenizer, control, compiler)
    start_call(mask, control)
    mask.accept(tokenizer.encode("x")[0])  # a token the grammar does not allow
    assert compiler.failures == 1
    assert len(allowed(mask)) > 200


def test_grammars_are_compiled_once(compiler: GrammarCompiler) -> None:
    compiler.matcher(TOOLS)
    compiler.matcher(tuple(TOOLS))
    compiler.matcher(TOOLS[:1])
    assert len(compiler._compiled) == 2


def test_no_tools_have_no_grammar() -> None:
    with pytest.raises(GrammarError):
        tool_call_grammar((), 4)
    with pytest.raises(GrammarError):
        tool_call_grammar(TOOLS, None)


def test_the_packed_mask_is_the_same_object_until_it_changes(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    mask = new_mask(tokenizer, control, compiler, may_think=False)
    before = mask.packed(VOCAB)
    mask.accept(tokenizer.encode("a")[0])
    assert mask.packed(VOCAB) is before
    start_call(mask, control)
    inside = mask.packed(VOCAB)
    assert not torch.equal(inside, before)
    kept = inside.clone()
    mask.accept(tokenizer.encode("\n")[0])
    assert not torch.equal(mask.packed(VOCAB), kept)
    assert torch.equal(inside, kept)  # an older mask is not overwritten


def test_a_vocabulary_that_is_no_multiple_of_32_is_packed(
    tokenizer: Tokenizer, control: ControlTokens, compiler: GrammarCompiler
) -> None:
    words = new_mask(tokenizer, control, compiler).packed(tokenizer.vocab_size + 70)
    assert words.shape == ((tokenizer.vocab_size + 70 + 31) // 32,)
    assert int(words[-1]) == int(words[-2]) == 0  # ids without a token

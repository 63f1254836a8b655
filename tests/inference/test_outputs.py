from __future__ import annotations

from pathlib import Path

import pytest

from inference.logit_mask import ControlTokens
from inference.outputs import OutputParser
from inference.protocol import ToolCall
from inference.tokenizer import Tokenizer

CALL = '<tool_call>\n{"name": "a", "arguments": {"x": "华东"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer(tiny_model_dir)


def run(
    tokenizer: Tokenizer, text: str, *, starts_thinking: bool = False
) -> tuple[list[str], OutputParser]:
    control = ControlTokens.of(tokenizer, [tokenizer.special_ids["<|im_end|>"]])
    parser = OutputParser(tokenizer, control, starts_thinking=starts_thinking)
    pieces = [parser.push(token_id) for token_id in tokenizer.encode(text)]
    pieces.append(parser.finish())
    return pieces, parser


@pytest.mark.parametrize(
    ("raw", "starts_thinking", "text", "reasoning", "calls"),
    [
        ("你好😀", False, "你好😀", "", 0),
        ("\n\n 你好 \n", False, "你好", "", 0),
        ("a\n\nb  c", False, "a\n\nb  c", "", 0),
        ("<think>\n想\n</think>\n\n答案", False, "答案", "想", 0),
        ("想\n</think>\n\n答案", True, "答案", "想", 0),
        ("还在想", True, "", "还在想", 0),
        (CALL, False, "", "", 1),
        (f"我来查。\n{CALL}\n{CALL}", False, "我来查。", "", 2),
        (f"想</think>\n{CALL}", True, "", "想", 1),
    ],
)
def test_text_thinking_and_calls_are_taken_apart(
    tokenizer: Tokenizer, raw: str, starts_thinking: bool, text: str, reasoning: str, calls: int
) -> None:
    pieces, parser = run(tokenizer, raw, starts_thinking=starts_thinking)
    message = parser.result(())
    assert message.text == text
    assert "".join(pieces) == text
    assert message.reasoning == reasoning
    assert message.tool_calls == (ToolCall("a", {"x": "华东"}),) * calls
    assert message.malformed == ""


def test_a_call_that_is_cut_off_is_malformed_and_never_visible(tokenizer: Tokenizer) -> None:
    pieces, parser = run(tokenizer, '好<tool_call>\n{"name": "a"')
    assert "".join(pieces) == "好"
    assert parser.result(()).malformed == '\n{"name": "a"'
    _, empty = run(tokenizer, "<tool_call>")
    assert empty.result(()).malformed == "<tool_call>"


def test_a_call_written_with_ordinary_tokens_is_still_found(tokenizer: Tokenizer) -> None:
    control = ControlTokens((2,), None, None, None, None)
    parser = OutputParser(tokenizer, control, starts_thinking=False)
    ids = [i for char in CALL for i in tokenizer.encode(char)]
    for token_id in ids:
        parser.push(token_id)
    parser.finish()
    message = parser.result(())
    assert message.tool_calls == (ToolCall("a", {"x": "华东"}),)
    assert message.text == ""


def test_thinking_tokens_are_counted(tokenizer: Tokenizer) -> None:
    _, parser = run(tokenizer, "一二三</think>四", starts_thinking=True)
    assert parser.thinking_tokens == len(tokenizer.encode("一二三"))
    assert not parser.thinking

"""Which tokens the model may write next.

Owns the mask around and inside tool calls. Outside a call text is free but other special tokens
are forbidden; once ``<tool_call>`` was sampled, everything up to ``</tool_call>`` must be the
JSON form with a known tool name and arguments that match that tool's schema. llguidance does the
grammar work; when it fails the sequence goes on unmasked, the failure is logged and counted, and
the parser judges the call. Knows nothing of sampling or scheduling.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from inference.errors import GrammarError
from inference.protocol import ToolSpec
from inference.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_MAX_COMPILED = 64
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class LogitMask(Protocol):
    """Restricts one sequence. ``apply`` before a token is chosen, ``accept`` after it."""

    def apply(self, logits: Tensor) -> None:
        """Set forbidden entries of ``logits`` [vocab_size] to -inf, in place."""
        ...

    def packed(self, vocab_size: int) -> Tensor:
        """The same mask as int32 words [ceil(vocab_size / 32)], before logits are known.

        Bit ``i`` of word ``w`` allows token ``32w + i``. Not to be modified; the same object
        comes back as long as the mask did not change.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take note of the token that was chosen or forced."""
        ...


@dataclass(frozen=True)
class ControlTokens:
    """Special tokens with a meaning for the engine; ``None`` where the tokenizer lacks one."""

    eos: tuple[int, ...]
    think_start: int | None
    think_end: int | None
    call_start: int | None
    call_end: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, eos: Iterable[int]) -> ControlTokens:
        """Look the tags up in ``tokenizer``."""
        get = tokenizer.special_ids.get
        return cls(
            tuple(eos), get("<think>"), get("</think>"), get("<tool_call>"), get("</tool_call>")
        )


class GrammarCompiler:
    """Tool schemas -> llguidance matchers, compiled once per set of tools. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._ll_tokenizer: Any = None
        self.failures = 0

    def matcher(self, tools: Sequence[ToolSpec]) -> Any:
        """A fresh matcher for what follows ``<tool_call>``. Raises ``GrammarError``."""
        grammar = tool_call_grammar(tools, self._control.call_end)
        with self._lock:
            prototype = self._compiled.get(grammar)
            if prototype is None:
                prototype = self._compiled[grammar] = self._compile(grammar)
                if len(self._compiled) > _MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return prototype.deep_copy()

    def count_failure(self, reason: str) -> None:
        """Log and count one request that goes on without a grammar."""
        with self._lock:
            self.failures += 1
        logger.warning("tool calls of one request are not masked: %s", reason)

    def _compile(self, grammar: str) -> Any:
        try:
            from llguidance import LLMatcher, LLTokenizer

            if self._ll_tokenizer is None:
                self._ll_tokenizer = LLTokenizer(
                    self._tokenizer.json,
                    n_vocab=self._vocab_size,
                    eos_token=list(self._control.eos),
                )
            matcher = LLMatcher(self._ll_tokenizer, LLMatcher.grammar_from_lark(grammar))
        except (ImportError, ValueError, TypeError, RuntimeError) as error:
            raise GrammarError(f"llguidance: {error}") from error
        if matcher.is_error():
            raise GrammarError(f"llguidance: {matcher.get_error()}")
        return matcher


def tool_call_grammar(tools: Sequence[ToolSpec], call_end: int | None) -> str:
    """Lark grammar of the text between ``<tool_call>`` and its end, end token included.

    Raises ``GrammarError`` without tools or without an end token.
    """
    if not tools or call_end is None:
        raise GrammarError("no tools, or the tokenizer has no </tool_call>")
    names = " | ".join(f"tool{index}" for index in range(len(tools)))
    rules = [f'start: "\\n" ({names}) "\\n" <[{call_end}]>']
    for index, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
        schema = {**tool.parameters, "x-guidance": _JSON_OPTIONS}
        try:
            body = json.dumps(schema, ensure_ascii=False)
        except TypeError as error:
            raise GrammarError(f"the schema of {tool.name} is not JSON: {error}") from error
        rules.append(f'tool{index}: {json.dumps(head, ensure_ascii=False)} %json {body} "}}"')
    return "\n".join(rules) + "\n"


class ToolCallMask:
    """The mask of one sequence; ``matcher`` ``None`` means tool calls are not constrained."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        control: ControlTokens,
        *,
        compiler: GrammarCompiler,
        tools: Sequence[ToolSpec],
        starts_thinking: bool,
        may_think: bool,
    ) -> None:
        self._control = control
        self._compiler = compiler
        self._tools = tuple(tools)
        self._state: Literal["text", "thinking", "call"] = "thinking" if starts_thinking else "text"
        self._may_think = may_think and not starts_thinking
        self._matcher: Any = None
        self._specials = frozenset(tokenizer.special_ids.values())
        self._num_tokens = tokenizer.vocab_size
        self._forbidden: dict[str, Tensor] = {}
        self._packed: dict[tuple[str, int], Tensor] = {}
        self._bits: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def apply(self, logits: Tensor) -> None:
        """See ``LogitMask``."""
        size = logits.shape[0]
        bits = self._grammar_bits(size)
        if bits is not None:
            allowed = np.unpackbits(bits, count=size, bitorder="little")
            logits.masked_fill_(torch.from_numpy(allowed == 0), -torch.inf)
            return
        logits.index_fill_(0, self._forbidden_now(), -torch.inf)
        if size > self._num_tokens:
            logits[self._num_tokens :] = -torch.inf

    def packed(self, vocab_size: int) -> Tensor:
        """See ``LogitMask``."""
        bits = self._grammar_bits(vocab_size)
        if bits is not None:
            return torch.from_numpy(bits.copy().view(np.int32))
        key = (self._key, vocab_size)
        packed = self._packed.get(key)
        if packed is None:
            allowed = np.zeros(32 * ((vocab_size + 31) // 32), np.uint8)
            allowed[: min(vocab_size, self._num_tokens)] = 1
            allowed[self._forbidden_now().numpy()] = 0
            words = np.packbits(allowed, bitorder="little").view(np.int32)
            packed = self._packed[key] = torch.from_numpy(words)
        return packed

    def accept(self, token_id: int) -> None:
        """See ``LogitMask``."""
        control = self._control
        self._may_think = False if token_id != control.think_start else self._may_think
        if self._state == "thinking":
            if token_id == control.think_end:
                self._state = "text"
        elif self._state == "call":
            if self._matcher is not None and not self._matcher.consume_token(token_id):
                self._give_up(str(self._matcher.get_error()))
            if token_id == control.call_end:
                self._state, self._matcher = "text", None
        elif token_id == control.call_start:
            self._state, self._matcher = "call", self._new_matcher()
        elif token_id == control.think_start:
            self._state, self._may_think = "thinking", False

    def _new_matcher(self) -> Any:
        try:
            return self._compiler.matcher(self._tools)
        except GrammarError as error:
            self._compiler.count_failure(str(error))
            return None

    def _give_up(self, reason: str) -> None:
        self._matcher = None
        self._compiler.count_failure(reason)

    def _grammar_bits(self, vocab_size: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """The grammar's mask, valid until the next call; ``None`` without a (working) grammar."""
        if self._matcher is None:
            return None
        if self._bits is None:
            self._bits = np.zeros(4 * ((vocab_size + 31) // 32), np.uint8)
        try:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        except (ValueError, RuntimeError) as error:
            self._give_up(str(error))
            return None
        if self._matcher.is_error():
            self._give_up(str(self._matcher.get_error()))
            return None
        if not self._bits.any():
            self._give_up("no token is allowed")
            return None
        return self._bits

    @property
    def _key(self) -> str:
        return self._state + ("+" if self._may_think else "")

    def _forbidden_now(self) -> Tensor:
        """Ids that may not be written outside a grammar."""
        forbidden = self._forbidden.get(self._key)
        if forbidden is None:
            forbidden = self._forbidden[self._key] = self._forbidden_ids()
        return forbidden

    def _forbidden_ids(self) -> Tensor:
        control = self._control
        allowed: set[int | None] = set()
        if self._state == "text":
            allowed.update(control.eos)
            if self._tools:
                allowed.add(control.call_start)
            if self._may_think:
                allowed.add(control.think_start)
        else:
            allowed.add(control.think_end if self._state == "thinking" else control.call_end)
        return torch.tensor(sorted(self._specials - allowed), dtype=torch.int64)

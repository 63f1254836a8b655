"""Text <-> token ids, and the chat template.

Owns tokenizer.json and chat_template.jinja of a model folder. Knows nothing of torch or
transformers: the Rust tokenizer and a sandboxed jinja environment do the work. Only byte-level
BPE tokenizers (Qwen's kind) are read, since a token must stand for exact bytes.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as RustTokenizer

from inference.checkpoint import format as layout
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError
from inference.protocol import Message, ToolSpec


class Tokenizer:
    """Tokenizer and chat template of one model folder. Thread-safe."""

    def __init__(self, model_dir: Path) -> None:
        """Raises ``CheckpointError`` when a file is missing, damaged or of another kind."""
        self._path = model_dir / layout.TOKENIZER_FILE
        self.json = _read_text(self._path)
        try:
            self._tokenizer = RustTokenizer.from_str(self.json)
        except Exception as error:  # the Rust binding raises a bare Exception
            raise DamagedFileError(
                self._path, f"cannot be read ({error})", "copy the file again"
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.special_ids: dict[str, int] = {
            token.content: token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
        }
        self.vocab_size: int = max(self._tokenizer.get_vocab().values()) + 1
        self._token_bytes = self._byte_table()
        self._template = _compile_template(model_dir / layout.CHAT_TEMPLATE_FILE)
        self._special_strings = sorted(self.special_ids, key=len, reverse=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; special-token strings in it become special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for special tokens and ids beyond the vocabulary."""
        return self._token_bytes.get(token_id, b"")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids`` without special tokens; broken UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        enable_thinking: bool = False,
    ) -> str:
        """The prompt text with the generation prompt.

        Strings in a message or a tool that look like special tokens are broken with a space, so
        that text from users, tools and schemas cannot open another role.
        """
        return self._template.render(
            messages=[self._to_template(message) for message in messages],
            tools=[self._defuse_value(tool.to_openai()) for tool in tools] or None,
            add_generation_prompt=True,
            enable_thinking=enable_thinking,
        )

    def _to_template(self, message: Message) -> dict[str, Any]:
        entry: dict[str, Any] = {"role": message.role, "content": self._defuse(message.content)}
        if message.tool_calls:
            entry["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": self._defuse(call.name),
                        "arguments": self._defuse_value(dict(call.arguments)),
                    },
                }
                for call in message.tool_calls
            ]
        return entry

    def _defuse(self, text: str) -> str:
        if "<" in text:
            for special in self._special_strings:
                text = text.replace(special, special[:1] + " " + special[1:])
        return text

    def _defuse_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._defuse(value)
        if isinstance(value, dict):
            return {self._defuse(key): self._defuse_value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._defuse_value(item) for item in value]
        return value

    def _byte_table(self) -> dict[int, bytes]:
        decoder = json.loads(self.json).get("decoder") or {}
        kinds = [decoder.get("type"), *(d.get("type") for d in decoder.get("decoders", []))]
        if "ByteLevel" not in kinds:
            raise ConfigMismatchError(
                self._path, "not a byte-level BPE tokenizer", "use a Qwen-style tokenizer"
            )
        alphabet = _byte_alphabet()
        specials = set(self.special_ids.values())
        return {
            token_id: bytes(alphabet[char] for char in token)
            for token, token_id in self._tokenizer.get_vocab().items()
            if token_id not in specials
        }


class IncrementalDecoder:
    """Token ids in, text out, one token at a time; a character is given out when it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that became complete with this token, often empty inside a character."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Text of an unfinished character at the end (U+FFFD), and start afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFileError(
            path, "the file is missing", "copy it from the original checkpoint"
        ) from None
    except UnicodeDecodeError as error:
        raise DamagedFileError(path, f"not UTF-8 ({error})", "copy the file again") from error


def _compile_template(path: Path) -> jinja2.Template:
    """Compile with the options and names transformers gives to chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(_read_text(path))
    except jinja2.TemplateSyntaxError as error:
        raise DamagedFileError(
            path, f"the template does not compile ({error})", "copy the file again"
        ) from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet

"""Repairs the SQL text of a model before it is parsed: fences, full-width punctuation.

Owns characters only. Knows nothing of tables. Never touches what stands inside a literal.
"""

from __future__ import annotations

import re
import unicodedata

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n?(.*?)(?:```|\Z)", re.S)
_LABEL = re.compile(r"^\s*(?:sql|SQL语句|SQL)\s*[:：]\s*", re.I)
_QUOTES = {"“": "”", "”": "”", "‘": "’", "’": "’", "＇": "＇", "＂": "＂"}
_PUNCTUATION = {"、": ",", "。": ";", "≥": ">=", "≤": "<=", "≠": "<>", "×": "*", "÷": "/"}
_CLOSERS = {"'": "'", '"': '"', "`": "`", "[": "]"}


def clean(text: str) -> str:
    """One statement without fence, label, trailing semicolons or full-width punctuation."""
    fenced = _FENCE.search(text)
    body = fenced.group(1) if fenced else text
    body = _LABEL.sub("", body)
    return repair(body).strip().rstrip(";").strip()


def repair(text: str) -> str:
    """Full-width punctuation, digits and quotes made ASCII outside literals and comments."""
    out: list[str] = []
    at = 0
    while at < len(text):
        at = _step(text, at, out)
    return "".join(out)


def _step(text: str, at: int, out: list[str]) -> int:
    """Copy or repair what starts at ``at``; return where the next piece starts."""
    char = text[at]
    if char in _CLOSERS:
        end = _literal_end(text, at, _CLOSERS[char])
        out.append(text[at:end])
        return end
    if text.startswith("--", at):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        out.append(text[at:end])
        return end
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        end = len(text) if end < 0 else end + 2
        out.append(text[at:end])
        return end
    if char in _QUOTES:
        return _curly(text, at, out)
    out.append(_PUNCTUATION.get(char) or _narrow(char))
    return at + 1


def _literal_end(text: str, at: int, closer: str) -> int:
    """Index after the closing quote; a doubled quote is part of the literal."""
    end = at + 1
    while end < len(text):
        if text[end] == closer:
            if closer != "]" and text[end + 1 : end + 2] == closer:
                end += 2
                continue
            return end + 1
        end += 1
    return len(text)


def _curly(text: str, at: int, out: list[str]) -> int:
    """A literal in curly or full-width quotes becomes one in straight single quotes."""
    end = text.find(_QUOTES[text[at]], at + 1)
    if end < 0:
        out.append("'")
        return at + 1
    out.append("'" + text[at + 1 : end].replace("'", "''") + "'")
    return end + 1


def _narrow(char: str) -> str:
    if "\uff01" <= char <= "\uff5e" or char in "\u3000\u00a0":
        return unicodedata.normalize("NFKC", char)
    return char

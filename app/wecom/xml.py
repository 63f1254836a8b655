"""XML of WeCom into a dict, with nothing an outsider could abuse.

Owns the guard (no DOCTYPE, no entities, bounded depth) and the repair of characters that XML
forbids but people send. Knows no field names.
"""

from __future__ import annotations

import re
from typing import Any
from xml.parsers import expat

import xmltodict

from app.wecom.errors import MalformedError

MAX_DEPTH = 16
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_CHARACTER_REFERENCE = re.compile(r"&#(?:x([0-9a-fA-F]+)|([0-9]+));")


def strip_controls(text: str) -> str:
    """``text`` without the characters that XML (and WeCom) refuse: C0 controls but tab and
    line ends, lone surrogates, U+FFFE and U+FFFF."""
    return _FORBIDDEN.sub("", text)


def parse_xml(text: str) -> dict[str, Any]:
    """Children of the root element ``<xml>``; spaces inside text are kept.

    Raises ``MalformedError`` for anything that is not a small well-formed document.
    """
    cleaned = strip_controls(text.removeprefix("\ufeff"))
    if not cleaned.strip():
        raise MalformedError("the body is empty")
    try:
        _guard(cleaned)
    except expat.ExpatError:
        # A reference such as &#8; to a forbidden character: drop those, and only then give up.
        cleaned = _CHARACTER_REFERENCE.sub(_drop_forbidden_reference, cleaned)
        try:
            _guard(cleaned)
        except expat.ExpatError as error:
            raise MalformedError(f"not XML: {expat.ErrorString(error.code)}") from None
    root = xmltodict.parse(cleaned, strip_whitespace=False).get("xml")
    if not isinstance(root, dict):
        raise MalformedError("the root element is not <xml> with fields")
    return root


def _guard(text: str) -> None:
    parser = expat.ParserCreate("utf-8")
    depth = 0

    def on_doctype(*_: object) -> None:
        raise MalformedError("DOCTYPE is not allowed")

    def on_start(*_: object) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedError("XML is nested too deeply")

    def on_end(*_: object) -> None:
        nonlocal depth
        depth -= 1

    parser.StartDoctypeDeclHandler = on_doctype
    parser.StartElementHandler = on_start
    parser.EndElementHandler = on_end
    parser.Parse(text.encode(), True)


def _drop_forbidden_reference(match: re.Match[str]) -> str:
    hexadecimal, decimal = match.groups()
    digits, base = (hexadecimal, 16) if hexadecimal else (decimal, 10)
    code = int(digits[-8:], base)
    if len(digits.lstrip("0")) > 7 or code > 0x10FFFF or strip_controls(chr(code)) == "":
        return ""
    return match.group()

"""Whether an error of monty's means that monty lacks something real Python has.

Owns the lists. A gap is worth a second run in the native back end; a mistake of the code is not.
"""

from __future__ import annotations

import builtins
import datetime
import importlib
import re
import types

_ALLOWED = (
    "math statistics datetime json re itertools collections decimal fractions random numpy pandas "
    "functools operator string textwrap heapq bisect calendar csv io copy enum dataclasses typing "
    "abc numbers cmath time zoneinfo unicodedata hashlib base64 binascii uuid pprint contextlib "
    "types array difflib"
)
ALLOWED_MODULES = frozenset(_ALLOWED.split())
"""Worth a second run: they calculate. An import of anything else stays an error."""
_BUILTIN_NAMES = (
    "vars memoryview super format complex bytearray classmethod staticmethod property aiter anext "
    "delattr dir frozenset issubclass callable iter next slice object"
)
_BUILTINS = frozenset(_BUILTIN_NAMES.split())
_TYPES = {
    kind.__name__: kind
    for kind in (str, int, float, bool, list, dict, tuple, set, frozenset, bytes, complex, range)
} | {
    f"datetime.{kind.__name__}": kind
    for kind in (datetime.date, datetime.datetime, datetime.timedelta, datetime.timezone)
}
_MODULE = re.compile(r"No module named '([A-Za-z0-9_.]+)'")
_MODULE_ATTRIBUTE = re.compile(r"module '([A-Za-z0-9_.]+)' has no attribute '([A-Za-z0-9_]+)'")
_FROM = re.compile(r"cannot import name '([A-Za-z0-9_]+)' from '([A-Za-z0-9_.]+)'")
_TYPE_ATTRIBUTE = re.compile(
    r"(?:type object )?'([A-Za-z0-9_.]+)' (?:object )?has no attribute '([A-Za-z0-9_]+)'"
)
_NAME = re.compile(r"name '([A-Za-z0-9_]+)' is not defined")
_UNSUPPORTED = re.compile(r"not (?:yet )?(?:supported|implemented)|does not (?:yet )?support")


def is_gap(error: BaseException) -> bool:
    """``error``: the exception inside a ``MontyRuntimeError``."""
    message = str(error)
    if isinstance(error, NotImplementedError):
        return True
    if isinstance(error, ModuleNotFoundError):
        found = _MODULE.search(message)
        return found is not None and found[1].split(".")[0] in ALLOWED_MODULES
    if isinstance(error, ImportError):
        found = _FROM.search(message)
        return found is not None and _module_has(found[2], found[1])
    if isinstance(error, AttributeError):
        return _missing_attribute(message)
    if isinstance(error, NameError):
        found = _NAME.search(message)
        return found is not None and found[1] in _BUILTINS and hasattr(builtins, found[1])
    return isinstance(error, TypeError) and _UNSUPPORTED.search(message) is not None


def _missing_attribute(message: str) -> bool:
    found = _MODULE_ATTRIBUTE.search(message)
    if found is not None:
        return _module_has(found[1], found[2])
    found = _TYPE_ATTRIBUTE.search(message)
    if found is None or found[2].startswith("_"):
        return False
    kind = _TYPES.get(found[1])
    return kind is not None and hasattr(kind, found[2])


def _module_has(module: str, name: str) -> bool:
    """Whether the real module has it; numpy and pandas never get this far in monty."""
    if module not in ALLOWED_MODULES - {"numpy", "pandas"} or name.startswith("_"):
        return False
    value = getattr(importlib.import_module(module), name, None)
    return value is not None and not isinstance(value, types.ModuleType)

"""What a server's errors mean: a code for ``sql``, or words that say what to set right.

Owns SQLSTATEs of PostgreSQL and error numbers of MySQL and MariaDB. Never repeats what a driver
says about a connection: it may hold host, user and more.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tools.base import ToolUnavailableError
from tools.sql_backend import SETTING

MESSAGE_CHARS = 300
_STATES = (
    ("57014", "timeout"),
    ("55P03", "timeout"),
    ("42501", "denied"),
    ("25006", "denied"),
    ("22012", "too_big"),  # the guard of sql_dialect; SQLite's dialect gives NULL for x/0
    ("53300", "unavailable"),
    ("53", "too_big"),
    ("54", "too_big"),
    ("57", "unavailable"),
    ("08", "unavailable"),
    ("28", "unavailable"),
)
_NUMBERS = {
    1317: "timeout", 3024: "timeout", 1969: "timeout", 1205: "timeout", 1028: "timeout",
    1044: "denied", 1142: "denied", 1143: "denied", 1227: "denied", 1370: "denied",
    1792: "denied", 1290: "denied", 1836: "denied",
    1301: "too_big", 1153: "too_big", 1104: "too_big", 1114: "too_big", 1038: "too_big",
    1040: "unavailable", 1053: "unavailable", 2003: "unavailable", 2006: "unavailable",
    2013: "unavailable", 2014: "unavailable",
}  # fmt: skip


class Unreachable(ToolUnavailableError):
    """The server does not answer now; another question may find it up again."""


def code_of(error: SQLAlchemyError) -> str:
    """timeout, too_big, unavailable, denied or failed."""
    state, number = _state(error), _number(error)
    if number is not None:
        return _NUMBERS.get(number, "failed")
    if state:
        return next((code for start, code in _STATES if state.startswith(start)), "failed")
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return "unavailable" if lost else "failed"


def message_of(error: SQLAlchemyError) -> str:
    """The server's sentence and its hint, on one line, for a statement that failed."""
    origin: Any = getattr(error, "orig", None)
    diagnosis = getattr(origin, "diag", None)
    if diagnosis is not None and diagnosis.message_primary:
        parts = [diagnosis.message_primary, diagnosis.message_hint]
        text = " ".join(part for part in parts if part)
    elif _number(error) is not None and len(origin.args) > 1:
        text = str(origin.args[1])
    else:
        text = type(origin or error).__name__
    return " ".join(text.split())[:MESSAGE_CHARS]


def connection_error(error: SQLAlchemyError) -> ToolUnavailableError:
    """Why there is no connection and what to do about it, without host, user or password."""
    if isinstance(error, PoolTimeoutError):
        return Unreachable("数据库查询正忙，请稍后再试")
    text, state, number = str(getattr(error, "orig", "")), _state(error), _number(error)
    if number in (1045, 1698) or state.startswith("28") or _says(text, "authentication", "passw"):
        return ToolUnavailableError(f"数据库不接受用户名或密码，请检查 {SETTING}")
    if number in (1044, 1049) or _says(text, r'database ".*" does not exist'):
        return ToolUnavailableError(f"服务器上没有这个数据库，或账号不能用它，请检查 {SETTING}")
    if number == 1040 or _says(text, "too many c", "remaining connection slots"):
        return Unreachable("数据库的连接数已满，请稍后再试，或让管理员调大上限")
    if _says(text, "time ?out", "timed out"):
        return Unreachable(f"连接数据库超时，请检查服务器、网络和 {SETTING} 里的地址")
    if _says(text, "starting up", "shutting down", "recovery"):
        return Unreachable("数据库正在启动或停止，请稍后再试")
    if number == 1142 or state == "42501":
        return ToolUnavailableError("数据库账号没有读这些表的权限，请让管理员授权（docs/tools.md）")
    if state and not state.startswith(("08", "57")):
        return ToolUnavailableError(f"读不了数据库的结构：{message_of(error)}")
    return Unreachable(f"连不上数据库，请检查服务器是否在运行，以及 {SETTING} 里的地址和端口")


def _says(text: str, *patterns: str) -> bool:
    return any(re.search(pattern, text, re.I) for pattern in patterns)


def _state(error: SQLAlchemyError) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def _number(error: SQLAlchemyError) -> int | None:
    arguments = getattr(getattr(error, "orig", None), "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None

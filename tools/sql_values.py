"""The values that the text columns of a database really hold.

Owns which columns are checked, what counts as the same value and the sentence for a value that
does not exist. Knows nothing of SQL trees; rows come from the query processes.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import re
import threading
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from tools.base import ToolArgumentError, ToolError
from tools.semantic import Semantic
from tools.sql_process import WorkerPool, WorkerRequest
from tools.text_variants import simplified

MAX_VALUES = 2_000
MAX_VALUE_CHARS = 60
"""A column with a longer value is free text and is not checked."""
LISTED = 10
NEAR = 3
NEAR_CUTOFF = 0.5
_MAX_BYTES = 400_000
_SUFFIXES = (
    "地区", "大区", "片区", "区域", "区", "省", "市", "部门", "部", "仓库", "仓", "品类", "类别",
    "类", "等级", "级", "客户", "会员", "渠道", "平台", "店",
)  # fmt: skip
_DATE = re.compile(r"\d{4}-(\d\d?|Q[1-4]).*")


@dataclass(frozen=True)
class _Kept:
    """Values of one column as of one state of the file; None where it is not checked."""

    identity: tuple[int, int, int]
    values: frozenset[str] | None


class KnownValues:
    """Values by column, read on first use and again when the database file changed. Thread-safe."""

    def __init__(self, database: Path, semantic: Semantic, pool: WorkerPool) -> None:
        self._database = database
        self._semantic = semantic
        self._pool = pool
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._lock = threading.Lock()

    def resolve(self, table: str, column: str, text: str, timeout_s: float) -> str:
        """The value that ``text`` means in this column; ``text`` itself where nothing is known.

        Case, width, spaces, traditional characters and words such as 区 or 市 at the end do not
        count when one value remains. Raises ``ToolArgumentError`` in words when there is none.
        """
        own = self._values(table, column, timeout_s)
        if not own or text in own:
            return text
        title = self._title(table, column)
        known = set(own)
        for other_table, other in self._columns():
            if (other_table, other) != (table, column) and self._title(other_table, other) == title:
                known |= self._values(other_table, other, timeout_s) or set()
        if text in known or text in self._listed(title):
            # A customer without orders is a customer: the empty result is right.
            return text
        meant = _same(text, own) or _same(text, known)
        if meant:
            return meant
        raise ToolArgumentError(self._unknown(title, text, sorted(known), timeout_s))

    def last_day(self, table: str, timeout_s: float) -> datetime.date | None:
        """The last ``date`` in a table; None when it cannot be read."""
        sql = f"SELECT MAX(date) FROM {_quoted(table)}"
        for text in self._values(table, "MAX(date)", timeout_s, sql) or ():
            with contextlib.suppress(ValueError):
                return datetime.date.fromisoformat(text[:10])
        return None

    def _unknown(self, title: str, text: str, known: list[str], timeout_s: float) -> str:
        shown = text.strip()[:20]
        message = f"{title}没有“{shown}”"
        keys = {_key(value): value for value in known}
        near = difflib.get_close_matches(_key(text), list(keys), n=NEAR, cutoff=NEAR_CUTOFF)
        if len(known) <= LISTED:
            message += f"，有：{'/'.join(known)}"
        elif near:
            message += f"，相近的有：{'、'.join(keys[key] for key in near)}"
        elsewhere = self._elsewhere(title, text, timeout_s)
        return f"{message}；“{shown}”是{elsewhere}" if elsewhere else message

    def _elsewhere(self, title: str, text: str, timeout_s: float) -> str:
        """``客户的城市`` when another column holds the value."""
        titles = {table.name: table.title for table in self._semantic.tables}
        for table, column in self._columns():
            other = self._title(table, column)
            values = self._values(table, column, timeout_s) if other != title else None
            if values and (text in values or _same(text, values)):
                return other if other == titles[table] else f"{titles[table]}的{other}"
        return ""

    def _columns(self) -> list[tuple[str, str]]:
        return [(t.name, c.name) for t in self._semantic.tables for c in t.columns]

    def _title(self, table: str, column: str) -> str:
        return self._semantic.column_titles(table).get(column, column)

    def _listed(self, title: str) -> set[str]:
        cards = (card for table in self._semantic.tables for card in table.columns)
        return {value for card in cards if card.title == title for value in card.values}

    def _values(
        self, table: str, column: str, timeout_s: float, sql: str = ""
    ) -> frozenset[str] | None:
        if not sql and (column in {"date", "quarter_label"} or column.endswith(("_id", "_date"))):
            return None
        identity = self._identity()
        with self._lock:
            kept = self._kept.get((table, column))
        if kept is None or kept.identity != identity:
            sql = sql or f"SELECT DISTINCT {_quoted(column)} FROM {_quoted(table)}"
            kept = _Kept(identity, self._read(sql, timeout_s))
            with self._lock:
                self._kept[table, column] = kept
        return kept.values

    def _read(self, sql: str, timeout_s: float) -> frozenset[str] | None:
        request = WorkerRequest(
            f"{sql} LIMIT {MAX_VALUES + 1}", (), timeout_s, MAX_VALUES, _MAX_BYTES
        )
        try:
            answer = self._pool.ask(request)
        except ToolError:
            # The check is a courtesy; the statement itself may still be quick.
            return None
        if "error" in answer or answer["truncated"]:
            return None
        found = [row[0] for row in answer["rows"] if row[0] is not None]
        checked = all(isinstance(v, str) and len(v) <= MAX_VALUE_CHARS for v in found)
        if not checked or (len(found) > 1 and all(_DATE.fullmatch(v) for v in found)):
            return None
        return frozenset(found)

    def _identity(self) -> tuple[int, int, int]:
        """Changes with every write: a live database in WAL mode grows its log first."""
        try:
            stat = self._database.stat()
        except OSError:
            return 0, 0, 0
        log = self._database.with_name(f"{self._database.name}-wal")
        return stat.st_ino, stat.st_mtime_ns, log.stat().st_mtime_ns if log.is_file() else 0


def _key(text: str) -> str:
    """What two spellings of one value share."""
    return simplified("".join(unicodedata.normalize("NFKC", text).casefold().split()))


def _stem(key: str) -> str:
    suffix = next((s for s in _SUFFIXES if key.endswith(s) and len(key) > len(s) + 1), "")
    return key.removesuffix(suffix)


def _same(text: str, values: frozenset[str] | set[str]) -> str:
    """The one value that is ``text`` in another spelling, "" when none or several are."""
    for spelling in (_key, lambda value: _stem(_key(value))):
        wanted = spelling(text)
        found = [value for value in values if spelling(value) == wanted]
        if found:
            return found[0] if len(found) == 1 else ""
    return ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

"""The values that the text columns of a database really hold.

Owns which columns are checked, what counts as the same value and the sentence for a value that
does not exist. Knows nothing of SQL trees; rows come from the backend, rights from who asks.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import re
import threading
import unicodedata
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tools.base import Cancelled, ToolArgumentError, ToolCancelledError, ToolError
from tools.semantic import Semantic
from tools.sql_backend import Backend
from tools.sql_process import WorkerRequest
from tools.sql_rules import MayRead
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
class Asker:
    """Whose question a look-up serves: nothing is looked at that ``may_read`` refuses."""

    timeout_s: float
    may_read: MayRead
    cancelled: Cancelled


@dataclass(frozen=True)
class _Kept:
    """Values of one column as of one state of the data; None where it is not checked."""

    state: Hashable
    values: frozenset[str] | None


class KnownValues:
    """Values by column, read on first use and again when the data may have changed. Thread-safe."""

    def __init__(self, backend: Backend, semantic: Semantic) -> None:
        self._backend = backend
        self._semantic = semantic
        self._kept: dict[tuple[str, str, str], _Kept] = {}
        self._lock = threading.Lock()

    def resolve(self, table: str, column: str, text: str, asker: Asker) -> str:
        """The value that ``text`` means in this column; ``text`` itself where nothing is known.

        Case, width, spaces, traditional characters and words such as 区 or 市 at the end do not
        count when one value remains. Raises ``ToolArgumentError`` in words when there is none.
        """
        readable = self._columns(asker.may_read)
        place = _place(table, column, readable)
        own = self._values(*place, asker) if place else None
        if place is None or not own or text in own:
            return text
        table, column = place
        title = self._title(table, column)
        known = set(own)
        for other_table, other in readable:
            if (other_table, other) != (table, column) and self._title(other_table, other) == title:
                known |= self._values(other_table, other, asker) or set()
        if text in known or text in self._listed(title):
            # A customer without orders is a customer: the empty result is right.
            return text
        meant = _same(text, own) or _same(text, known)
        if meant:
            return meant
        raise ToolArgumentError(self._unknown(title, text, sorted(known), asker))

    def last_day(self, table: str, asker: Asker) -> datetime.date | None:
        """The last day in a table's time column; None when it cannot be read."""
        column = self._semantic.time_column(table)
        place = _place(table, column, self._columns(asker.may_read))
        if place is None:
            return None
        sql = f"SELECT MAX({self._quoted(place[1])}) FROM {self._quoted(place[0])}"
        for text in self._kept_values((*place, "last"), sql, asker) or ():
            with contextlib.suppress(ValueError):
                return datetime.date.fromisoformat(text[:10])
        return None

    def _unknown(self, title: str, text: str, known: list[str], asker: Asker) -> str:
        shown = text.strip()[:20]
        message = f"{title}没有“{shown}”"
        keys = {_key(value): value for value in known}
        near = difflib.get_close_matches(_key(text), list(keys), n=NEAR, cutoff=NEAR_CUTOFF)
        if len(known) <= LISTED:
            message += f"，有：{'/'.join(known)}"
        elif near:
            message += f"，相近的有：{'、'.join(keys[key] for key in near)}"
        elsewhere = self._elsewhere(title, text, asker)
        return f"{message}；“{shown}”是{elsewhere}" if elsewhere else message

    def _elsewhere(self, title: str, text: str, asker: Asker) -> str:
        """``客户的城市`` when another column holds the value."""
        titles = {table.name: table.title for table in self._semantic.tables}
        for table, column in self._columns(asker.may_read):
            other = self._title(table, column)
            values = self._values(table, column, asker) if other != title else None
            if values and (text in values or _same(text, values)):
                return other if other == titles[table] else f"{titles[table]}的{other}"
        return ""

    def _columns(self, may_read: MayRead) -> list[tuple[str, str]]:
        return [
            (t.name, c.name)
            for t in self._semantic.tables
            for c in t.columns
            if may_read(t.name) and may_read(f"{t.name}.{c.name}")
        ]

    def _title(self, table: str, column: str) -> str:
        return self._semantic.column_titles(table).get(column, column)

    def _listed(self, title: str) -> set[str]:
        cards = (card for table in self._semantic.tables for card in table.columns)
        return {value for card in cards if card.title == title for value in card.values}

    def _values(self, table: str, column: str, asker: Asker) -> frozenset[str] | None:
        """All values of a column; None where it is not checked."""
        is_time = column in {self._semantic.time_column(table), "quarter_label"}
        if is_time or column.endswith(("_id", "_date")):
            return None
        sql = f"SELECT DISTINCT {self._quoted(column)} FROM {self._quoted(table)}"
        return self._kept_values((table, column, "all"), sql, asker)

    def _kept_values(
        self, key: tuple[str, str, str], sql: str, asker: Asker
    ) -> frozenset[str] | None:
        """What ``sql`` finds in a column, read again when the data may have changed.

        ``key``: table, column, and which of its values.
        """
        state = self._backend.state()
        with self._lock:
            kept = self._kept.get(key)
        if kept is None or kept.state != state:
            table, column, _ = key
            kept = _Kept(state, self._read(sql, {table: (column,)}, asker))
            with self._lock:
                self._kept[key] = kept
        return kept.values

    def _read(
        self, sql: str, readable: Mapping[str, tuple[str, ...]], asker: Asker
    ) -> frozenset[str] | None:
        request = WorkerRequest(
            f"{sql} LIMIT {MAX_VALUES + 1}",
            (),
            asker.timeout_s,
            MAX_VALUES,
            _MAX_BYTES,
            readable,
        )
        try:
            answer = self._backend.ask(request, asker.cancelled)
        except ToolCancelledError:
            raise
        except ToolError:
            # The check is a courtesy; the statement itself may still be quick.
            return None
        if "error" in answer or answer["truncated"]:
            return None
        found = [
            value.isoformat() if isinstance(value, datetime.date) else value
            for (value,) in answer["rows"]
            if value is not None
        ]
        checked = all(isinstance(v, str) and len(v) <= MAX_VALUE_CHARS for v in found)
        if not checked or (len(found) > 1 and all(_DATE.fullmatch(v) for v in found)):
            return None
        return frozenset(found)

    def _quoted(self, name: str) -> str:
        mark = "`" if self._backend.dialect == "mysql" else '"'
        return mark + name.replace(mark, mark * 2) + mark


def _place(table: str, column: str, known: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The names as the semantic file spells them; None for what is not ``known``."""
    wanted = (table.lower(), column.lower())
    return next((pair for pair in known if (pair[0].lower(), pair[1].lower()) == wanted), None)


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

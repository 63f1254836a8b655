"""A span of time: its SQL conditions, its name in an answer, and the spans before and after it.

Knows nothing of phrases and of today.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal[
    "none", "year", "quarter", "month", "half", "months", "years", "days", "day", "dates"
]
ZH_QUARTER = "一二三四"
ZH_MONTH = ("一", "二", "三", "四", "五", "六", "七", "八", "九", "十", "十一", "十二")
EN_MONTH = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True)
class Period:
    """A span of time. ``part`` is the quarter, month or half (1, 2) within ``year``.

    ``part_end`` closes a range of months; ``year_end`` a range of years; ``days`` counts
    ``unit``s back from ``day``; ``day_end`` closes a range of days.
    """

    kind: Kind = "none"
    year: int = 0
    part: int = 0
    part_end: int = 0
    year_end: int = 0
    day: str = ""
    days: int = 0
    unit: str = "day"
    day_end: str = ""

    def conditions(self) -> list[str]:
        """SQL conditions over the columns date, year, quarter, month."""
        year = f"year={self.year}"
        match self.kind:
            case "none":
                return []
            case "year":
                return [year]
            case "quarter":
                return [year, f"quarter={self.part}"]
            case "month":
                return [year, f"month={self.part}"]
            case "half":
                return [year, f"quarter IN ({'1,2' if self.part == 1 else '3,4'})"]
            case "months":
                return [year, f"month BETWEEN {self.part} AND {self.part_end}"]
            case "years":
                return [f"year BETWEEN {self.year} AND {self.year_end}"]
            case "days":
                return [f"date>DATE('{self.day}','-{self.days} {self.unit}')"]
            case "day":
                return [f"date='{self.day}'"]
            case "dates":
                return [f"date BETWEEN '{self.day}' AND '{self.day_end}'"]

    def label(self, lang: str) -> str:
        """How an answer names the period; empty when there is none."""
        if lang == "en":
            return self._label_en()
        match self.kind:
            case "none":
                return ""
            case "year":
                return f"{self.year}年"
            case "quarter":
                return f"{self.year}年第{self.part}季度"
            case "month":
                return f"{self.year}年{self.part}月"
            case "half":
                return f"{self.year}年{'上' if self.part == 1 else '下'}半年"
            case "months":
                return f"{self.year}年{self.part}-{self.part_end}月"
            case "years":
                return f"{self.year}-{self.year_end}年"
            case "days":
                return f"最近{self.days}{ZH_UNIT[self.unit]}"
            case "day":
                return self.day
            case "dates":
                return f"{self.day}至{self.day_end}"

    def _label_en(self) -> str:
        match self.kind:
            case "none":
                return ""
            case "year":
                return f"{self.year}"
            case "quarter":
                return f"{self.year} Q{self.part}"
            case "month":
                return f"{EN_MONTH[self.part - 1]} {self.year}"
            case "half":
                return f"H{self.part} {self.year}"
            case "months":
                return f"{self.year} months {self.part}-{self.part_end}"
            case "years":
                return f"{self.year}-{self.year_end}"
            case "days":
                return f"the last {self.days} {self.unit}s"
            case "day":
                return self.day
            case "dates":
                return f"{self.day} to {self.day_end}"

    def year_before(self) -> Period:
        """The same span a year earlier."""
        return replace(self, year=self.year - 1)

    def previous(self) -> Period:
        """The span just before: for a year, quarter, half or month."""
        size = {"quarter": 4, "month": 12, "half": 2}.get(self.kind)
        if size is None:
            return self.year_before()
        if self.part > 1:
            return replace(self, part=self.part - 1)
        return replace(self, year=self.year - 1, part=size)

    def following(self) -> Period:
        """The span just after: for a year, quarter, half or month."""
        size = {"quarter": 4, "month": 12, "half": 2}.get(self.kind)
        if size is None:
            return replace(self, year=self.year + 1)
        if self.part < size:
            return replace(self, part=self.part + 1)
        return replace(self, year=self.year + 1, part=1)

    @property
    def one_year(self) -> bool:
        """Whether all of it lies in one named year."""
        return self.kind in ("year", "quarter", "month", "half", "months")


NONE = Period()
ZH_UNIT = {"day": "天", "month": "个月", "year": "年"}

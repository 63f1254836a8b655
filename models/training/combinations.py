"""Combinations of table, aggregation, figure and dimension that training never shows.

Owns the choice, made by a stable hash before training. Each part alone is trained.
"""

from __future__ import annotations

import functools
import hashlib

from models.training.frames import Frame
from models.training.lexicon import BASE_METRICS

SALT = "combinations/6"
SHARE = 0.06
_TABLES = {"target": "targets", "returns": "returns", "inventory": "inventory", "staff": "staff",
           "customers": "customers"}  # fmt: skip
BY_MEMBER = ("top", "bottom", "group", "compare", "yoy", "mom", "share", "average", "having")
BY_TIME = ("trend", "average")


def of(frame: Frame) -> tuple[str, str, str, str]:
    """(table, aggregation, figure, dimension or grain) of a frame."""
    return (
        _TABLES.get(frame.intent, "sales_data"), frame.intent, frame.metric,
        frame.dim or frame.grain,
    )  # fmt: skip


def held_out(frame: Frame) -> bool:
    """Whether no training dialog may ask this. Only breakdowns of sales are ever held out."""
    known = frame.intent in BY_MEMBER if frame.dim else frame.intent in BY_TIME and frame.grain
    if not known or frame.dim2 or frame.metric not in BASE_METRICS:
        return False
    return _held_out("/".join(of(frame)))


@functools.cache
def _held_out(key: str) -> bool:
    digest = hashlib.sha256(f"{SALT}/{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < SHARE * 2**32

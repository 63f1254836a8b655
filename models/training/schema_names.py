"""Names of columns and tables: which ones training may show, and made-up ones.

Owns the stable choice of names kept for evaluation. Knows nothing of schemas.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Sequence
from typing import Any, TypeVar

_Named = TypeVar("_Named", bound=tuple[Any, ...])
INVENTED_SHARE = 0.6
"""Part of the renamed columns and tables whose name is made up on the spot."""
_PREFIXES = ("t_", "f_", "c_", "x_", "dim_", "d_", "the_", "my_", "s_", "o_", "biz_", "tb_", "old_")
_SUFFIXES = (
    "_no",
    "_nm",
    "_val",
    "_2",
    "_cd",
    "_txt",
    "_new",
    "_f",
    "s_all",
    "_col",
    "_id1",
    "_v2",
)
_STEMS = (
    "rec", "item", "main", "base", "node", "unit", "core", "line", "mark", "slot", "part", "kind",
    "data", "info", "flag", "code", "site", "lot", "pack", "side", "term", "zone", "grp", "key",
)  # fmt: skip
_SYLLABLES = tuple(
    a + b for a in "bcdfghjklmnpqrstvwxyz" for b in ("a", "e", "i", "o", "u", "an", "er")
)
_PINYIN = (
    "xiao", "shou", "ding", "dan", "ke", "hu", "chan", "pin", "qu", "yu", "bu", "men", "shu",
    "liang", "jia", "ge", "ri", "qi", "cang", "ku", "yuan", "gong", "lei", "bie", "ming", "cheng",
    "jin", "zhong", "hao", "ma", "zu", "biao", "zhi", "fei", "huo", "shang", "tui", "dian", "pu",
)  # fmt: skip
_RESERVED = frozenset((
    "as", "by", "in", "is", "no", "of", "on", "or", "to", "do", "if", "all", "and", "any", "asc",
    "set", "not", "end", "use", "from", "into", "join", "like", "null", "then", "when", "with",
    "case", "else", "desc", "sum", "avg", "min", "max", "count", "date", "name", "city", "level",
    "year", "month", "stock", "price", "amount", "region", "reason", "channel", "quarter",
))  # fmt: skip


def invented_name(rng: random.Random, name: str) -> str:
    """A name nobody can know by heart: ``name`` abbreviated, prefixed or numbered, or letters.

    Copying names from the prompt is learned from these; a fixed list would be memorised.
    """
    draw = rng.random()
    if draw < 0.2:
        made = rng.choice(_PREFIXES) + name
    elif draw < 0.35:
        made = name + rng.choice(_SUFFIXES)
    elif draw < 0.45:
        made = name[0] + re.sub("[aeiou_]", "", name[1:]) + rng.choice(("", "_", "1", "_x"))
    elif draw < 0.58:
        made = f"{rng.choice(_STEMS)}_{rng.choice(_STEMS)}"
    elif draw < 0.72:
        made = rng.choice(("", "_")).join(rng.sample(_PINYIN, rng.randint(1, 3)))
    elif draw < 0.78:
        made = f"{rng.choice(_PREFIXES)}{rng.choice('abcdfghklmnpqstwxyz')}{rng.randint(1, 999)}"
    elif draw < 0.82:
        made = rng.choice(_STEMS) + rng.choice(_STEMS).capitalize()
    elif draw < 0.86:
        made = "".join(rng.choice("bcdfghjklmnpqrstvwxyz") for _ in range(rng.randint(2, 4)))
        made += f"_{rng.choice(_STEMS)}"
    else:
        made = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(1, 3)))
        made += rng.choice(("", "", str(rng.randint(1, 99))))
    return f"{made}_{rng.randint(1, 99)}" if made in _RESERVED or held_out(made) else made


@functools.cache
def held_out(name: str) -> bool:
    """Whether training never shows this table or column name: one in eight, by a stable hash."""
    return hashlib.sha256(f"names/1519/{name}".encode()).digest()[0] < 32


def allowed(options: Sequence[_Named], unseen: bool) -> list[_Named]:
    """The options (their first item is a name) of training, or those it never shows."""
    return [option for option in options if held_out(option[0]) == unseen] or list(options)

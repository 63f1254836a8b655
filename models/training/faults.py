"""A query that fails and the error it gets, so that the model learns to correct itself.

Owns mistakes in names, and names that people ask for but the data does not hold: the SQL tool
then names those that come near.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from models.training import lexicon

_WRONG = {"quantity": "qty", "price": "amount", "region": "area", "category": "type",
          "product_name": "product", "channel": "platform", "salesperson": "seller",
          "customer": "client", "warehouse": "store", "department": "dept", "stock": "num",
          "amount": "target"}  # fmt: skip


def faulty(rng: random.Random, sql: str, chart: str, call: Callable[..., Any]) -> Any:
    """A call like the right one with one mistake, and the SQL tool's words about it."""
    columns = [name for name in _WRONG if re.search(rf"\b{name}\b", sql)]
    if columns and rng.random() < 0.7:
        right = rng.choice(columns)
        broken = re.sub(rf"\b{right}\b", _WRONG[right], sql)
        hint = rng.choice(("", f"，是不是{right}？"))
        return call(broken, chart, f"错误: 没有列“{_WRONG[right]}”{hint}", trained=False)
    if rng.random() < 0.5:
        table = re.search(r"FROM (\w+)", sql)
        name = table[1] if table else "sales_data"
        broken = sql.replace(name, name.removesuffix("_data") + "_table")
        text = f"错误: 没有表“{name.removesuffix('_data')}_table”，是不是{name}？"
        return call(broken, chart, text, trained=False)
    return call(
        sql.replace(" FROM ", " FORM ", 1), chart, "错误: SQL语法错误，在“FORM”附近", trained=False
    )


def misnamed(rng: random.Random, name: str) -> str:
    """A name as somebody remembers it: a letter wrong, left out or added."""
    at = rng.randrange(len(name))
    draw = rng.random()
    if draw < 0.4 and len(name) > 2:
        return name[:at] + name[at + 1 :]
    if draw < 0.7:
        return name[:at] + rng.choice(lexicon.HANZI) + name[at + 1 :]
    if draw < 0.85 and at < len(name) - 1:
        return name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    return name[:at] + rng.choice(lexicon.HANZI) + name[at:]


def near_names(rng: random.Random, title: str, said: str, right: str) -> str:
    """The SQL tool's words about a name that does not exist; ``right`` stands first."""
    others = [misnamed(rng, right) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    shown = "、".join(dict.fromkeys((right, *others)))
    return f"错误: {title}没有“{said[:20]}”，相近的有：{shown}"


def listed(title: str, said: str, values: tuple[str, ...]) -> str:
    """The SQL tool's words about a value that is none of a few."""
    return f"错误: {title}没有“{said[:20]}”，有：{'/'.join(sorted(values))}"

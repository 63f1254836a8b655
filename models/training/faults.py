"""A query that fails and the error it gets, so that the model learns to correct itself."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

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

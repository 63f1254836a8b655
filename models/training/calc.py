"""Python the model writes: arithmetic, and statistics of a table it has queried.

Owns the code forms, and runs them to know what they print. Monty has no statistics module, so
every statistic is written out.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Mapping, Sequence

from models.training import free_slots
from tools.base import Value

STATISTICS = {
    "median": (
        "v=sorted(r[{c!r}] for r in tables[0])\nn=len(v)\nprint(round((v[(n-1)//2]+v[n//2])/2, 2))"
    ),
    "mean": "v=[r[{c!r}] for r in tables[0]]\nprint(round(sum(v)/len(v), 2))",
    "std": (
        "v=[r[{c!r}] for r in tables[0]]\nm=sum(v)/len(v)\n"
        "print(round((sum((x-m)**2 for x in v)/len(v))**0.5, 2))"
    ),
    "cv": (
        "v=[r[{c!r}] for r in tables[0]]\nm=sum(v)/len(v)\n"
        "print(round((sum((x-m)**2 for x in v)/len(v))**0.5/m, 4))"
    ),
    "range": "v=[r[{c!r}] for r in tables[0]]\nprint(round(max(v)-min(v), 2))",
    "gap": "v=[r[{c!r}] for r in tables[0]]\nprint(round(max(v)/min(v), 2))",
    "growth": (
        "v=[r[{c!r}] for r in tables[0]]\ng=[100*(b-a)/a for a,b in zip(v,v[1:])]\n"
        "print(round(sum(g)/len(g), 2))"
    ),
    "cagr": (
        "v=[r[{c!r}] for r in tables[0]]\nprint(round(100*((v[-1]/v[0])**(1/(len(v)-1))-1), 2))"
    ),
    "forecast": (
        "v=[r[{c!r}] for r in tables[0]]\nn=len(v)\na=(n-1)/2\nm=sum(v)/n\n"
        "b=sum((i-a)*(x-m) for i,x in enumerate(v))/sum((i-a)**2 for i in range(n))\n"
        "print(round(m+b*(n-a), 2))"
    ),
    "moving_average": (
        "v=[r[{c!r}] for r in tables[0]]\n"
        "print([round(sum(v[i-2:i+1])/3, 2) for i in range(2, len(v))])"
    ),
    "cumulative": (
        "s=0\nt=[]\nfor r in tables[0]:\n    s+=r[{c!r}]\n    t.append(round(s, 2))\nprint(t)"
    ),
    "pareto": (
        "v=[r[{c!r}] for r in tables[0]]\ns=0\nk=0\nwhile s<0.8*sum(v):\n    s+=v[k]\n    k+=1\n"
        "print(k)"
    ),
}
TITLES = {
    "median": ("中位数", "median"), "mean": ("平均值", "mean"), "std": ("标准差", "standard deviation"),  # noqa: E501
    "cv": ("变异系数", "coefficient of variation"), "range": ("极差", "range"),
    "gap": ("最高与最低之比", "ratio of highest to lowest"), "growth": ("平均增长率", "mean growth rate"),  # noqa: E501
    "cagr": ("复合增长率", "compound growth rate"), "forecast": ("下一期预测值", "next value forecast"),  # noqa: E501
    "moving_average": ("3期移动平均", "moving average"), "cumulative": ("累计值", "running total"),
    "pareto": ("达到80%所需的个数", "number that makes up 80%"),
}  # fmt: skip
_NAMES = {"stdev": "std", "ratio": "gap"}


def statistic_of(tag: str) -> str:
    """Name of the statistic of a template's tag, such as ``median_dim`` or ``stdev``."""
    for name in sorted((*STATISTICS, *_NAMES), key=len, reverse=True):
        if tag.startswith(name):
            return _NAMES.get(name, name)
    raise KeyError(tag)


def run(code: str, tables: Sequence[Sequence[Mapping[str, Value]]] = ()) -> str:
    """What the code prints. Only code of this module is run here."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"tables": tables})
    return printed.getvalue().rstrip("\n")


def code_of(rng: random.Random, tag: str, text: str, said: dict[str, str]) -> str:
    """Code of a calculation template; replaces ``said["expr"]`` by the way it is written."""
    x, y, z = (said.get(slot, "1") for slot in "xyz")
    p, d, n = said.get("p", ""), said.get("d", ""), said.get("n", "")
    expression = {
        "average": f"({x}+{y}+{z})/3",
        "compound": f"{x}*(1+{p}/100)**{n}",
        "cut": f"{x}*(1-{p}/100)",
        "discount": f"{x}*{d}/{10 ** len(d)}",
        "growth": f"({y}-{x})/{x}*100",
        "percent_of": f"{x}*{p}/100",
        "raise": f"{x}*(1+{p}/100)",
        "ratio": f"{x}/{y}*100",
        "sum": f"{x}+{y}+{z}",
        "add": f"{x}+{y}",
        "sub": f"{x}-{y}",
        "mul": f"{x}*{y}",
        "div": f"{x}/{y}",
        "pow": f"{x}**{3 if re.search('立方|cube', text) else 2}",
        "sqrt": f"{x}**0.5",
    }.get(tag)
    if tag == "std":
        return (f"v=[{x}, {y}, {z}]\nm=sum(v)/3\n"
                "print(round((sum((i-m)**2 for i in v)/3)**0.5, 2))")  # fmt: skip
    if expression is None:
        expression = said["expr"]
    del rng
    return f"print(round({expression}, 2))"


def usable(code: str) -> bool:
    """Whether the code runs and prints a figure of a sensible size."""
    try:
        printed = run(code)
        return "j" not in printed and len(printed) < 18 and "e" not in printed
    except (ZeroDivisionError, OverflowError, ValueError, SyntaxError):
        return False


def written(rng: random.Random, said: dict[str, str], lang: str) -> str:
    """The expression as the user writes it."""
    return free_slots.as_written(rng, said["expr"], lang)

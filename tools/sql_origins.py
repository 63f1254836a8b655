"""Which node of a statement, as it was written, a node of its qualified copy came from.

Owns the numbers that survive the copying. Knows nothing of what is to be rewritten.
"""

from __future__ import annotations

from typing import TypeVar

from sqlglot import exp

_NUMBER = "origin"
_N = TypeVar("_N", bound=exp.Expr)


class Origins:
    """Made of the tree before it is copied."""

    def __init__(self, tree: exp.Query) -> None:
        self._nodes = list(tree.walk())
        for number, node in enumerate(self._nodes):
            node.meta[_NUMBER] = number

    def of(self, node: _N) -> _N | None:
        """The node of the same kind that ``node`` came from; None for one that was made since."""
        number = node.meta.get(_NUMBER)
        found = self._nodes[number] if number is not None else None
        return found if isinstance(found, type(node)) else None

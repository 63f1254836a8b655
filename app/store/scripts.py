"""Loads the Lua scripts that lie beside this module.

Owns reading and registering; each script says in its head what it does.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Protocol

import redis


class Script(Protocol):
    """A registered script. Survives a restart of the server: it is loaded again when unknown."""

    def __call__(self, keys: list[str], args: list[Any]) -> Any:
        """Run it; answers are bytes, ints, lists of these or None."""
        ...


@cache
def _source(name: str) -> str:
    return (Path(__file__).parent / f"{name}.lua").read_text("utf-8")


def script(client: redis.Redis, name: str) -> Script:
    """The script ``<name>.lua`` bound to ``client``."""
    return client.register_script(_source(name))

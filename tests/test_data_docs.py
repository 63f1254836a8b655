"""The documents of operation and security name every kind of key, and files that exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from app.store import keys
from app.store.keys import UserKeys
from app.store.members import kind_of

ROOT = Path(__file__).parents[1]
OPERATIONS = (ROOT / "docs/operations.md").read_text("utf-8")
SECURITY = (ROOT / "docs/security.md").read_text("utf-8")


def _kind(name: str) -> str:
    return kind_of(name).partition(":")[0]


def kinds_of_members() -> set[str]:
    """What ``UserKeys`` makes names for."""
    user, found = UserKeys("c:a:u"), set()
    for name, member in inspect.getmembers(UserKeys):
        if name.startswith("_") or name in ("base", "tag"):
            continue
        made = getattr(user, name) if isinstance(member, property) else None
        if made is None and name == "session":
            made = user.session(1)
        elif made is None and callable(member):
            made = member(user, "x")
        if made is not None:
            found.add(_kind(made))
    return found


def kinds_of_the_installation() -> set[str]:
    """What the module's constants and functions make names for."""
    made = [v for v in vars(keys).values() if isinstance(v, str) and v.startswith(keys.PREFIX)]
    for function in (
        *(keys.turn_index, keys.access_token, keys.wrong_tokens, keys.admin_ended),
        *(lambda x: keys.process(x, x), lambda x: keys.departments(x, x)),
        *(lambda x: keys.send_pause(x, x), lambda x: keys.send_limited(x, x)),
        lambda x: keys.send_hold(x, x),
    ):
        made.append(function("x"))
    functions = [f for f in vars(keys).values() if inspect.isfunction(f)]
    of_keys = [f for f in functions if "PREFIX" in inspect.getsource(f)]
    assert len(of_keys) == 9, "name the new function above"
    kinds = {_kind(name) for name in made} - {""}
    return {kind.removesuffix("-running") for kind in kinds}


def test_every_kind_of_key_is_in_the_table_of_what_is_stored() -> None:
    members = kinds_of_members()
    assert {"turn", "part", "session", "inbox", "lease", "dedupe", "sent"} <= members
    assert sorted(kind for kind in members if f"`{kind}`" not in OPERATIONS) == []
    installation = kinds_of_the_installation()
    assert {"metrics", "queue", "process", "access-token"} <= installation
    assert sorted(k for k in installation if f"`hutong:{k}`" not in OPERATIONS) == []


@pytest.mark.parametrize("text", [OPERATIONS, SECURITY], ids=["operations", "security"])
def test_files_and_links_named_exist(text: str) -> None:
    named = re.findall(r"`((?:app|workers|tools|inference|deploy|tests|docs)/[\w./-]+)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_tests_named_in_the_security_document_exist() -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY):
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), name

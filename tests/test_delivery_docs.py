"""docs/delivery.md names tests, settings and codes that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.settings import SETTINGS
from app.wecom.errors import action_for
from workers.delivery import DeliveryLimits

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "delivery.md").read_text("utf-8")
NAMED_TESTS = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)


@pytest.mark.parametrize(("path", "name"), NAMED_TESTS)
def test_every_named_test_exists(path: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8")


def test_every_complaint_in_scope_has_a_row() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|.*`tests/", PAGE, re.MULTILINE)
    numbered = {int(number) for row in rows for number in row.split(",")}
    out_of_scope = {9, 20, 22, 33, 34, 35, 38, 39, 40, 42}
    assert numbered == set(range(1, 43)) - out_of_scope


def test_every_named_setting_exists() -> None:
    named = set(re.findall(r"`((?:HUTONG|WECOM)_[A-Z_]+)", PAGE))
    assert named <= {setting.name for setting in SETTINGS}
    assert len(named) > 5


@pytest.mark.parametrize(
    ("row", "action"),
    [
        ("discard the token", "refresh_token"),
        ("try again after", "retry"),
        ("pause the app 60 s", "wait"),
        ("mark the user", "give_up"),
        ("(our payload)", "bug"),
    ],
)
def test_the_table_of_codes_is_the_policy(row: str, action: str) -> None:
    line = next(line for line in PAGE.splitlines() if row in line and line.startswith("|"))
    codes = [
        int(code) for code in re.findall(r"(?<![\d.])-?\d{5}|-1\b|\b6000\b", line.split("|")[1])
    ]
    assert codes
    assert {action_for(code) for code in codes} == {action}


def test_the_waits_are_those_of_the_sender() -> None:
    assert DeliveryLimits().frequency_waits_s == (60, 60, 300, 900, 3600)
    assert DeliveryLimits().pause_s == 30

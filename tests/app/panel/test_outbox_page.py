"""The outbox tab: counts by state, the hold on sending, replay of refused parts."""

from __future__ import annotations

import re

import pytest
import redis

from app.store import keys
from app.store.app_state import AppState
from app.store.keys import UserKeys
from app.store.outbox import Outbox, Outcome
from tests.app.panel.conftest import HOSTILE, REFUSED, TAG, Admin, ask, end, safe, settle, shown


def tile(page: str, name: str) -> str:
    found = re.search(rf'<b id="{name}">(\d+)</b>', page)
    assert found, name
    return found[1]


def test_the_outbox_counts_parts_by_state(admin: Admin, redis_client: redis.Redis) -> None:
    for user, outcome in (("a", Outcome("unknown", errmsg=HOSTILE)), ("b", REFUSED), ("c", None)):
        ask(redis_client, f"t{user}", user=user)
        end(redis_client, f"t{user}", f"第一段 {HOSTILE}", "第二段", user=user)
        if outcome:
            settle(redis_client, outcome, user=user)
    AppState(redis_client).raise_alert(TAG, 60020, f"{HOSTILE}请加IP", "203.0.113.7")
    AppState(redis_client).pause(TAG, "errcode 60020", 30)
    page = safe(admin.page("outbox"))
    names = ("pending", "unknown", "refused", "given-up")
    assert [tile(page, name) for name in names] == ["4", "1", "1", "0"]
    assert shown(f"81013 user not in scope {HOSTILE}", page)
    assert "203.0.113.7" in page
    assert "发送自动暂停：errcode 60020" in page


def test_sending_is_held_and_released(admin: Admin, redis_client: redis.Redis) -> None:
    response = admin.post("sending", do="hold")
    assert (response.status_code, response.location) == (303, "/admin/ui/outbox?said=held")
    assert AppState(redis_client).paused(TAG)
    page = admin.page("outbox?said=held")
    assert "管理员已暂停发送" in page
    assert "恢复发送" in page
    assert "发送已由管理员暂停" in admin.page("doctor")
    ask(redis_client, "t1")
    end(redis_client, "t1", "答案")
    assert admin.post("sending", do="release").location == "/admin/ui/outbox?said=released"
    assert not AppState(redis_client).paused(TAG)
    assert "正常发送" in admin.page("outbox?said=released")
    # A sender was woken for what had piled up.
    assert redis_client.llen(keys.BROKER_PREFIX + "send") == 1


def replay_forms(page: str) -> list[dict[str, str]]:
    """The fields of every button that replays one part."""
    forms = re.findall(r'<form method="post" action="/admin/ui/replay".*?</form>', page, re.DOTALL)
    return [
        {
            **dict(re.findall(r'name="(\w+)" value="([^"]*)"', form)),
        }
        for form in forms
        if 'name="replays"' in form
    ]


def test_a_refused_part_is_replayed_once_by_a_double_click(
    admin: Admin, redis_client: redis.Redis
) -> None:
    ask(redis_client, "t1")
    end(redis_client, "t1", "甲", "乙")
    settle(redis_client, REFUSED)
    (form,) = replay_forms(admin.page("outbox"))
    del form["form_token"]
    assert form == {"user": "zhangsan", "replays": "0", "part": "t1:1"}
    first, second = admin.post("replay", **form), admin.post("replay", **form)
    assert first.location == "/admin/ui/outbox?said=replayed"
    assert second.location == "/admin/ui/outbox?said=not_replayed"
    assert redis_client.lrange(UserKeys(TAG).outbox, 0, -1) == [b"t1:1", b"t1:2"]
    assert tile(admin.page("outbox?said=replayed"), "refused") == "0"
    settle(redis_client, REFUSED)
    assert admin.post("replay", **form).location == "/admin/ui/outbox?said=not_replayed"
    (again,) = replay_forms(admin.page("outbox"))
    assert again["replays"] == "1"


def test_all_refused_parts_are_replayed_and_unknown_ones_are_not(
    admin: Admin, redis_client: redis.Redis
) -> None:
    ask(redis_client, "t1")
    end(redis_client, "t1", "甲", "乙", "丙")
    settle(redis_client, REFUSED)
    settle(redis_client, REFUSED)
    settle(redis_client, Outcome("unknown"))
    redis_client.ltrim(UserKeys(TAG).outbox, 1, 0)  # as if given up after four hours
    redis_client.zadd(keys.PROBLEM_PARTS, {keys.problem_part(TAG, "t1:3"): 1})
    page = admin.page("outbox")
    assert (tile(page, "refused"), tile(page, "given-up")) == ("2", "1")
    assert "重发全部被拒的" in page
    admin.post("replay", part="*")
    assert redis_client.lrange(UserKeys(TAG).outbox, 0, -1) == [b"t1:1", b"t1:2"]
    (form,) = replay_forms(admin.page("outbox"))
    assert form["part"] == "t1:3"
    assert admin.post("replay", user="zhangsan", part="t1:3", replays="0").location.endswith(
        "said=replayed"
    )


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"part": "t1:1"},
        {"part": "t1:1", "user": "lisi", "replays": "0"},
        {"part": "t1:1", "user": "zhangsan", "replays": "7"},
        {"part": "t1:2", "user": "zhangsan", "replays": "0"},
        {"part": "../x", "user": "*", "replays": "x"},
    ],
)
def test_an_odd_replay_does_nothing(
    admin: Admin, redis_client: redis.Redis, form: dict[str, str]
) -> None:
    ask(redis_client, "t1")
    end(redis_client, "t1", "甲", "乙")
    settle(redis_client, REFUSED)
    assert admin.post("replay", **form).location.endswith("said=not_replayed")
    part = Outbox(redis_client).read(TAG, "t1:1")
    assert part is not None
    assert part.state == "refused"


# --- users, engine ---

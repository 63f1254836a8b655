"""Pauses, limits and alerts of an app."""

from __future__ import annotations

import redis

from app.store import keys
from app.store.app_state import HELD, AppState
from tests.app.store.messages import tag_of

TAG = tag_of("zhang")


def test_pause_is_per_app(redis_client: redis.Redis) -> None:
    app = AppState(redis_client)
    app.pause(TAG, "errcode 60020", 30)
    assert app.paused(tag_of("li")) == "errcode 60020"
    assert app.paused("other:1:li") == ""


def test_an_alert_is_news_once_until_it_changes_or_is_mended(redis_client: redis.Redis) -> None:
    app = AppState(redis_client)
    assert app.raise_alert(TAG, 60020, "x", "203.0.113.7")
    assert not app.raise_alert(tag_of("li"), 60020, "x", "203.0.113.7")
    assert app.raise_alert(TAG, 60020, "x", "203.0.113.8")
    (alert,) = app.alerts().values()
    assert (alert.errcode, alert.allow_ip) == (60020, "203.0.113.8")
    assert alert.last_ms >= alert.since_ms > 0
    assert app.works(TAG)
    assert not app.works(TAG)
    assert app.alerts() == {}
    assert app.raise_alert(TAG, 60020, "x", "203.0.113.8")


def test_limits_in_a_row_are_counted(redis_client: redis.Redis) -> None:
    app = AppState(redis_client)
    assert [app.limited(TAG) for _ in range(3)] == [1, 2, 3]
    app.works(TAG)
    assert app.limited(TAG) == 1


def test_the_hold_of_an_administrator_outlives_pauses_and_probes(
    redis_client: redis.Redis,
) -> None:
    state, address = AppState(redis_client), keys.split_tag(TAG)
    corp_id, agent_id = address.corp_id, address.agent_id
    assert state.held_since_ms(corp_id, agent_id) == 0
    state.hold(corp_id, agent_id)
    since_ms = state.held_since_ms(corp_id, agent_id)
    assert since_ms > 0
    state.hold(corp_id, agent_id)
    assert state.held_since_ms(corp_id, agent_id) == since_ms
    state.pause(TAG, "errcode 60020", 30)
    assert state.paused(TAG) == HELD
    state.works(TAG)
    assert state.paused(TAG) == HELD
    assert redis_client.ttl(keys.send_hold(corp_id, agent_id)) == -1
    assert state.release(corp_id, agent_id)
    assert not state.release(corp_id, agent_id)
    assert state.paused(TAG) == "errcode 60020"

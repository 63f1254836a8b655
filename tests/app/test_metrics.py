"""Counting across processes, and what Prometheus reads of it."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import pytest
import redis
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from app import create_app, exposition, metrics
from app.metrics import METRICS, Metrics
from app.settings import Settings
from app.store import keys
from app.store.app_state import AppState
from app.store.presence import Presence
from app.store.server import RedisServer, connect
from tests.app.conftest import ADMIN_TOKEN
from tests.app.wecom.sealing import AGENT, CORP


def samples(client: redis.Redis) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape by name and labels."""
    families = text_string_to_metric_families(exposition.text(client, CORP, AGENT).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_two_processes_add_up(redis_client: redis.Redis) -> None:
    with Metrics(redis_client) as one, Metrics(redis_client) as two:
        one.count("hutong_callbacks", result="taken")
        two.count("hutong_callbacks", 2, result="taken")
        two.count("hutong_callbacks", result="stale")
    found = samples(redis_client)
    assert found["hutong_callbacks_total", (("result", "taken"),)] == 3
    assert found["hutong_callbacks_total", (("result", "stale"),)] == 1


def test_threads_lose_no_count(redis_client: redis.Redis) -> None:
    with Metrics(redis_client, flush_s=0.01) as counted:

        def work() -> None:
            for _ in range(500):
                counted.count("hutong_redeliveries")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert samples(redis_client)["hutong_redeliveries_total", ()] == 2000


def test_a_histogram_is_cumulative(redis_client: redis.Redis) -> None:
    with Metrics(redis_client) as counted:
        for value in (0.001, 0.01, 3.0, 99.0):
            counted.observe("hutong_callback_seconds", value)
    found = samples(redis_client)
    bucket = "hutong_callback_seconds_bucket"
    assert found[bucket, (("le", "0.005"),)] == 1
    assert found[bucket, (("le", "0.01"),)] == 2
    assert found[bucket, (("le", "5.0"),)] == 3
    assert found[bucket, (("le", "+Inf"),)] == 4
    assert found["hutong_callback_seconds_count", ()] == 4
    assert found["hutong_callback_seconds_sum", ()] == pytest.approx(102.011)


def test_counts_wait_while_redis_is_away(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "own") as server, connect(server.url, timeout_s=0.5) as client:
        counted = Metrics(client)
        counted.count("hutong_redeliveries")
        server.kill()
        counted.flush()
        assert samples(client) == {("hutong_redis_up", ()): 0}
        server.start()
        counted.count("hutong_redeliveries")
        counted.flush()
        assert samples(client)["hutong_redeliveries_total", ()] == 2


def test_wrong_labels_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        Metrics().count("hutong_callbacks", reason="x")
    with pytest.raises(AssertionError):
        Metrics().observe("hutong_callbacks", 1, result="x")


def test_unknown_series_of_another_version_are_ignored(redis_client: redis.Redis) -> None:
    redis_client.hset(keys.METRICS, '["hutong_gone",[],""]', "1")
    assert metrics.read(redis_client) == []


def test_processes_and_queue_are_gauges(redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.QUEUE, {"t1": 1000.0, "t2": 2000.0})
    with Presence(redis_client, "turns", lambda: {"expert_hit_rate": 0.5, "model": "m"}) as here:
        found = samples(redis_client)
    process = ("process", here.process_id)
    assert found["hutong_queue_depth", ()] == 2
    assert found["hutong_queue_oldest_seconds", ()] > 1e9
    assert found["hutong_processes", (("role", "turns"),)] == 1
    assert found["hutong_processes", (("role", "web"),)] == 0
    assert found["hutong_process_memory_bytes", (process, ("role", "turns"))] > 1_000_000
    assert found["hutong_expert_hit_rate", (process,)] == 0.5


def test_a_hold_of_an_administrator_is_seen(redis_client: redis.Redis) -> None:
    state = AppState(redis_client)
    name = ("hutong_sending_held_seconds", ())
    state.hold("another-corp", AGENT)
    assert samples(redis_client)[name] == 0
    redis_client.set(keys.send_hold(CORP, AGENT), int((time.time() - 90) * 1000))
    assert 89 < samples(redis_client)[name] < 1000
    state.release(CORP, AGENT)
    assert samples(redis_client)[name] == 0


def test_every_metric_has_its_help(redis_client: redis.Redis) -> None:
    text = exposition.text(redis_client, CORP, AGENT).decode()
    for metric in METRICS:
        assert f"# HELP {metric.name}" in text


def test_only_with_a_token(
    http: FlaskClient, configured: Settings, redis_client: redis.Redis
) -> None:
    assert http.get("/metrics").status_code == 401
    assert http.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    given = {"Authorization": f"Bearer {ADMIN_TOKEN}".encode().decode("latin-1")}
    answer = http.get("/metrics", headers=given)
    assert answer.status_code == 200
    assert b"hutong_redis_up 1.0" in answer.data
    closed = dataclasses.replace(configured, admin_token="", metrics_token="")
    unset = create_app(closed, redis_client).test_client()
    assert unset.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 401
    scraped = dataclasses.replace(configured, metrics_token="m")
    other = create_app(scraped, redis_client).test_client()
    assert other.get("/metrics", headers={"Authorization": "Bearer m"}).status_code == 200

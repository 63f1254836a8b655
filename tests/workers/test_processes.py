"""The real processes over a real broker: kill -9, SIGTERM, lost wakes, a restarted Redis."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from app.dispatch import Dispatcher, make_celery
from app.store.inbox import Inbox
from app.store.presence import alive
from app.store.server import RedisServer, connect
from app.store.turns import Turns
from tests.app.store.messages import AGENT_ID, CORP_ID, tag_of
from tests.workers.fakes import RUNS_KEY, wait_for
from tests.workers.test_turn import ask, bodies, command, turn_of
from workers import replies
from workers.sweeper import Sweeper, SweepTimes
from workers.turn import TurnLimits

ROOT = Path(__file__).parents[2]
TAG = tag_of("zhang")
TIMES = SweepTimes(interval_s=0.1, grace_s=0.5, again_empty_s=0.5, ack_after_s=3600)
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(redis_url: str) -> Iterator[Start]:
    """Starts processes of this test and ends what is left of them."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        known = {"REDIS_URL": redis_url, "HUTONG_MAX_NUM_SEQS": "2", **variables}
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, env={**os.environ, **known}
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@contextlib.contextmanager
def sweeping(url: str) -> Iterator[None]:
    """A sweeper in a thread, with short times."""
    stop = threading.Event()
    with connect(url) as client:
        sweeper = Sweeper(client, Dispatcher(make_celery(url)), TIMES)
        thread = threading.Thread(target=sweeper.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def runs(client: redis.Redis) -> list[str]:
    """Questions the fake agents were asked, in order."""
    return [item.decode() for item in client.lrange(RUNS_KEY, 0, -1)]


def test_wake_reaches_a_worker_and_presence_follows_its_life(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    process = start("tests.workers.fake_turn_worker")
    wait_for(lambda: alive(redis_client))
    ids = ask(redis_client, "一", "二", "三")
    assert Dispatcher(make_celery(redis_url)).wake(TAG)
    wait_for(lambda: turn_of(redis_client, ids[-1]).ended)
    assert bodies(redis_client) == ["答:一", "答:二", "答:三"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert alive(redis_client) == []


def test_kill_9_in_mid_turn_resumes_through_the_sweeper(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    victim = start("tests.workers.fake_turn_worker")
    ids = ask(redis_client, "slow:3", "二")
    with sweeping(redis_url):
        wait_for(lambda: runs(redis_client) == ["zhang slow:3"])
        victim.kill()
        victim.wait()
        assert not turn_of(redis_client, ids[0]).ended
        start("tests.workers.fake_turn_worker")
        wait_for(lambda: turn_of(redis_client, ids[1]).ended)
    assert [turn_of(redis_client, i).attempts for i in ids] == [2, 1]
    assert bodies(redis_client) == ["答:slow:3", "答:二"]


def test_a_message_that_kills_the_worker_is_parked_after_three_tries(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    ids = ask(redis_client, "crash", "二")
    with sweeping(redis_url):
        for _ in range(3):
            assert start("tests.workers.fake_turn_worker").wait(60) == -signal.SIGKILL
        start("tests.workers.fake_turn_worker")
        wait_for(lambda: turn_of(redis_client, ids[1]).ended)
    assert runs(redis_client) == ["zhang crash"] * 3 + ["zhang 二"]
    assert turn_of(redis_client, ids[0]).status == "parked"
    assert bodies(redis_client) == [replies.PARKED.format(turn_id=ids[0]), "答:二"]


def test_a_worker_stopped_beyond_its_lease_cannot_answer_twice(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    paused = start("tests.workers.fake_turn_worker")
    (turn_id,) = ask(redis_client, "slow:2")
    with sweeping(redis_url):
        wait_for(lambda: len(runs(redis_client)) == 1)
        paused.send_signal(signal.SIGSTOP)
        start("tests.workers.fake_turn_worker")
        wait_for(lambda: turn_of(redis_client, turn_id).ended)
        paused.send_signal(signal.SIGCONT)
        (after,) = ask(redis_client, "后来")
        wait_for(lambda: turn_of(redis_client, after).ended)
        paused.send_signal(signal.SIGTERM)
        assert paused.wait(20) == 0
    assert turn_of(redis_client, turn_id).attempts == 2
    assert bodies(redis_client) == ["答:slow:2", "答:后来"]


def test_a_turn_resumes_within_20_s_after_a_worker_is_ready(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    """With the times of production: lease, sweeper and broker as they are shipped."""
    real = {"TEST_LEASE_TTL_S": str(TurnLimits().lease_ttl_s)}
    start("workers", "sweeper", HUTONG_ACK_AFTER_S="3600")
    victim = start("tests.workers.fake_turn_worker", **real)
    wait_for(lambda: alive(redis_client))
    running, waiting = ask(redis_client, "slow:1", "二")
    wait_for(lambda: runs(redis_client))
    victim.kill()
    victim.wait()
    redis_client.delete(*redis_client.keys("hutong:process:turns:*"))
    start("tests.workers.fake_turn_worker", **real)
    wait_for(lambda: alive(redis_client))
    wait_for(lambda: turn_of(redis_client, running).ended, 20)
    wait_for(lambda: turn_of(redis_client, waiting).ended)
    assert bodies(redis_client) == ["答:slow:1", "答:二"]


def test_stop_frees_the_worker_for_the_next_message(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    start("tests.workers.fake_turn_worker", HUTONG_MAX_NUM_SEQS="1")
    wait_for(lambda: alive(redis_client))
    running, waiting = ask(redis_client, "slow:300", "二")
    Dispatcher(make_celery(redis_url)).wake(TAG)
    wait_for(lambda: runs(redis_client))
    assert command(redis_client, "stop", "已停止。").stopped == running
    wait_for(lambda: turn_of(redis_client, waiting).ended)
    assert bodies(redis_client) == ["已停止。", "答:二"]


def test_sigterm_finishes_the_turn_and_keeps_the_rest(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    process = start("tests.workers.fake_turn_worker")
    ids = ask(redis_client, "slow:2", "二")
    with sweeping(redis_url):
        wait_for(lambda: runs(redis_client))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert [turn_of(redis_client, i).status for i in ids] == ["done", "queued"]


def test_a_dead_engine_ends_the_process_with_a_status(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    process = start("tests.workers.fake_turn_worker")
    (turn_id,) = ask(redis_client, "engine")
    with sweeping(redis_url):
        assert process.wait(30) == 1
    assert turn_of(redis_client, turn_id).attempts == 1
    assert not turn_of(redis_client, turn_id).ended


def test_redis_killed_and_restarted_under_a_running_worker(tmp_path: Path, start: Start) -> None:
    server = RedisServer(tmp_path)
    url = server.start()
    try:
        with connect(url) as client:
            start("tests.workers.fake_turn_worker", REDIS_URL=url)
            ids = ask(client, "slow:2", *map(str, range(20)))
            with sweeping(url):
                wait_for(lambda: runs(client))
                server.kill()
                server.start()
                wait_for(lambda: all(turn_of(client, i).ended for i in ids), 60)
            assert bodies(client) == ["答:slow:2", *(f"答:{n}" for n in range(20))]
    finally:
        server.stop()


def test_sender_and_sweeper_processes_deliver_an_answer(
    redis_client: redis.Redis, start: Start
) -> None:
    sent: list[dict[str, object]] = []

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({"errcode": 0, "access_token": "a-token", "expires_in": 7200})

        def do_POST(self) -> None:
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._reply({"errcode": 0, "errmsg": "ok", "msgid": "m"})

        def _reply(self, answer: dict[str, object]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as api:
        thread = threading.Thread(target=api.serve_forever)
        thread.start()
        variables = {
            "WECOM_API_BASE": f"http://127.0.0.1:{api.server_port}",
            "WECOM_CORP_ID": CORP_ID,
            "WECOM_AGENT_ID": AGENT_ID,
            "WECOM_CORP_SECRET": "a-secret",
            "HUTONG_ACK_AFTER_S": "0.1",
        }
        sender = start("workers", "sender", **variables)
        sweeper = start("workers", "sweeper", **variables)
        # No wake is sent by anybody but the sweeper.
        (turn_id,) = ask(redis_client, "slow:2")
        wait_for(lambda: sent)
        start("tests.workers.fake_turn_worker")
        wait_for(lambda: len(sent) == 2)
        for process in (sender, sweeper):
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        api.shutdown()
        thread.join()
    texts = [message["text"]["content"] for message in sent]  # type: ignore[index]
    assert texts == [replies.ack(0), "答:slow:2"]
    assert {message["touser"] for message in sent} == {"zhang"}
    assert Turns(redis_client).get(turn_id) is not None
    names = b" ".join(redis_client.keys())
    assert b"a-secret" not in names
    assert b"a-token" not in names


def test_many_users_over_the_broker_are_answered_once_and_in_order(
    redis_url: str, redis_client: redis.Redis, start: Start
) -> None:
    for _ in range(2):
        start("tests.workers.fake_turn_worker")
    wait_for(lambda: len(alive(redis_client)) == 2)
    dispatcher = Dispatcher(make_celery(redis_url))
    for number in range(10):
        for user in range(20):
            ask(redis_client, str(number), user=f"u{user}")
            for _ in range(2):
                dispatcher.wake(tag_of(f"u{user}"))
    tags = [tag_of(f"u{n}") for n in range(20)]
    with sweeping(redis_url):
        wait_for(lambda: not any(Inbox(redis_client).pending(tags).values()))
    for user in range(20):
        assert bodies(redis_client, f"u{user}") == [f"答:{n}" for n in range(10)]
    assert len(runs(redis_client)) == 200


@pytest.mark.parametrize("command", ["turns", "sender", "sweeper"])
def test_missing_settings_are_named(command: str) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WECOM_", "REDIS_"))}
    done = subprocess.run(
        [sys.executable, "-m", "workers", command], cwd=ROOT, env=environ, capture_output=True
    )
    assert done.returncode == 2
    assert b"REDIS_URL" in done.stderr
    assert b"Traceback" not in done.stderr


def test_sender_and_sweeper_import_no_engine() -> None:
    code = (
        "import sys, workers.processes; print(*sorted({'torch', 'transformers'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.strip() == b""

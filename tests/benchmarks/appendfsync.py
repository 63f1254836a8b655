"""What Redis' ``appendfsync always`` costs beside ``everysec``: the store's own scripts, timed.

``python -m tests.benchmarks.appendfsync [--messages N] [--threads N] [--dir DIR]``; last line JSON
{policy: {put_s, put_p50_ms, put_p99_ms, turn_p50_ms, turn_p99_ms}}. ``put`` takes a message as the
web process does; ``turn`` is the rest of its life as workers write it (lease, begin, finish,
claim, settle). ``--dir`` chooses the disk: the figures are those of its fsync.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import redis

from app.store.inbox import Inbox
from app.store.keys import user_tag
from app.store.lease import Leases
from app.store.outbox import Outbox, Outcome
from app.store.server import RedisServer, connect
from app.store.turns import Finish, Turns
from app.wecom.message import InboundMessage

CORP_ID, AGENT_ID = "wwbenchmark", "1"
POLICIES: tuple[Literal["everysec", "always"], ...] = ("everysec", "always")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both policies one after the other on the same disk."""
    parser = argparse.ArgumentParser(description="cost of Redis' appendfsync")
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--dir", type=Path, default=None)
    given = parser.parse_args(argv)
    result = {}
    for policy in POLICIES:
        with (
            tempfile.TemporaryDirectory(dir=given.dir) as folder,
            RedisServer(Path(folder), appendfsync=policy) as server,
            connect(server.url) as client,
        ):
            result[policy] = _measure(client, given.messages, given.threads)
        print(policy, result[policy])
    print(json.dumps(result))
    return 0


def _measure(client: redis.Redis, messages: int, threads: int) -> dict[str, float]:
    inbox = Inbox(client)

    def put(number: int) -> None:
        message = InboundMessage(
            CORP_ID, AGENT_ID, f"u{number}", "text", str(number), 0, "分析华东区Q3销售TOP5产品"
        )
        inbox.put(message, f"t{number}")

    started = time.perf_counter()
    puts_ms = _timed(put, messages, threads)
    took_s = time.perf_counter() - started
    lives_ms = _timed(lambda number: _live(client, number), messages, threads)
    return {
        "put_s": round(messages / took_s),
        "put_p50_ms": _percentile(puts_ms, 0.5),
        "put_p99_ms": _percentile(puts_ms, 0.99),
        "turn_p50_ms": _percentile(lives_ms, 0.5),
        "turn_p99_ms": _percentile(lives_ms, 0.99),
    }


def _live(client: redis.Redis, number: int) -> None:
    """All that workers and senders write for one turn of one part."""
    tag, turn_id = user_tag(CORP_ID, AGENT_ID, f"u{number}"), f"t{number}"
    turns, outbox = Turns(client), Outbox(client)
    lease = Leases(client, "turn").acquire(tag)
    assert lease is not None
    turns.begin(lease, turn_id)
    answer = "华东区第三季度销售额最高的是…" * 20
    assert turns.finish(lease, turn_id, Finish("done", answer, (answer,), session_document="[]"))
    lease.release()
    sending = Leases(client, "send").acquire(tag)
    part = outbox.head(tag)
    assert sending is not None
    assert part is not None
    assert outbox.claim(sending, part).verdict == "claimed"
    assert outbox.settle(sending, part, Outcome("sent", msgid="m"))
    sending.release()


def _timed(work: Callable[[int], None], count: int, threads: int) -> list[float]:
    def one(number: int) -> float:
        begun = time.perf_counter()
        work(number)
        return (time.perf_counter() - begun) * 1000

    with ThreadPoolExecutor(threads) as pool:
        return sorted(pool.map(one, range(count)))


def _percentile(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


if __name__ == "__main__":
    sys.exit(main())

"""``make bench-callbacks``: 1,000 messages, each delivered three times, while no worker runs.

Then the worker comes back and 50 of them are answered by the model. Last line: JSON {sent,
turns, out_of_order, ack_p99_ms}; status 1 unless there are exactly 1,000 turns, each user's in
order, and 50 answers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import requests

from app.demo.local_http import local_session
from app.demo.processes import Processes
from app.demo.stack import Plan
from app.simulator.caller import Caller
from app.simulator.conversations import Conversations
from app.simulator.corp import EMPLOYEES, Corp
from app.store.inbox import Inbox
from app.store.keys import user_tag
from app.store.server import connect
from app.store.turns import Turns
from tests.benchmarks.stack import fresh_stack, questions

MESSAGES = 1_000
DELIVERIES = 3
ANSWERED = 50
ANSWER_LIMIT_S = 300.0


class Deliverer:
    """Posts callbacks and keeps the latency of each, in ms."""

    def __init__(self, plan: Plan) -> None:
        settings = plan.settings
        corp = Corp(
            settings.wecom_corp_id,
            int(settings.wecom_agent_id),
            settings.wecom_corp_secret,
            settings.wecom_token,
            settings.wecom_encoding_aes_key,
        )
        self._url = f"{plan.web_url}/wecom/callback"
        self._caller = Caller(corp, self._url, Conversations(time.time), time.time)
        self._local = threading.local()
        self._lock = threading.Lock()
        self.latencies_ms: list[float] = []
        self.refused = 0

    def message(self, user: str, text: str) -> bytes:
        """Plain XML of a text message with a new MsgId."""
        return self._caller.message_xml(user, {"Content": text}, kind="text")[1]

    def deliver(self, plain: bytes) -> None:
        """One POST with its own nonce, signature and ciphertext."""
        if not hasattr(self._local, "http"):
            self._local.http = local_session()
        http: requests.Session = self._local.http
        query, body = self._caller.envelope(plain)
        started = time.perf_counter()
        status = http.post(self._url, params=query, data=body, timeout=5).status_code
        took_ms = (time.perf_counter() - started) * 1000
        with self._lock:
            self.latencies_ms.append(took_ms)
            self.refused += status != 200

    def conversation(self, texts: list[str], user: str, seed: int) -> None:
        """One user's messages in order; the repeats of each come late and mixed."""
        chance = random.Random(seed)
        repeats: list[bytes] = []
        for text in texts:
            plain = self.message(user, text)
            self.deliver(plain)
            repeats += [plain] * (DELIVERIES - 1)
            chance.shuffle(repeats)
            while len(repeats) > 6:
                self.deliver(repeats.pop())
        for plain in repeats:
            self.deliver(plain)


def main() -> int:
    """Run, print the figures and the JSON line."""
    # A handful of employees stand for many: the limit per employee would refuse most of it.
    os.environ["HUTONG_USER_RATE_PER_MIN"] = "0"
    with fresh_stack() as (plan, processes):
        processes.end("turns")
        deliverer = Deliverer(plan)
        texts = _texts()
        with ThreadPoolExecutor(len(EMPLOYEES)) as pool:
            list(pool.map(deliverer.conversation, texts.values(), texts, range(len(texts))))
        turns, out_of_order = _count(plan, texts)
        p99 = sorted(deliverer.latencies_ms)[int(0.99 * len(deliverer.latencies_ms))]
        print(f"{len(deliverer.latencies_ms)} callbacks, {deliverer.refused} not answered with 200")
        processes.start("turns", "模型进程", [sys.executable, "-m", "workers", "turns"])
        answered = _wait_for_answers(plan, processes)
        print(f"{answered} answered by the model after its worker came back")
    result = {"sent": MESSAGES, "turns": turns, "out_of_order": out_of_order}
    print(json.dumps({**result, "ack_p99_ms": round(p99, 1)}))
    right = turns == MESSAGES and not out_of_order and answered >= ANSWERED
    return 0 if right and not deliverer.refused else 1


def _texts() -> dict[str, list[str]]:
    """Each user's messages: the benchmark questions over and over."""
    numbers = range(len(EMPLOYEES))
    asked = list(islice(cycle(questions()), MESSAGES))
    return {EMPLOYEES[i].user_id: asked[i :: len(EMPLOYEES)] for i in numbers}


def _count(plan: Plan, texts: dict[str, list[str]]) -> tuple[int, int]:
    """Queued turns, and turns that do not stand where their user wrote them."""
    total = out_of_order = 0
    with connect(plan.settings.redis_url) as client:
        inbox, turns = Inbox(client), Turns(client)
        for tag, wanted in zip(_tags(plan), texts.values(), strict=True):
            queued = [turns.read(tag, turn_id) for turn_id in inbox.pending([tag])[tag]]
            found = [turn.text for turn in queued if turn is not None]
            total += len(found)
            out_of_order += sum(a != b for a, b in zip(found, wanted, strict=False))
    return total, out_of_order


def _wait_for_answers(plan: Plan, processes: Processes) -> int:
    """Number of turns the model answered, once there are enough or time is up."""
    limit = time.monotonic() + ANSWER_LIMIT_S
    answered = 0
    with connect(plan.settings.redis_url) as client:
        turns = Turns(client)
        waiting = _all_turns(plan, Inbox(client))
        while answered < ANSWERED and time.monotonic() < limit:
            processes.check()
            time.sleep(0.2)
            found = [turns.read(tag, turn_id) for tag, turn_id in waiting]
            answered = sum(t is not None and t.status == "done" and bool(t.answer) for t in found)
    return answered


def _all_turns(plan: Plan, inbox: Inbox) -> list[tuple[str, str]]:
    """(tag, turn id) of the first messages of every user: those answered first."""
    pending = inbox.pending(_tags(plan))
    each = 2 * ANSWERED // len(pending)
    return [(tag, turn_id) for tag, ids in pending.items() for turn_id in ids[:each]]


def _tags(plan: Plan) -> list[str]:
    """The tag of every employee, in their order."""
    settings = plan.settings
    return [user_tag(settings.wecom_corp_id, settings.wecom_agent_id, e.user_id) for e in EMPLOYEES]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())

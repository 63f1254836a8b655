"""Employees who talk through the simulator's HTTP API, and what they get to see.

Owns the sending side of the ledger for a stack in containers. Knows no Docker.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from itertools import cycle, islice

import requests

from app.demo.local_http import local_session
from app.simulator.conversations import ChatMessage
from tests.chaos.driver import Said

PAUSE_S = 8.0
"""Between two messages of one employee: 7 a minute, well under what WeCom lets through to one."""


class Talk:
    """All employees ask, each their own questions in order, until ``stop``. A context manager."""

    def __init__(self, simulator_url: str, users: Sequence[str], questions: Sequence[str]) -> None:
        self._url = simulator_url
        self._users = users
        self._questions = questions
        self._lock = threading.Lock()
        self._states: dict[str, str] = {}
        self._bubbles: list[ChatMessage] = []
        self.failures: list[str] = []
        """Calls that the simulator counts as failed, oldest first."""
        self.said: list[Said] = []
        self.stop = threading.Event()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._speak, args=(index, user), name=f"talk-{user}")
            for index, user in enumerate(users)
        ]
        self._reader = threading.Thread(target=self._read, name="talk-reader", daemon=True)

    def __enter__(self) -> Talk:
        self._reader.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._closed.set()

    def end(self) -> None:
        """Nobody begins another message; returns when the last one is delivered or refused."""
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def bubbles(self) -> list[ChatMessage]:
        """What the app has shown to all employees so far, oldest first."""
        with self._lock:
            return list(self._bubbles)

    def _speak(self, index: int, user: str) -> None:
        start = index * 3
        mine = islice(cycle(self._questions), start, None)
        self.stop.wait(index * PAUSE_S / len(self._users))
        with local_session() as session:
            for number, text in enumerate(mine):
                if self.stop.is_set():
                    return
                said = Said(user, number, text)
                body = {"user": user, "text": text, "wait": True}
                answer = session.post(f"{self._url}/sim/messages", json=body, timeout=60)
                answer.raise_for_status()
                said.msg_id = answer.json()["msg_id"]
                said.acknowledged = said.in_order = self._delivered(said.msg_id)
                with self._lock:
                    self.said.append(said)
                self.stop.wait(PAUSE_S)

    def _delivered(self, msg_id: str) -> bool:
        """What the simulator says became of the callback; its stream may be a moment behind."""
        for _ in range(100):
            with self._lock:
                state = self._states.get(msg_id, "sending")
            if state != "sending":
                return state == "delivered"
            time.sleep(0.1)
        return False

    def _read(self) -> None:
        after = 0
        with local_session() as session:
            while not self._closed.is_set():
                try:
                    after = self._read_stream(session, after)
                except requests.RequestException:
                    self._closed.wait(0.5)

    def _read_stream(self, session: requests.Session, after: int) -> int:
        params = {"after": after}
        with session.get(
            f"{self._url}/sim/stream", params=params, stream=True, timeout=(5, 30)
        ) as answer:
            kind = ""
            for line in answer.iter_lines(chunk_size=1, decode_unicode=True):
                if self._closed.is_set():
                    break
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind != "boot":
                    event = json.loads(value)
                    after = event["seq"]
                    self._take(kind, event)
        return after

    def _take(self, kind: str, event: dict[str, object]) -> None:
        with self._lock:
            if kind == "delivery":
                self._states[str(event["msg_id"])] = str(event["state"])
            elif kind == "log" and not event["ok"]:
                self.failures.append(f"{event['time_s']:.1f} {event['title']}: {event['detail']}")
            elif kind == "message" and event["sender"] == "app":
                self._bubbles.append(ChatMessage(**event))  # type: ignore[arg-type]

"""The employees: who says what, in which order, and what the app answered to each callback.

Owns the sending side of the ledger. Every message is delivered one to four times.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from app.simulator.service import Simulator

THREADS = 16
MOST_COPIES = 4


@dataclass
class Said:
    """One message. ``acknowledged``: the app answered 200 to at least one delivery of it.

    ``in_order``: it was acknowledged before the user's next message was first delivered.
    """

    user: str
    number: int
    text: str
    msg_id: str = ""
    acknowledged: bool = False
    in_order: bool = False
    deliveries: int = 0


class Driver:
    """Lets all users talk at once, each waiting for the delivery of the last message."""

    def __init__(
        self,
        simulator: Simulator,
        texts: Sequence[Sequence[str]],
        seed: int,
        answered: Callable[[], int],
        most_open: int,
        held: Callable[[float], bool],
        most_copies: int = MOST_COPIES,
    ) -> None:
        """``texts`` has one list per employee; no more than ``most_open`` wait for an answer.

        ``held(progress)`` says whether the next message must wait for the disturbance. Every
        message is delivered at least once and, if it was taken, up to ``most_copies`` times.
        """
        self._simulator = simulator
        self._seed = seed
        self._answered = answered
        self._most_open = most_open
        self._held = held
        self._most_copies = most_copies
        employees = simulator.corp.employees
        self.said = [
            Said(employee.user_id, number, text)
            for employee, lines in zip(employees, texts, strict=True)
            for number, text in enumerate(lines)
        ]
        self._lock = threading.Lock()
        self._started = 0
        self.stop = threading.Event()

    @property
    def progress(self) -> float:
        """Share of the messages that were sent, 0 to 1."""
        return self._started / len(self.said)

    def run(self) -> None:
        """Say everything; returns when the last delivery has ended."""
        by_user: dict[str, list[Said]] = {}
        for said in self.said:
            by_user.setdefault(said.user, []).append(said)
        groups: list[list[list[Said]]] = [[] for _ in range(min(THREADS, len(by_user)))]
        for index, lines in enumerate(by_user.values()):
            groups[index % len(groups)].append(lines)
        with (
            ThreadPoolExecutor(THREADS, "copies") as copies,
            ThreadPoolExecutor(len(groups), "users") as users,
        ):
            talks = [
                users.submit(self._talk, group, random.Random(f"{self._seed}-{index}"), copies)
                for index, group in enumerate(groups)
            ]
            for talk in talks:
                talk.result()

    def _talk(
        self, group: list[list[Said]], chance: random.Random, copies: ThreadPoolExecutor
    ) -> None:
        """The users of one thread in a random mix, each user's lines in order."""
        waiting = [list(lines) for lines in group]
        while waiting and not self.stop.is_set():
            while self._held(self.progress) or self._started - self._answered() > self._most_open:
                if self.stop.wait(0.1):
                    return
            lines = chance.choice(waiting)
            said = lines.pop(0)
            if not lines:
                waiting.remove(lines)
            self._say(said, chance, copies)

    def _say(self, said: Said, chance: random.Random, copies: ThreadPoolExecutor) -> None:
        caller = self._simulator.caller
        with self._lock:
            self._started += 1
        said.msg_id, plain = caller.message_xml(said.user, {"Content": said.text}, kind="text")
        wanted = chance.randrange(1, self._most_copies + 1)
        late = chance.uniform(0, 3)
        at_once = chance.random() < 0.3
        if wanted > 1 and at_once:
            copies.submit(self._copy, said, plain, time.monotonic())
        delivery = caller.deliver(plain, title=f"{said.user} 的文本消息")
        said.deliveries += len(delivery.attempts)
        if delivery.acknowledged:
            said.acknowledged = said.in_order = True
        for _ in range(wanted - said.deliveries - int(at_once)):
            copies.submit(self._copy, said, plain, time.monotonic() + late)

    def _copy(self, said: Said, plain: bytes, due_s: float) -> None:
        """WeCom delivers again, though it may have been told 200."""
        time.sleep(max(0.0, due_s - time.monotonic()))
        caller = self._simulator.caller
        attempt, _ = caller.post(*caller.envelope(plain))
        with self._lock:
            said.deliveries += 1
        if attempt.status == 200:
            said.acknowledged = True

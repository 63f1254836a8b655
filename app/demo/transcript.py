"""Plays questions without a browser: sends them in the simulator, waits for the real answers.

An answer is what the turn of that very message put into the outbox and the simulator received;
an acknowledgement, a greeting or somebody else's message is not one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from app.demo.local_http import local_session
from app.simulator.corp import EMPLOYEES, Employee
from app.store.keys import UserKeys, user_tag
from app.store.outbox import Outbox
from app.store.turns import Turn, Turns
from app.wecom.message import InboundMessage

POLL_S = 0.05
ECHO_CHARACTERS = 80
_REASONS = {
    "failed": "没有得出能用的回答，原因见上面的回复",
    "timeout": "超过了时限",
    "cancelled": "被停止了",
    "parked": "试了几次都没有处理成功",
}


class UnknownUserError(Exception):
    """No employee of the demo company has this name or id."""


@dataclass(frozen=True)
class Exchange:
    """One question and what came back. ``problem`` is "" when an answer arrived.

    ``elapsed_s`` runs from the callback to the last bubble; ``turn_id`` is "" without a turn.
    """

    question: str
    replies: tuple[str, ...]
    elapsed_s: float
    problem: str = ""
    turn_id: str = ""


def find_employee(name: str) -> Employee:
    """By user id (any case) or by name. Raises ``UnknownUserError``."""
    for employee in EMPLOYEES:
        if name.lower() == employee.user_id.lower() or name == employee.name:
            return employee
    known = "、".join(f"{e.name}（{e.user_id}）" for e in EMPLOYEES)
    raise UnknownUserError(f"没有叫「{name}」的员工。可以用：{known}")


def shortened(text: str) -> str:
    """``text`` as one line of at most ``ECHO_CHARACTERS`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= ECHO_CHARACTERS else f"{line[: ECHO_CHARACTERS - 1]}…"


def without_trailing_spaces(text: str) -> str:
    """``text`` without white space at the ends of its lines and at its own end."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def why_failed(turn: Turn) -> str:
    """Why a turn that ended has no answer, in words."""
    reason = _REASONS.get(turn.error, "处理时出了错，请看 turns.log")
    return f"没有答出来：{reason}（编号 {turn.id}）"


class Player:
    """Asks as one employee. ``tick`` is called while waiting and may raise to end the wait."""

    def __init__(
        self,
        simulator_url: str,
        client: redis.Redis,
        *,
        corp_id: str,
        agent_id: str,
        employee: Employee,
        timeout_s: float,
        tick: Callable[[], None],
    ) -> None:
        self._url = simulator_url
        self._client = client
        self._corp_id = corp_id
        self._agent_id = agent_id
        self._employee = employee
        self._timeout_s = timeout_s
        self._tick = tick
        self._http = local_session()
        self._turns = Turns(client)
        self._outbox = Outbox(client)
        self._tag = user_tag(corp_id, agent_id, employee.user_id)

    def ask(self, question: str) -> Exchange:
        """Send ``question`` and wait for its answer, at most ``timeout_s``."""
        started_s = time.monotonic()
        sent = self._say(question)
        limit_s = started_s + self._timeout_s
        problem = "没有等到答案"
        while time.monotonic() < limit_s:
            self._tick()
            verdict = self._verdict(sent["msg_id"], sent["seq"])
            if verdict is not None:
                problem = verdict
                break
            time.sleep(POLL_S)
        replies = tuple(m["text"] for m in self._bubbles(sent["seq"]))
        elapsed_s = time.monotonic() - started_s
        return Exchange(question, replies, elapsed_s, problem, self._turn_id(sent["msg_id"]))

    def _verdict(self, msg_id: str, seq: int) -> str | None:
        """None: wait on. "": answered. Else why there will be no answer."""
        turn_id = self._turn_id(msg_id)
        turn = self._turns.get(turn_id) if turn_id else None
        if turn is None or not turn.ended:
            return None
        parts = self._outbox.of_turn(self._tag, turn.id)
        if any(part.state not in ("sent", "refused") for part in parts):
            return None
        refused = [part for part in parts if part.state == "refused"]
        if refused:
            return f"发送被拒：errcode {refused[0].errcode}"
        if not parts:
            return f"这次回答没有内容（编号 {turn.id}）"
        arrived = {m["msg_id"] for m in self._bubbles(seq)}
        if any(part.msgid not in arrived for part in parts):
            return None
        return "" if turn.status == "done" else why_failed(turn)

    def _turn_id(self, msg_id: str) -> str:
        message = InboundMessage(
            corp_id=self._corp_id,
            agent_id=self._agent_id,
            from_user_name=self._employee.user_id,
            msg_type="text",
            msg_id=msg_id,
            create_time_s=0,
        )
        found = self._client.get(UserKeys(self._tag).dedupe(message.dedupe_key))
        return found.decode() if isinstance(found, bytes) else ""

    def _say(self, text: str) -> dict[str, Any]:
        response = self._http.post(
            f"{self._url}/sim/messages",
            json={"user": self._employee.user_id, "text": text},
            timeout=10,
        )
        response.raise_for_status()
        sent: dict[str, Any] = response.json()
        return sent

    def _bubbles(self, after: int) -> list[dict[str, Any]]:
        response = self._http.get(
            f"{self._url}/sim/conversations/{self._employee.user_id}",
            params={"after": after},
            timeout=10,
        )
        response.raise_for_status()
        messages: list[dict[str, Any]] = response.json()["messages"]
        return [m for m in messages if m["sender"] == "app"]

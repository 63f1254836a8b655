"""The ledger sees every kind of breach: a run that finds nothing must have looked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.simulator.conversations import ChatMessage
from app.store.outbox import Part, State
from app.store.turns import Turn
from tests.chaos.driver import Said
from tests.chaos.ledger import Stored, check

TAG = "corp:1:u0000"


def said(number: int, user: str = "u0000", **fields: bool) -> Said:
    text = f"{user}m{number:04d}"
    known = {"acknowledged": True, "in_order": True} | fields
    return Said(user, number, text, msg_id=f"{user}-{number}", **known)


def body(number: int, line: int = 0, run: str = "aaaaaa", user: str = "u0000") -> str:
    return f"{user}m{number:04d}r{run}l{line:03d} 好"


def bubble(text: str, user: str = "u0000") -> ChatMessage:
    return ChatMessage(1, user, "app", "text", text, "m", 0.0)


def turn(number: int, turn_id: str = "") -> Turn:
    name = turn_id or f"t{number}"
    return Turn(name, TAG, "text", "", "done", msg_id=f"u0000-{number}", attempts=1)


def part(number: int, seq: int = 1, state: State = "sent", text: str = "") -> Part:
    return Part(
        *(f"t{number}:{seq}", f"t{number}", "answer", seq, 1, text or body(number, seq - 1)),
        *(state, 1, "m", 0, "", 0),
    )


def stored(turns: list[Turn], parts: list[Part]) -> dict[str, Stored]:
    return {"u0000": Stored({t.id: t for t in turns}, {p.id: p for p in parts})}


TWO = stored([turn(0), turn(1)], [part(0), part(1)])
BOTH = [said(0), said(1)]


def test_all_well() -> None:
    verdict = check(BOTH, [bubble(body(0)), bubble(body(1))], TWO)
    assert verdict.ok
    assert (verdict.unacknowledged, verdict.statuses["done"]) == (0, 2)


def test_an_answer_that_is_not_in_the_chat_is_lost() -> None:
    verdict = check(BOTH, [bubble(body(0))], TWO)
    assert (verdict.lost, verdict.parts_missing) == (1, 1)
    assert not verdict.ok


def test_an_acknowledged_message_without_a_turn_is_lost() -> None:
    verdict = check(BOTH, [bubble(body(0))], stored([turn(0)], [part(0)]))
    assert (verdict.lost, verdict.parts_missing) == (1, 0)


def test_a_turn_that_did_not_end_is_lost() -> None:
    running = replace(turn(0), status="running")
    assert check([said(0)], [], stored([running], [])).lost == 1


def test_an_unacknowledged_one_is_counted_apart() -> None:
    never = said(1, acknowledged=False, in_order=False)
    verdict = check([said(0), never], [bubble(body(0))], stored([turn(0)], [part(0)]))
    assert verdict.ok
    assert verdict.unacknowledged == 1


def test_half_an_answer_is_lost() -> None:
    halves = stored([turn(0)], [part(0, 1), part(0, 2, "pending")])
    assert check([said(0)], [bubble(body(0, 0))], halves).lost == 1


def test_two_turns_of_one_message_are_duplicates() -> None:
    twice = stored([turn(0), turn(0, "again")], [part(0)])
    assert check([said(0)], [bubble(body(0))], twice).duplicated == 1


def test_two_runs_in_the_chat_are_duplicates() -> None:
    other = part(0, 2, text=body(0, 0, "bbbbbb"))
    chat = [bubble(body(0)), bubble(body(0, 0, "bbbbbb"))]
    assert check([said(0)], chat, stored([turn(0)], [part(0), other])).duplicated == 1


def test_a_sent_part_shown_twice_is_repeated() -> None:
    chat = [bubble(body(0)), bubble(body(0)), bubble(body(1))]
    assert check(BOTH, chat, TWO).parts_repeated == 1


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_part_of_unknown_fate_may_be_there_once(times: int) -> None:
    unknown = stored([turn(0)], [part(0, state="unknown")])
    verdict = check([said(0)], [bubble(body(0))] * times, unknown)
    assert verdict.lost == (times == 0)
    assert verdict.parts_repeated == (times == 2)
    assert verdict.parts_unknown == 1


def test_answers_that_overtake_are_out_of_order() -> None:
    chat = [bubble(body(1)), bubble(body(0))]
    assert check(BOTH, chat, TWO).out_of_order == 1
    late = [said(0, in_order=False), said(1)]
    assert check(late, chat, TWO).out_of_order == 0, "it was acknowledged after the second"


def test_parts_of_one_answer_that_overtake_are_out_of_order() -> None:
    both = stored([turn(0)], [part(0, 1), part(0, 2)])
    chat = [bubble(body(0, 1)), bubble(body(0, 0))]
    assert check([said(0)], chat, both).out_of_order == 1


def test_an_answer_to_somebody_else_is_seen() -> None:
    chat = [bubble(body(0)), bubble(body(0, user="u0001"))]
    verdict = check([said(0)], chat, stored([turn(0)], [part(0)]))
    assert verdict.wrong_user == 1
    assert verdict.parts_repeated == 1

"""``make bench-demo``: 20 questions through the whole path, one after another, and their times.

The clock runs from the callback to the last bubble of the answer in the chat. Last line: JSON
{p50_s, p95_s}.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass

from app.demo.processes import Processes
from app.demo.stack import Plan
from app.demo.transcript import Exchange, Player, find_employee
from app.store.server import connect
from app.store.turns import Turn, Turns
from tests.benchmarks.stack import fresh_stack, questions

PARTS = ("queued", "model", "tools", "sent")


@dataclass(frozen=True)
class Timing:
    """Seconds of one answer. ``parts`` sum to ``total_s`` but for what lies between them."""

    question: str
    total_s: float
    parts: dict[str, float]
    tokens: int


def main() -> int:
    """Ask, print the table and the JSON line; status 1 when a question stayed unanswered."""
    with fresh_stack() as (plan, processes):
        exchanges, turns = _ask_all(plan, processes)
    timings = [_timing(e, t) for e, t in zip(exchanges, turns, strict=True) if t is not None]
    _print_table(timings)
    unanswered = [exchange for exchange in exchanges if exchange.problem]
    for exchange in unanswered:
        print(f"unanswered: {exchange.question}: {exchange.problem}")
    total = sorted(exchange.elapsed_s for exchange in exchanges)
    p95 = total[min(len(total) - 1, round(0.95 * (len(total) - 1)))]
    print(json.dumps({"p50_s": round(statistics.median(total), 3), "p95_s": round(p95, 3)}))
    return 1 if unanswered else 0


def _ask_all(plan: Plan, processes: Processes) -> tuple[list[Exchange], list[Turn | None]]:
    with connect(plan.settings.redis_url) as client:
        player = Player(
            plan.simulator_url,
            client,
            corp_id=plan.settings.wecom_corp_id,
            agent_id=plan.settings.wecom_agent_id,
            employee=find_employee("WangFang"),
            timeout_s=plan.settings.turn_timeout_s,
            tick=processes.check,
        )
        exchanges = [player.ask(question) for question in questions()]
        turns = Turns(client)
        return exchanges, [turns.get(e.turn_id) if e.turn_id else None for e in exchanges]


def _timing(exchange: Exchange, turn: Turn) -> Timing:
    steps = json.loads(turn.steps)

    def seconds(kind: str) -> float:
        return float(sum(s["duration_ms"] for s in steps if s["kind"] == kind)) / 1000

    worked_s = (turn.ended_ms - turn.started_ms) / 1000
    queued_s = (turn.started_ms - turn.created_ms) / 1000
    parts = {
        "queued": queued_s,
        "model": seconds("model"),
        "tools": seconds("tool"),
        "sent": max(0.0, exchange.elapsed_s - queued_s - worked_s),
    }
    tokens = sum(s["completion_tokens"] for s in steps if s["kind"] == "model")
    return Timing(exchange.question, exchange.elapsed_s, parts, tokens)


def _print_table(timings: list[Timing]) -> None:
    print(f"\n{'total':>7} {' '.join(f'{p:>7}' for p in PARTS)} {'tokens':>7}  question (seconds)")
    for timing in timings:
        parts = " ".join(f"{timing.parts[p]:7.3f}" for p in PARTS)
        print(f"{timing.total_s:7.3f} {parts} {timing.tokens:7d}  {timing.question}")
    if timings:
        mean = {p: statistics.fmean(t.parts[p] for t in timings) for p in PARTS}
        parts = " ".join(f"{mean[p]:7.3f}" for p in PARTS)
        total = statistics.fmean(t.total_s for t in timings)
        tokens = round(statistics.fmean(t.tokens for t in timings))
        print(f"{total:7.3f} {parts} {tokens:7d}  mean")


if __name__ == "__main__":
    sys.exit(main())

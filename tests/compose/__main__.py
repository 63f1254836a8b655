"""``python -m tests.compose`` (``make test-compose``): the composed stack, tried as a whole.

With a Docker engine: both images are built, the demo stack comes up, employees talk through the
simulator while containers are killed and the stack is upgraded and rolled back, and the ledger is
drawn up. Without one it says so and checks the files alone. Last line: JSON {engine, images,
startup_s, upgrade_s, rollback_s, messages, lost, duplicated, memory_mb, ...}; status 1 unless
every promise was kept.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from app.demo.local_http import local_session
from app.simulator.corp import EMPLOYEES
from app.store.inbox import Inbox
from app.store.keys import user_tag
from app.store.outbox import Outbox
from app.store.presence import reports
from app.store.server import connect
from tests.chaos.ledger import Verdict, check, read_store
from tests.compose import files
from tests.compose.stack import Stack, StackError, engine_runs
from tests.compose.talk import Talk

QUESTIONS = Path(__file__).parents[1] / "e2e" / "bench_questions.txt"
KILLED = ("web", "cpu-worker", "sender", "sweeper", "redis", "web2", "cpu-worker")
CALM_LIMIT_S = 600.0
MOST_MEMORY_MB = 1500.0
MOST_ROLLBACK_S = 180.0


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=__doc__)
    parser.add_argument("--keep", type=Path, help="keep deploy.sh's logs in this new folder")
    parser.add_argument("--no-kills", action="store_true", help="only upgrade and rollback")
    options = parser.parse_args(argv)
    # So that what was started is removed too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wrong = files.problems()
    for problem in wrong:
        print(f"! {problem}")
    print(
        f"files: {len(files.copy_paths())} COPY paths, {len(files.compose()['services'])} services"
    )
    if not engine_runs():
        print("There is no Docker engine here: the files were checked, nothing was built or run.")
        print(json.dumps({"engine": False, "problems": len(wrong)}))
        return 1 if wrong else 0
    with tempfile.TemporaryDirectory(prefix="hutong-compose-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with Stack(folder) as stack:
                figures, verdict = _try(stack, () if options.no_kills else KILLED)
        except StackError as error:
            print(f"! {error}", file=sys.stderr)
            return 1
    for example in verdict.examples:
        print(f"! {example}")
    print(json.dumps(figures, ensure_ascii=False))
    kept = verdict.ok and not wrong and figures["unacknowledged"] == 0
    small = sum(figures["memory_mb"].values()) <= MOST_MEMORY_MB
    return 0 if kept and small and figures["rollback_s"] <= MOST_ROLLBACK_S else 1


def _try(stack: Stack, killed: tuple[str, ...]) -> tuple[dict[str, Any], Verdict]:
    up = stack.deploy("up", "a")
    print(f"up: built in {up.build_s:.0f} s, started in {up.start_s:.1f} s", flush=True)
    _verify(stack)
    questions = [line for line in QUESTIONS.read_text("utf-8").splitlines() if line.strip()]
    users = [employee.user_id for employee in EMPLOYEES]
    with Talk(stack.simulator_url, users, questions) as talk:
        time.sleep(20)
        memory = stack.memory_mb()
        _print_processes(stack)
        for service in killed:
            back_s = stack.crash(service)
            healthy_s = stack.wait_healthy(service)
            print(f"kill -9 {service}: up {back_s:.1f} s later, healthy {healthy_s:.1f} s later")
            sys.stdout.flush()
            time.sleep(5)
        with stack.env_file.open("a", encoding="utf-8") as settings:
            settings.write("# a line of the second version\n")
        upgrade = stack.deploy("upgrade", "b")
        print(f"upgrade: built in {upgrade.build_s:.0f} s, replaced in {upgrade.start_s:.1f} s")
        sys.stdout.flush()
        time.sleep(10)
        back = stack.deploy("rollback")
        print(f"rollback: {back.start_s:.1f} s", flush=True)
        if "second version" in stack.env_file.read_text("utf-8"):
            raise StackError("the rollback did not bring the settings back")
        time.sleep(10)
        talk.end()
        calm_s = _calm(stack, users)
        print(f"calm {calm_s:.1f} s after the last message", flush=True)
        later = stack.memory_mb()
        memory = {name: max(used, later.get(name, 0.0)) for name, used in memory.items()}
        with connect(stack.redis_url, timeout_s=10) as client:
            verdict = check(talk.said, talk.bubbles(), read_store(client))
        for failure in talk.failures:
            print(f"failed: {failure}")
    print(f"turns: {dict(verdict.statuses)}, by attempts {dict(sorted(verdict.attempts.items()))}")
    figures = {
        "engine": True,
        "images": stack.images_mb(),
        "startup_s": round(up.start_s, 1),
        "upgrade_s": round(upgrade.start_s, 1),
        "rollback_s": round(back.start_s, 1),
        "kills": len(killed),
        "messages": len(talk.said),
        "lost": verdict.lost + verdict.parts_missing,
        "duplicated": verdict.duplicated + verdict.parts_repeated,
        "out_of_order": verdict.out_of_order,
        "unacknowledged": verdict.unacknowledged,
        "memory_mb": memory,
    }
    return figures, verdict


def _verify(stack: Stack) -> None:
    with local_session() as session:
        answer = session.post(f"{stack.simulator_url}/sim/verify", timeout=30).json()
    if not answer["ok"]:
        raise StackError(f"the callback URL is not verified: {answer['detail']}")
    print(f"callback URL verified in {answer['elapsed_ms']:.0f} ms")


def _print_processes(stack: Stack) -> None:
    with connect(stack.redis_url, timeout_s=10) as client:
        for report in sorted(reports(client), key=lambda report: report.role):
            print(f"  {report.role}: {report.rss_bytes / 1e6:.0f} MB resident")


def _calm(stack: Stack, users: list[str]) -> float:
    """Seconds until every inbox and outbox is empty."""
    values = dict(
        line.split("=", 1)
        for line in stack.env_file.read_text("utf-8").splitlines()
        if "=" in line and not line.startswith("#")
    )
    tags = [user_tag(values["WECOM_CORP_ID"], values["WECOM_AGENT_ID"], user) for user in users]
    started_s = time.monotonic()
    with connect(stack.redis_url, timeout_s=10) as client:
        while time.monotonic() - started_s < CALM_LIMIT_S:
            if _nothing_left(client, tags):
                break
            time.sleep(0.5)
    calm_s = time.monotonic() - started_s
    time.sleep(1)  # the simulator's stream may be a moment behind
    return calm_s


def _nothing_left(client: redis.Redis, tags: list[str]) -> bool:
    head: Callable[[str], object] = Outbox(client).head
    return not any(Inbox(client).pending(tags).values()) and all(head(tag) is None for tag in tags)


if __name__ == "__main__":
    sys.exit(main())

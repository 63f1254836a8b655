"""``python -m tests.chaos`` (``make chaos``): the delivery promises under kill -9.

10,000 messages of 200 users against a fake model, then, with ``--model FOLDER``, 200 messages
against a real one. Last line: JSON {messages, kills, lost, duplicated, out_of_order, wrong_user,
unacknowledged}; status 1 unless every promise was kept.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

from app.demo.stack import TODAY
from tests.chaos.disturbance import Intensity
from tests.chaos.run import Load, Report, fake_texts, run

QUESTIONS = Path(__file__).parents[1] / "e2e" / "bench_questions.txt"
FULL = Intensity(
    kills=6, stops=3, restarts=2, longest_stop_s=8.0, untrusted_s=3.0, frequency_blocks=2
)
WITH_MODEL = Intensity(kills=1, stops=1, restarts=1, longest_stop_s=12.0)


def main(argv: list[str] | None = None) -> int:
    """Run one or two phases; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="folder of the model for the second phase")
    parser.add_argument("--database", type=Path, default=Path("var/company.db"))
    parser.add_argument("--model-messages", type=int, default=200)
    parser.add_argument("--only-model", action="store_true", help="skip the first phase")
    parser.add_argument("--keep", type=Path, help="keep logs and Redis data in this new folder")
    options = parser.parse_args(argv)
    # So that what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reports = []
    with tempfile.TemporaryDirectory(prefix="hutong-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        if not options.only_model:
            reports.append(_fake_phase(options, folder / "fake"))
        if options.model:
            reports.append(_model_phase(options, folder / "model"))
    total = dict.fromkeys(reports[0].last_line(), 0)
    for report in reports:
        for name, value in report.last_line().items():
            total[name] += value
    print(json.dumps(total))
    return 0 if all(report.verdict.ok for report in reports) else 1


def _fake_phase(options: argparse.Namespace, folder: Path) -> Report:
    each = max(1, options.messages // options.users)
    folder.mkdir(parents=True)
    load = Load(
        fake_texts(options.users, each),
        ("-m", "tests.chaos.fake_model", str(folder)),
        FULL,
        seed=options.seed,
    )
    return _report("fake model", run(load, folder))


def _model_phase(options: argparse.Namespace, folder: Path) -> Report:
    database = options.database.resolve()
    if not database.exists():
        out = str(database.parent)
        subprocess.run([sys.executable, "-m", "tools.demo_company", "--out", out], check=True)
    users = 20
    questions = [line for line in QUESTIONS.read_text("utf-8").split("\n") if line.strip()]
    asked = list(islice(cycle(questions), options.model_messages))
    each = max(1, options.model_messages // users)
    texts = [asked[user * each : (user + 1) * each] for user in range(users)]
    load = Load(
        texts,
        ("-m", "workers", "turns"),
        WITH_MODEL,
        workers=1,
        seed=options.seed,
        most_open=40,
        calm_limit_s=1200.0,
        variables={
            "HUTONG_MODEL_DIR": str(options.model.resolve()),
            "HUTONG_SQL_DATABASE": str(database),
            "HUTONG_TODAY": TODAY,
        },
    )
    return _report("demo model", run(load, folder))


def _report(title: str, report: Report) -> Report:
    verdict = report.verdict
    print(
        f"{title}: {report.messages} messages, {report.deliveries} deliveries, "
        f"{report.faults} faults of WeCom, {report.kills} kills, "
        f"{report.restarted_by_themselves} ends by the model itself; "
        f"sent in {report.sending_s:.0f} s, calm after {report.calm_s:.0f} s more"
    )
    print(f"  disturbed: {json.dumps(report.disturbed, sort_keys=True)}")
    print(
        f"  turns: {dict(verdict.statuses)}, by attempts {dict(sorted(verdict.attempts.items()))}"
    )
    print(
        f"  parts missing {verdict.parts_missing}, repeated {verdict.parts_repeated}, "
        f"of unknown fate {verdict.parts_unknown}"
    )
    for example in verdict.examples:
        print(f"  ! {example}")
    sys.stdout.flush()
    return report


if __name__ == "__main__":
    sys.exit(main())

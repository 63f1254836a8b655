"""The command line ``python -m app web|demo|doctor|healthcheck|top|data|settings``.

Owns the arguments and exit statuses: 0 done, 2 wrong arguments or settings. Each subcommand
imports what it needs when it runs, so that ``settings`` works without anything installed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.store.presence import Role

_WITH_OWN_ARGUMENTS = ("demo", "data")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status."""
    from app.settings import SettingsError
    from app.wecom.errors import EncodingAESKeyError

    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command not in _WITH_OWN_ARGUMENTS:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if arguments.command == "web":
            return _web()
        if arguments.command == "demo":
            return int(importlib.import_module("app.demo").main(rest) or 0)
        if arguments.command == "data":
            return _data(rest)
        if arguments.command == "top":
            return _top(once=arguments.once, interval_s=arguments.interval)
        if arguments.command == "healthcheck":
            return _healthcheck(arguments.role)
        if arguments.command == "doctor":
            return _doctor(json=arguments.json)
        return _settings(env=arguments.env)
    except (SettingsError, EncodingAESKeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app", description="Hutong's gateway.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("web", help="run the web process (settings from the environment)")
    commands.add_parser(
        "demo", help="run everything on this machine, without a WeCom account", add_help=False
    )
    doctor = commands.add_parser("doctor", help="check everything and say what to mend")
    doctor.add_argument("--json", action="store_true", help="one line of JSON")
    health = commands.add_parser("healthcheck", help="does a process of this host do its work?")
    health.add_argument("role", choices=("web", "turns", "sender", "sweeper"))
    top = commands.add_parser("top", help="what happens now, in the terminal")
    top.add_argument("--once", action="store_true", help="one frame of plain text")
    top.add_argument("--interval", type=_interval, default=2.0, metavar="SECONDS")
    commands.add_parser(
        "data", help="export, delete, backup, restore: see data --help", add_help=False
    )
    settings = commands.add_parser("settings", help="print the settings")
    form = settings.add_mutually_exclusive_group(required=True)
    form.add_argument("--env", action="store_true", help="as deploy/.env.example")
    form.add_argument("--table", action="store_true", help="as the table of the README")
    return parser


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be between 0.1 and 3600")
    return seconds


def _web() -> int:
    from app import log, settings, web

    values = settings.load(os.environ)
    log.configure(values.log_level, log_message_text=values.log_message_text)
    return web.run(values)


def _doctor(*, json: bool) -> int:
    from app import doctor, settings

    return doctor.main(settings.load(os.environ), json=json)


def _data(argv: Sequence[str]) -> int:
    from app import data, settings

    return data.main(argv, settings.load(os.environ))


def _top(*, once: bool, interval_s: float) -> int:
    from app import settings, top

    return top.main(settings.load(os.environ), once=once, interval_s=interval_s)


def _healthcheck(role: Role) -> int:
    from app import healthcheck, settings

    return healthcheck.main(role, settings.load(os.environ))


def _settings(*, env: bool) -> int:
    from app import settings

    print(settings.env_example() if env else settings.markdown_table(), end="")
    return 0

"""``python -m workers turns|sender|sweeper``: one worker process, settings from the environment.

Owns the command line. Only ``turns`` imports the engine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from app import log
from app.settings import SettingsError, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process until SIGTERM; the exit status (2: wrong arguments or settings)."""
    parser = argparse.ArgumentParser(prog="python -m workers", description="Hutong's workers.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("turns", help="hold the model and answer messages")
    commands.add_parser("sender", help="send replies to WeCom; needs no torch")
    commands.add_parser("sweeper", help="repeat lost wakes and acknowledge slow answers")
    arguments = parser.parse_args(argv)
    try:
        settings = load(os.environ)
        log.configure(settings.log_level, log_message_text=settings.log_message_text)
        settings.require("REDIS_URL")
        from workers import processes

        if arguments.command == "sender":
            return processes.serve_sender(settings)
        if arguments.command == "sweeper":
            return processes.serve_sweeper(settings)
        from workers.wiring import build_agent

        return processes.serve_turns(settings, build_agent)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

"""Asks another program of ours, in a process of its own: the gateway does not import it.

Owns the running of ``python -m MODULE`` and the reading of the JSON line it ends with.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class NoAnswerError(Exception):
    """It printed no JSON, or could not be started."""


def last_json(*arguments: str, timeout_s: float) -> dict[str, Any]:
    """What ``python -m ARGUMENTS`` prints last, whatever its exit status.

    Raises ``NoAnswerError``, or ``TimeoutError`` when it had not ended in time.
    """
    command = [sys.executable, "-m", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        record: dict[str, Any] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(str(error)) from error
    except (ValueError, IndexError, OSError) as error:
        raise NoAnswerError(str(error)) from error
    return record

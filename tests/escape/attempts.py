"""Code that tries to do harm, one way each. An attempt that only finds a door has not escaped.

Placeholders, filled in by ``traps``: @CANARY@ a file to read, @TARGET@ a file to make, @FOLDER@
their folder, @TCP@ @UDP@ ports and @UNIX@ @ABSTRACT@ sockets of a listener, @PARENT@ the pid of
the process that asks. Stolen text is printed. Secrets start with ``hutong-secret-``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.escape.attempts_code import CODE_ATTEMPTS
from tests.escape.attempts_files import FILE_ATTEMPTS
from tests.escape.attempts_kernel import KERNEL_ATTEMPTS
from tests.escape.attempts_processes import PROCESS_ATTEMPTS


@dataclass(frozen=True)
class Attempt:
    """``control``: harmless enough to run without protection, to show that the trap works."""

    name: str
    code: str
    control: bool = False


def _split(text: str) -> list[Attempt]:
    attempts = []
    for block in text.split("\n### ")[1:]:
        title, _, code = block.partition("\n")
        name, _, mark = title.partition(" ")
        attempts.append(Attempt(name, code.rstrip() + "\n", mark == "control"))
    return attempts


ATTEMPTS = tuple(
    attempt
    for text in (CODE_ATTEMPTS, FILE_ATTEMPTS, PROCESS_ATTEMPTS, KERNEL_ATTEMPTS)
    for attempt in _split(text)
)

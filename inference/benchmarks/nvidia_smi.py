"""What ``nvidia-smi`` knows of the first card and CUDA does not: driver, free memory, PCIe.

Owns the command and the reading of its answer. Makes no CUDA context.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from inference.config import MIB

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class PcieState:
    """The link at this moment (an idle card slows it down) and the most both ends can do.

    0 where the system does not tell, as in many virtual machines.
    """

    generation: int = 0
    width: int = 0
    max_generation: int = 0
    max_width: int = 0


def first_card() -> str:
    """The card that CUDA shows first, by its number or UUID: ``CUDA_VISIBLE_DEVICES`` hides
    cards from CUDA but not from NVML."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def driver_version() -> str:
    """Version of the driver; "" when nvidia-smi does not answer."""
    return _query("driver_version")[0]


def free_bytes() -> int | None:
    """Free memory of the card; ``None`` when nvidia-smi does not answer."""
    mib = _query("memory.free")[0]
    return int(mib) * MIB if mib.isdigit() else None


def pcie_state() -> PcieState:
    """The link as it is now."""
    ends = ("gen.current", "width.current", "gen.max", "width.max")
    values = _query(*(f"pcie.link.{end}" for end in ends))
    return PcieState(*(int(value) if value.isdigit() else 0 for value in values))


def rows(query: str) -> list[list[str]]:
    """The answer for the first card, such as to ``--query-gpu=memory.used``, in the command's own
    units. Raises ``OSError`` or ``subprocess.SubprocessError``."""
    command = ["nvidia-smi", f"--id={first_card()}", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    lines = done.stdout.splitlines()
    return [[value.strip() for value in line.split(",")] for line in lines if line.strip()]


def _query(*fields: str) -> list[str]:
    try:
        found = rows(f"--query-gpu={','.join(fields)}")
    except (OSError, subprocess.SubprocessError):
        found = []
    return found[0] if found else [""] * len(fields)

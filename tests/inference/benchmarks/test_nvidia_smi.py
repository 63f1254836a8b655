from __future__ import annotations

from pathlib import Path

import pytest

from inference.benchmarks import nvidia_smi
from inference.benchmarks.nvidia_smi import PcieState
from inference.config import MIB

SCRIPT = """#!/bin/sh
case "$*" in
    *--id={card}*driver_version*) echo 580.95.05 ;;
    *--id={card}*memory.free*) echo 5321 ;;
    *--id={card}*pcie.link.gen.current,pcie.link.width.current,pcie.link.gen.max,*) echo "{pcie}" ;;
    *) exit 6 ;;
esac
"""


def installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, card: str = "0", pcie: str = "3, 8, 4, 16"
) -> None:
    """A command that answers for ``card`` as nvidia-smi does, first on PATH."""
    command = folder / "nvidia-smi"
    command.write_text(SCRIPT.format(card=card, pcie=pcie))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_it_reads_what_the_command_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert nvidia_smi.driver_version() == "580.95.05"
    assert nvidia_smi.free_bytes() == 5321 * MIB
    assert nvidia_smi.pcie_state() == PcieState(3, 8, 4, 16)


def test_it_asks_for_the_card_that_cuda_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, card="GPU-7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7,GPU-2")
    assert nvidia_smi.driver_version() == "580.95.05"


def test_what_a_virtual_machine_does_not_tell_is_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, pcie="[N/A], [N/A], 5, 16")
    assert nvidia_smi.pcie_state() == PcieState(0, 0, 5, 16)


def test_without_the_command_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.driver_version() == ""
    assert nvidia_smi.free_bytes() is None
    assert nvidia_smi.pcie_state() == PcieState()

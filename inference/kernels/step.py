"""The gate in front of a step: launched early, it waits on the device for the host's inputs.

Owns the words that host and device share (tickets, the release, the withdrawal), the launches of
``step.cu``, and the list of those who may have a step waiting. Knows nothing of what a step does.

Tickets count the launches of gates, on both sides. The host writes the inputs, then releases the
ticket; the kernel acquires the release (``ld.acquire.sys``) and then reads the inputs. The order
of the host's two writes: x86 keeps the order of stores; elsewhere the release of one lock and the
acquisition of another lie between them, which no earlier store passes. The release itself is one
aligned 32-bit store.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference.kernels.library import KernelLibrary

SOURCE = "step.cu"
THREADS = 512
TIMEOUT_S = 0.2
"""How long a step waits for its inputs; far below the 2 s after which a desktop resets a GPU."""

# The host's words, and the device's on cache lines of their own; a ring where tickets may overlap.
_RELEASED, _WITHDRAWN, _PADDED, _WORDS, _RING = 0, 16, 32, 64, 8


class StepGate:
    """Tickets of the steps of one launcher. Releases and withdrawals may come from any thread."""

    def __init__(self, device: torch.device, *, timeout_s: float = TIMEOUT_S) -> None:
        on_gpu = device.type == "cuda"
        self.control = torch.zeros(_WORDS, dtype=torch.int32, pin_memory=on_gpu)
        self.tickets = torch.zeros(1, dtype=torch.int32, device=device)
        self.timeout_us = int(timeout_s * 1e6)
        self._words = (ctypes.c_uint32 * _WORDS).from_address(self.control.data_ptr())
        self._fence = threading.Lock()
        self._order = threading.Lock()
        self._last = 0

    def take(self) -> int:
        """The ticket of the launch that follows; every launch of a gate takes one."""
        self._last = (self._last + 1) & 0xFFFFFFFF
        return self._last

    def recount(self) -> None:
        """Ask the device for its last ticket, after a launch that failed half-way."""
        self._last = int(self.tickets.item()) & 0xFFFFFFFF

    def release(self, ticket: int) -> None:
        """Let the step run on what was written before this call."""
        with self._fence:
            pass
        with self._order:
            self._words[_RELEASED] = ticket

    def withdraw(self, ticket: int) -> None:
        """Let the step run with padding rows only."""
        with self._order:
            self._words[_WITHDRAWN + ticket % _RING] = ticket
        with self._fence:
            pass
        with self._order:
            self._words[_RELEASED] = ticket

    def ran_padded(self, ticket: int) -> bool:
        """Whether the step of ``ticket`` runs or ran as padding: withdrawn, or waited too long."""
        return bool(self._words[_PADDED + ticket % _RING] == ticket)

    @property
    def padded(self) -> Tensor:
        """The words in which the device leaves tickets, int32 [8]."""
        return self.control[_PADDED : _PADDED + _RING]


@dataclass(frozen=True)
class GateTensors:
    """What a gate copies. ``host_inputs`` int32 [batch * (3 + pages) + 1], ``inputs`` one less;
    ``host_masks``, ``masks`` int32 [batch, words]; ``logits``, ``kept`` fp32 [batch, vocab]."""

    host_inputs: Tensor
    inputs: Tensor
    host_masks: Tensor
    masks: Tensor
    logits: Tensor
    kept: Tensor


def await_inputs(library: KernelLibrary, gate: StepGate, tensors: GateTensors) -> None:
    """Launch the gate. What follows it must be launched with ``pdl=False``.

    Raises ``ValueError`` for tensors that do not fit each other.
    """
    batch, mask_words = tensors.masks.shape
    size = tensors.inputs.numel()
    if size % batch or tensors.host_inputs.numel() != size + 1:
        raise ValueError(f"{tensors.host_inputs.numel()} inputs for {batch} rows of {size}")
    if tensors.host_masks.shape != tensors.masks.shape:
        raise ValueError("the masks of host and device differ in shape")
    if tensors.kept.shape != tensors.logits.shape or len(tensors.kept) != batch:
        raise ValueError("the logits and their copy differ in shape")
    library.launch(
        SOURCE,
        "await_inputs",
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        args=[
            *(gate.control, gate.padded, gate.tickets, tensors.host_inputs, tensors.inputs),
            *(tensors.host_masks, tensors.masks, tensors.logits, tensors.kept),
            *(batch, size // batch - 3, mask_words, tensors.logits.shape[1], gate.timeout_us),
        ],
        pdl=False,
    )


def publish(
    library: KernelLibrary, positions: Tensor, candidates: Tensor, host_candidates: Tensor
) -> None:
    """Copy ``candidates`` int32 to pinned memory of the same shape if row 0 is a sequence."""
    if candidates.shape != host_candidates.shape:
        raise ValueError("the candidates of host and device differ in shape")
    library.launch(
        SOURCE,
        "publish",
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        args=[positions, candidates, host_candidates, candidates.numel()],
    )


_launchers: list[tuple[torch.device, weakref.WeakMethod[Callable[[], None]]]] = []
_launchers_lock = threading.Lock()


def register(device: torch.device, withdraw: Any) -> None:
    """Remember the bound method that withdraws somebody's waiting step, as long as he lives."""
    with _launchers_lock:
        _launchers[:] = [entry for entry in _launchers if entry[1]() is not None]
        _launchers.append((device, weakref.WeakMethod(withdraw)))


def withdraw_waiting(device: torch.device) -> None:
    """Withdraw every step that waits on ``device``: work queued from now on runs soon.

    To be called before anything is queued that does not come from the launcher itself. What is
    queued without this call comes behind the waiting step: late, but in order.
    """
    with _launchers_lock:
        known = [method() for where, method in _launchers if where == device]
    for withdraw in known:
        if withdraw is not None:
            withdraw()

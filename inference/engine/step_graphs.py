"""When decode steps are launched: as CUDA graphs, and each one while the one before still runs.

A launch costs the host up to half a millisecond. So after a step is launched, the next one of the
same batch size is launched behind it; its first kernel waits for inputs (``kernels/step.py``). The
host hears of the step's end by an event between the two. When something else is to run first, the
waiting step is withdrawn: it runs with padding rows and changes nothing but scratch memory.

Owns graphs, tickets and the order of launches. Without CUDA a launch is put off until its release
instead, so that every order of events is the same. Knows nothing of tokens or sampling.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.decode_graph import DecodeStep, Parts
from inference.kernels.step import (
    TIMEOUT_S,
    GateTensors,
    StepGate,
    await_inputs,
    publish,
    register,
    withdraw_waiting,
)

_WARM_UP_RUNS = 2
_EVENTS = 4  # more than launches that anybody waits for
_Graphs = dict[tuple[int, Parts, bool], torch.cuda.CUDAGraph]


@dataclass(frozen=True)
class _Launch:
    """A step on its way; ``end`` is None without CUDA."""

    ticket: int
    batch: int
    end: torch.cuda.Event | None

    def wait(self) -> None:
        """Wait until it is done."""
        if self.end is not None:
            self.end.synchronize()


@dataclass
class _Flight:
    """What must outlive a launcher while its last step waits."""

    gate: StepGate
    step: DecodeStep
    graphs: _Graphs
    kept: Tensor
    waiting: _Launch | None = None


class DecodeGraphs:
    """Launches steps: as captured graphs on a GPU, eagerly elsewhere or before ``capture``.

    A graph holds the gate, the kernels and the hand-over of the candidates; a loop's graph holds
    the kernels and the feedback of the greedy tokens instead. One thread launches; any thread may
    withdraw.
    """

    def __init__(
        self, step: DecodeStep, *, early_launch: bool = True, timeout_s: float = TIMEOUT_S
    ) -> None:
        device = step.library.device
        self._step = step
        self._device = device
        self._early = early_launch
        self._on_gpu = device.type == "cuda"
        self._graphs: _Graphs = {}
        self._pool = torch.cuda.graph_pool_handle() if self._on_gpu else None
        self._side = torch.cuda.Stream(device) if self._on_gpu else None
        self._ends = [torch.cuda.Event() for _ in range(_EVENTS)] if self._on_gpu else []
        # Logits of the last step, if a step of padding overwrote them.
        kept = torch.zeros(step.logits.shape, pin_memory=self._on_gpu)
        self._flight = _Flight(StepGate(device, timeout_s=timeout_s), step, self._graphs, kept)
        self._lock = threading.Lock()
        self._withdrawn: _Launch | None = None
        self._last_batch = 0
        register(device, self.withdraw)
        weakref.finalize(self, _abandon, self._flight)

    @property
    def waiting(self) -> bool:
        """Whether a step is launched that waits for its inputs."""
        return self._flight.waiting is not None

    def capture(self, parts: Parts = "all", *, loop: bool = False) -> None:
        """Capture one graph per batch size; warm-up runs see padding rows only.

        No effect without CUDA. Raises ``torch.OutOfMemoryError``.
        """
        if not self._on_gpu:
            return
        withdraw_waiting(self._device)
        for batch in reversed(self._step.sizes):
            key = (batch, parts, loop)
            if key in self._graphs:
                continue
            inputs = self._step.inputs[batch]
            inputs.clear()
            side = torch.cuda.Stream(self._device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                inputs.upload()
                for _ in range(_WARM_UP_RUNS):
                    if not loop:
                        self._flight.gate.release(self._flight.gate.take())
                    self._run(*key)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=side):
                self._run(*key)
            self._graphs[key] = graph

    def run(self, batch: int) -> None:
        """One step over ``inputs[batch]`` of the step, written before; waits for its end."""
        gate = self._flight.gate
        while True:
            launch = self._start(batch)
            self._launch_early(batch)
            launch.wait()
            if not gate.ran_padded(launch.ticket):
                return
            # It gave up in the moment of its release and changed nothing: once more.

    def run_loop(self, batch: int, parts: Parts, num_steps: int) -> None:
        """``num_steps`` greedy steps that begin with ``inputs[batch]``; waits for their end."""
        withdraw_waiting(self._device)
        self._step.inputs[batch].upload()
        graph = self._graphs.get((batch, parts, True))
        for _ in range(num_steps):
            if graph is None:
                self._run(batch, parts, True)
            else:
                graph.replay()
        self.wait()

    def wait(self) -> None:
        """Wait for everything queued, a prefill say; its logits are those of ``row`` now."""
        withdraw_waiting(self._device)
        if self._on_gpu:
            torch.cuda.current_stream(self._device).synchronize()
        self._withdrawn = None

    def row(self, row: int) -> Tensor:
        """All logits of one row of the last step, fp32 [vocab_size] on the host, a copy."""
        flight = self._flight
        waiting = flight.waiting
        if self._withdrawn is None:
            # A stream of its own: the current one may hold a step that waits.
            with torch.cuda.stream(self._side) if self._side else contextlib.nullcontext():
                copy = self._step.logits[row].to("cpu", copy=True)
            waiting = waiting or flight.waiting
            intact = waiting is None or not flight.gate.ran_padded(waiting.ticket)
            if intact and self._withdrawn is None:
                return copy
        padded = self._withdrawn or waiting
        assert padded is not None
        padded.wait()
        return flight.kept[row].clone()

    def withdraw(self) -> None:
        """Let the step that waits, if any, run as padding; does not wait for it."""
        with self._lock:
            self._last_batch = 0
            launch, self._flight.waiting = self._flight.waiting, None
            if launch is None:
                return
            self._withdrawn = launch
            self._flight.gate.withdraw(launch.ticket)
            if not (self._on_gpu or self._flight.gate.ran_padded(launch.ticket)):
                self._submit(launch.batch)

    def _start(self, batch: int) -> _Launch:
        """Release the step that waits, if it is of this batch size, or launch one."""
        flight = self._flight
        with self._lock:
            launch = flight.waiting
            if (
                launch is not None
                and launch.batch == batch
                and not flight.gate.ran_padded(launch.ticket)
            ):
                flight.waiting = self._withdrawn = None
                flight.gate.release(launch.ticket)
                if not self._on_gpu:
                    self._submit(batch)
                return launch
        last = self._last_batch
        withdraw_waiting(self._device)
        self._last_batch = last
        self._withdrawn = None
        ticket = flight.gate.take()
        flight.gate.release(ticket)
        return self._launch(ticket, batch)

    def _launch_early(self, batch: int) -> None:
        """Launch the next step of this batch size if the last one was of that size, too."""
        again, self._last_batch = self._last_batch == batch, batch
        captured = not self._on_gpu or (batch, "all", False) in self._graphs
        if not (self._early and again and captured) or self.waiting:
            return
        ticket = self._flight.gate.take()
        # Without CUDA it is put off until its release.
        launch = self._launch(ticket, batch) if self._on_gpu else _Launch(ticket, batch, None)
        with self._lock:
            self._flight.waiting = launch

    def _launch(self, ticket: int, batch: int) -> _Launch:
        self._submit(batch)
        if not self._on_gpu:
            return _Launch(ticket, batch, None)
        end = self._ends[ticket % _EVENTS]
        end.record(torch.cuda.current_stream(self._device))
        return _Launch(ticket, batch, end)

    def _submit(self, batch: int) -> None:
        """Queue one step behind its gate."""
        graph = self._graphs.get((batch, "all", False))
        try:
            if graph is None:
                self._run(batch, "all", False)
            else:
                graph.replay()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # nothing helps when CUDA itself has failed
                self._flight.gate.recount()
            raise

    def _run(self, batch: int, parts: Parts, loop: bool) -> None:
        """Queue the kernels of one step."""
        step = self._step
        inputs, outputs = step.inputs[batch], step.outputs[batch]
        if loop:
            step.run(batch, parts)
            step.feed_back(batch)
            return
        tensors = GateTensors(
            host_inputs=inputs.host,
            inputs=inputs.device,
            host_masks=step.host_masks[:batch],
            masks=step.mask_bits[:batch],
            logits=step.logits[:batch],
            kept=self._flight.kept[:batch],
        )
        await_inputs(step.library, self._flight.gate, tensors)
        step.run(batch, parts)
        publish(step.library, inputs.positions, outputs.device, outputs.host)


def _abandon(flight: _Flight) -> None:
    """End the step that waits before the memory it reads goes away."""
    launch, flight.waiting = flight.waiting, None
    if launch is None:
        return
    flight.gate.withdraw(launch.ticket)
    with contextlib.suppress(RuntimeError):  # CUDA may be gone at the end of the process
        launch.wait()

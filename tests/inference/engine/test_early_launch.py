"""Steps launched before their inputs exist: they never change a bit, whatever comes in between.

Over emulated kernels a launch is put off until its release, so that the order of events, what is
withdrawn and what padding leaves alone are those of a GPU; that a waiting graph really waits and
gives up can only be seen on a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.gpu_runner import GpuModelRunner
from inference.engine.logits import DeviceLogits
from inference.kernels.cuda_kernels import CudaKernels
from inference.kernels.library import KernelLibrary
from inference.kernels.step import withdraw_waiting
from inference.moe.router_counters import RouterCounters
from tests.inference.conftest import TINY
from tests.inference.engine.gpu_models import greedy_run, new_runner, prompt_of

WORDS = -(-TINY.vocab_size // 32)


class Session:
    """A runner with some sequences of which the last token is known."""

    def __init__(self, folder: Path, library: KernelLibrary, count: int = 1, **options: Any):
        self.runner = new_runner(folder, library, slots=3, **options)
        if library.device.type == "cuda":
            self.runner.warm_up()
        self.slots = [self.runner.kv_cache.allocate() for _ in range(count)]
        self.tokens: list[int] = []
        self.positions: list[int] = []
        for index, slot in enumerate(self.slots):
            prompt = prompt_of(6 + index, seed=index)
            self.tokens.append(best(self.runner.prefill(prompt, slot, 0)))
            self.positions.append(len(prompt))

    def step(
        self, count: int | None = None, masks: list[torch.Tensor | None] | None = None
    ) -> list[DeviceLogits]:
        """Decode the first ``count`` sequences by one token."""
        some = slice(0, count)
        rows = self.runner.decode(self.tokens[some], self.slots[some], self.positions[some], masks)
        for index, row in enumerate(rows):
            self.tokens[index] = best(row)
            self.positions[index] += 1
        return rows

    @property
    def waiting(self) -> bool:
        return self.runner.graphs.waiting


def best(logits: DeviceLogits) -> int:
    assert logits.candidates is not None
    return int(logits.candidates.ids[0])


def state_of(runner: GpuModelRunner) -> dict[str, torch.Tensor]:
    """Everything that a step leaves to later ones, without times."""
    tables, cache, step = runner.slots.tables, runner.kv_cache, runner._step
    state = {"history": step.history, "masks": step.mask_bits, "uses": tables.uses}
    for name in ("slot_of", "expert_of", "addresses", "frequency", "combinations", "steps", "pool"):
        state[name] = getattr(tables, name)
    state["counters"] = tables.counters[:14]
    for layer, pages in cache.kv_layers.items():
        state[f"keys {layer}"], state[f"values {layer}"] = pages.keys, pages.values
    for layer, recurrent in cache.recurrent_layers.items():
        state[f"conv {layer}"] = recurrent.conv
        state[f"recurrent {layer}"] = recurrent.recurrent
    return {name: part.cpu().clone() for name, part in state.items()}


def side_stream(runner: GpuModelRunner) -> AbstractContextManager[Any]:
    if runner.kv_cache.device.type == "cpu":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream())


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different


@pytest.fixture
def hybrid(tiny_hybrid_dir: Path, kernels: KernelLibrary) -> Iterator[Session]:
    session = Session(tiny_hybrid_dir, kernels)
    yield session
    withdraw_waiting(kernels.device)


def test_the_second_step_of_a_kind_is_followed_by_a_waiting_one(hybrid: Session) -> None:
    assert not hybrid.waiting
    hybrid.step()
    assert not hybrid.waiting
    for _ in range(3):
        hybrid.step()
        assert hybrid.waiting


def test_on_equals_off_bit_for_bit(tiny_hybrid_dir: Path, kernels: KernelLibrary) -> None:
    steps = 64 if kernels.device.type == "cuda" else 8

    def run(early: bool) -> tuple[list[int], torch.Tensor, dict[str, torch.Tensor]]:
        runner = new_runner(tiny_hybrid_dir, kernels, slots=3, early_launch=early)
        if kernels.device.type == "cuda":
            runner.warm_up()
        tokens, logits = greedy_run(runner, prompt_of(60), steps)
        assert runner.graphs.waiting == early
        withdraw_waiting(kernels.device)
        runner.slots.verify()
        return tokens, logits, state_of(runner)

    (tokens, logits, state), (other_tokens, other_logits, other_state) = run(True), run(False)
    assert tokens == other_tokens
    assert torch.equal(logits, other_logits)
    for each in (state, other_state):
        del each["addresses"]  # of two runners
    assert_same(state, other_state)


def test_a_withdrawn_step_changes_nothing(hybrid: Session) -> None:
    for _ in range(3):
        rows = hybrid.step()
    logits = rows[0].row()
    ids = rows[0].candidates.ids.clone()
    assert hybrid.waiting
    runner = hybrid.runner
    with side_stream(runner):  # the current one holds the step that waits
        before = state_of(runner)
    withdraw_waiting(runner.kv_cache.device)
    assert_same(before, state_of(runner))
    assert not hybrid.waiting
    # Candidates and whole rows of the last step are still there.
    assert torch.equal(rows[0].row(), logits)
    assert torch.equal(rows[0].candidates.ids, ids)
    assert not torch.equal(runner._step.logits[0].cpu(), logits)  # it was overwritten


@pytest.mark.parametrize("between", ["prefill", "read", "write", "counters", "loop", "logits"])
def test_other_work_in_between_changes_no_bit(
    between: str, tiny_hybrid_dir: Path, kernels: KernelLibrary
) -> None:
    def run(early: bool) -> list[torch.Tensor]:
        session = Session(tiny_hybrid_dir, kernels, max_num_seqs=2, early_launch=early)
        runner, slot = session.runner, session.slots[0]
        made = []
        for _ in range(2):
            session.step()
            rows = session.step()
            other = runner.kv_cache.allocate()
            if between == "prefill":
                made.append(runner.prefill(prompt_of(9, seed=5), other, 0).row())
            elif between == "read":
                made.append(runner.kv_cache.read(slot, session.positions[0]).keys)
                made.append(rows[0].row())
            elif between == "write":
                snapshot = runner.kv_cache.read(slot, session.positions[0])
                runner.kv_cache.write(other, snapshot)
            elif between == "counters":
                runner.slots.reset_counters()
                assert runner.slots.counters().hits == 0
                runner.slots.verify()
            elif between == "loop":
                runner.kv_cache.reserve(other, 8)
                made.append(runner.decode_loop([3], [other], [0], 2))
            else:
                made.append(runner.logits_of(0).cpu())
                assert torch.equal(made[-1], rows[0].row())
            runner.kv_cache.free(other)
            made.append(session.step()[0].row())
        return made

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert torch.equal(ours, theirs)


def test_batch_sizes_in_turn_change_no_bit(tiny_hybrid_dir: Path, kernels: KernelLibrary) -> None:
    def run(early: bool) -> list[torch.Tensor]:
        session = Session(tiny_hybrid_dir, kernels, 2, early_launch=early)
        return [row.row() for n in (2, 2, 2, 1, 1, 1, 2) for row in session.step(n)]

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert torch.equal(ours, theirs)


def test_masks_arrive_with_their_step(hybrid: Session) -> None:
    def only(token: int) -> torch.Tensor:
        mask = torch.zeros(WORDS, dtype=torch.int32)
        mask[token // 32] = 1 << (token % 32) if token % 32 < 31 else -(2**31)
        return mask

    kept = only(77)
    masks = [None, None, None, only(5), only(600), None, kept, kept, None]
    wanted = [None, None, None, 5, 600, None, 77, 77, None]
    for mask, token in zip(masks, wanted, strict=True):
        row = hybrid.step(masks=[mask])[0]
        assert row.candidates is not None
        finite = torch.isfinite(row.candidates.values)
        assert (int(finite.sum()), best(row)) == (1, token) if token else finite.all()
        assert int(torch.isfinite(row.row()).sum()) == (1 if token else TINY.vocab_size)


def test_a_step_that_gave_up_is_run_again(tiny_hybrid_dir: Path, kernels: KernelLibrary) -> None:
    def run(give_up: bool) -> list[torch.Tensor]:
        session = Session(tiny_hybrid_dir, kernels)
        made = []
        for index in range(5):
            rows = session.step()
            if give_up and index in (2, 3):
                expire(session.runner)
            made.append(rows[0].row())
        return made

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert torch.equal(ours, theirs)


def expire(runner: GpuModelRunner) -> None:
    """Let the waiting step run out of time."""
    graphs = runner.graphs
    gate, launch = graphs._flight.gate, graphs._flight.waiting
    assert launch is not None
    if launch.end is not None:
        launch.wait()
    else:
        timeout_us, gate.timeout_us = gate.timeout_us, 0
        graphs._run(launch.batch, "all", False)
        gate.timeout_us = timeout_us
    assert gate.ran_padded(launch.ticket)


def test_two_runners_do_not_wait_for_each_other(
    tiny_model_dir: Path, tiny_hybrid_dir: Path, kernels: KernelLibrary
) -> None:
    alone = [Session(folder, kernels) for folder in (tiny_model_dir, tiny_hybrid_dir)]
    wanted = [[session.step()[0].row() for _ in range(4)] for session in alone]
    first, second = (Session(folder, kernels) for folder in (tiny_model_dir, tiny_hybrid_dir))
    made: list[list[torch.Tensor]] = [[], []]
    for _ in range(2):  # two steps each in turn, so that one waits when the other comes
        for index, session in enumerate((first, second)):
            made[index] += [session.step()[0].row() for _ in range(2)]
            assert session.waiting
            assert not (second, first)[index].waiting
    for ours, theirs in zip([*made[0], *made[1]], [*wanted[0], *wanted[1]], strict=True):
        assert torch.equal(ours, theirs)


def test_a_dropped_runner_leaves_nothing_waiting(
    tiny_hybrid_dir: Path, kernels: KernelLibrary
) -> None:
    session = Session(tiny_hybrid_dir, kernels)
    for _ in range(2):
        session.step()
    flight = session.runner.graphs._flight
    launch = flight.waiting
    assert launch is not None
    del session
    gc.collect()
    assert flight.waiting is None
    if launch.end is not None:
        assert launch.end.query()
        assert flight.gate.ran_padded(launch.ticket)


@pytest.mark.gpu
def test_other_work_waits_for_the_time_out_at_most(
    tiny_hybrid_dir: Path, cuda_kernels: CudaKernels
) -> None:
    session = Session(tiny_hybrid_dir, cuda_kernels)
    for _ in range(3):
        session.step()
    launch = session.runner.graphs._flight.waiting
    assert launch is not None
    assert launch.end is not None
    assert not launch.end.query()  # it does wait
    counters: RouterCounters = session.runner.slots.counters()  # queued behind it
    assert counters.hits + counters.misses > 0
    assert launch.end.query()
    assert session.runner.graphs._flight.gate.ran_padded(launch.ticket)

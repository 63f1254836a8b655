"""The gate in front of a step and the hand-over of its candidates."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from inference.kernels.cuda_kernels import CudaKernels
from inference.kernels.library import KernelLibrary
from inference.kernels.step import GateTensors, StepGate, await_inputs, publish

BATCH, PAGES, WORDS, VOCABULARY = 2, 5, 21, 650
SIZE = BATCH * (3 + PAGES)


def tensors_of(library: KernelLibrary) -> GateTensors:
    """Inputs 1, 2, ...; the mask of row 1 is to be taken."""
    on_gpu = library.device.type == "cuda"

    def host(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if on_gpu else tensor

    inputs = torch.arange(1, SIZE + 2, dtype=torch.int32)
    inputs[-1] = 0b10
    return GateTensors(
        host_inputs=host(inputs),
        inputs=torch.zeros(SIZE, dtype=torch.int32, device=library.device),
        host_masks=host(torch.full((BATCH, WORDS), 7, dtype=torch.int32)),
        masks=torch.full((BATCH, WORDS), -1, dtype=torch.int32, device=library.device),
        logits=torch.randn(BATCH, VOCABULARY).to(library.device),
        kept=host(torch.zeros(BATCH, VOCABULARY)),
    )


def settle(library: KernelLibrary) -> None:
    if library.device.type == "cuda":
        torch.cuda.synchronize()


def assert_padded(tensors: GateTensors) -> None:
    tokens, positions, slots = tensors.inputs[: 3 * BATCH].cpu().view(3, BATCH)
    assert (tokens < 0).all()
    assert (positions <= -(2**30)).all()
    assert not slots.any()
    assert not tensors.inputs[3 * BATCH :].any()
    assert (tensors.masks == -1).all()
    assert torch.equal(tensors.kept, tensors.logits.cpu())


def test_a_released_gate_takes_inputs_and_changed_masks(kernels: KernelLibrary) -> None:
    gate, tensors = StepGate(kernels.device), tensors_of(kernels)
    for number in range(1, 20):  # more than the ring holds
        ticket = gate.take()
        assert ticket == number
        gate.release(ticket)
        await_inputs(kernels, gate, tensors)
        settle(kernels)
        assert not gate.ran_padded(ticket)
    assert tensors.inputs.tolist() == list(range(1, SIZE + 1))
    assert (tensors.masks[0] == -1).all()
    assert (tensors.masks[1] == 7).all()
    assert not tensors.kept.any()


def test_a_withdrawn_gate_lets_padding_through_and_the_next_runs(kernels: KernelLibrary) -> None:
    gate, tensors = StepGate(kernels.device), tensors_of(kernels)
    first = gate.take()
    gate.withdraw(first)
    await_inputs(kernels, gate, tensors)
    settle(kernels)
    assert gate.ran_padded(first)
    assert_padded(tensors)
    # Withdrawn, and the next one released before the device looked: each gets its own answer.
    second, third = gate.take(), gate.take()
    gate.withdraw(second)
    gate.release(third)
    await_inputs(kernels, gate, tensors)
    settle(kernels)
    assert_padded(tensors)
    await_inputs(kernels, gate, tensors)
    settle(kernels)
    assert (gate.ran_padded(second), gate.ran_padded(third)) == (True, False)
    assert tensors.inputs.tolist() == list(range(1, SIZE + 1))


def test_a_gate_that_nobody_releases_gives_up(kernels: KernelLibrary) -> None:
    timeout_s = 0.05 if kernels.device.type == "cuda" else 0.0
    gate, tensors = StepGate(kernels.device, timeout_s=timeout_s), tensors_of(kernels)
    ticket = gate.take()
    begin_s = time.perf_counter()
    await_inputs(kernels, gate, tensors)
    settle(kernels)
    assert time.perf_counter() - begin_s >= timeout_s
    assert gate.ran_padded(ticket)
    assert_padded(tensors)
    gate.release(ticket)  # too late: it has no effect, not on the next one either
    second = gate.take()
    await_inputs(kernels, gate, tensors)
    settle(kernels)
    assert gate.ran_padded(second)


def test_a_count_that_went_wrong_is_put_right(kernels: KernelLibrary) -> None:
    gate, tensors = StepGate(kernels.device), tensors_of(kernels)
    gate.take()
    gate.recount()
    ticket = gate.take()
    assert ticket == 1
    gate.release(ticket)
    await_inputs(kernels, gate, tensors)
    settle(kernels)
    assert tensors.inputs[0] == 1


def test_tensors_that_do_not_fit_are_refused(emulated_kernels: KernelLibrary) -> None:
    gate, good = StepGate(emulated_kernels.device), tensors_of(emulated_kernels)
    for name in ("host_inputs", "host_masks", "kept"):
        wrong = GateTensors(**{**vars(good), name: getattr(good, name)[1:]})
        with pytest.raises(ValueError, match=r"differ in shape|inputs for"):
            await_inputs(emulated_kernels, gate, wrong)


@pytest.mark.parametrize("padding", [False, True])
def test_candidates_of_padding_stay_on_the_device(kernels: KernelLibrary, padding: bool) -> None:
    device = kernels.device
    positions = torch.tensor([-5 if padding else 3, -5], dtype=torch.int32, device=device)
    candidates = torch.arange(256, dtype=torch.int32, device=device).view(2, 2, 64)
    host = torch.full((2, 2, 64), -1, dtype=torch.int32)
    host = host.pin_memory() if device.type == "cuda" else host
    publish(kernels, positions, candidates, host)
    settle(kernels)
    assert torch.equal(host, torch.full_like(host, -1) if padding else candidates.cpu())


@pytest.mark.gpu
def test_a_gate_waits_for_a_release_from_another_thread(cuda_kernels: CudaKernels) -> None:
    gate, tensors = StepGate(cuda_kernels.device, timeout_s=1.5), tensors_of(cuda_kernels)
    for delay_s in (0.0, 0.01, 0.1):
        ticket = gate.take()
        tensors.host_inputs[0] = 1000 + ticket

        def release(ticket: int = ticket, delay_s: float = delay_s) -> None:
            time.sleep(delay_s)
            tensors.host_inputs[0] = ticket
            gate.release(ticket)

        thread = threading.Thread(target=release)
        await_inputs(cuda_kernels, gate, tensors)
        thread.start()
        settle(cuda_kernels)
        thread.join()
        assert not gate.ran_padded(ticket)
        assert tensors.inputs[0] == ticket

from __future__ import annotations

import pytest
import torch

from inference.benchmarks.link import measure_link
from inference.config import MIB


def test_copies_are_timed_on_the_cpu() -> None:
    speed = measure_link(torch.device("cpu"), size_bytes=8 * MIB)
    assert speed.device == "cpu"
    # Between a very slow and an impossibly fast memory.
    assert 0.1 < speed.link_gb_s < 1000
    assert speed.memory_gb_s > 0.2


@pytest.mark.gpu
def test_a_gpu_reads_its_own_memory_faster_than_the_link() -> None:
    speed = measure_link(torch.device("cuda"), size_bytes=128 * MIB)
    assert speed.memory_gb_s > speed.link_gb_s > 1

"""What of the memory limit a machine without a GPU can show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from inference.engine import device_memory
from inference.engine.device_memory import load_libraries, use_expandable_segments


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the allocator of a GPU is asked for."""
    settings: list[str] = []
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda size, *, device: None)
    monkeypatch.setattr(device_memory, "_allocator_settings", lambda: settings.append)
    return settings


def test_segments_grow_unless_the_user_decides(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_expandable_segments()
    assert asked == ["expandable_segments:True"]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    use_expandable_segments()
    assert len(asked) == 1


def test_a_driver_without_support_goes_on_with_plain_segments(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int, *, device: str) -> None:
        raise RuntimeError("CUDA driver error: operation not supported")

    monkeypatch.setattr(torch, "zeros", refuse)
    use_expandable_segments()
    assert asked == ["expandable_segments:True", "expandable_segments:False"]


def test_this_torch_has_the_setting() -> None:
    settings: Callable[[str], None] | None = device_memory._allocator_settings()
    assert settings is not None


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_operations_that_load_libraries_run(recurrent: bool) -> None:
    load_libraries(torch.device("cpu"), recurrent=recurrent)

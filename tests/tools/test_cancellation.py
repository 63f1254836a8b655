"""Waiting that ends when the turn is stopped."""

from __future__ import annotations

import threading

import pytest

from tools.base import ToolCancelledError, never
from tools.cancellation import acquire, ended_when


def test_waiting_for_a_place_ends_with_the_turn() -> None:
    taken = threading.Semaphore(0)
    with pytest.raises(ToolCancelledError):
        acquire(taken, 60.0, lambda: True)


def test_a_place_that_comes_free_is_taken_and_one_that_does_not_is_not() -> None:
    place = threading.Semaphore(0)
    freed = threading.Timer(0.3, place.release)
    freed.start()
    assert acquire(place, 60.0, never)
    freed.join()
    assert not acquire(place, 0.01, never)


def test_the_end_is_called_once_inside_the_block_and_never_after_it() -> None:
    ends: list[str] = []
    ended = threading.Event()

    def end() -> None:
        ends.append("end")
        ended.set()

    with ended_when(lambda: True, end):
        assert ended.wait(60)
    with ended_when(lambda: False, end):
        pass
    assert ends == ["end"]

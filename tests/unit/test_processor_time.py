"""A bound on the processor time of a thread."""

from __future__ import annotations

import time

import pytest

from shared.process.processor_time import UNBOUNDED, ProcessorTime


class Clock:
    """Stands for the module `time`: the thread has had half of the time that elapsed."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.asked = 0

    def monotonic(self) -> float:
        return self.elapsed_s

    def thread_time(self) -> float:
        self.asked += 1
        return 7.0 + self.elapsed_s / 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("shared.process.processor_time.time", clock)
    return clock


def test_the_kernel_is_not_asked_before_the_time_has_elapsed(clock: Clock) -> None:
    processor = ProcessorTime(1.0)
    clock.elapsed_s = 0.999
    assert not processor.is_over()
    assert clock.asked == 0


def test_the_time_counts_from_then_on_as_the_processor_spends_it(clock: Clock) -> None:
    processor = ProcessorTime(1.0)
    clock.elapsed_s = 2.0
    assert not processor.is_over()
    clock.elapsed_s = 4.0
    assert not processor.is_over()
    clock.elapsed_s = 4.001
    assert processor.is_over()


def test_work_that_never_waits_has_at_most_twice_the_time() -> None:
    processor = ProcessorTime(0.005)
    began = time.thread_time()
    while not processor.is_over():
        pass
    assert 0.005 <= time.thread_time() - began < 0.012


def test_no_bound_is_never_over(clock: Clock) -> None:
    clock.elapsed_s = 1e12
    assert not UNBOUNDED.is_over()
    assert not ProcessorTime(0.0).is_over()
    assert [UNBOUNDED.is_bounded, ProcessorTime(1e-9).is_bounded] == [False, True]

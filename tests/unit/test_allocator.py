"""When a process returns the memory of large work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shared import allocator
from shared.allocator import TRIM_BYTES_MIN, TRIM_INTERVAL_S, Trimmer


class Process:
    """Stands for this process; `rss` is what is resident."""

    rss = 0

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=self.rss)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(allocator.time, "monotonic", lambda: clock.now)
    return clock


def trimmer_of(process: Process) -> Trimmer:
    trimmer = Trimmer()
    trimmer._process = process  # type: ignore[assignment]
    return trimmer


def test_memory_is_looked_at_now_and_then_and_returned_when_it_has_grown(clock: SimpleNamespace) -> None:
    process = Process()
    process.rss = 10 * TRIM_BYTES_MIN
    trimmer = trimmer_of(process)
    assert not trimmer.due()  # too early
    clock.now += TRIM_INTERVAL_S
    assert trimmer.due()
    process.rss = 2 * TRIM_BYTES_MIN
    trimmer.run()
    clock.now += TRIM_INTERVAL_S
    process.rss = 3 * TRIM_BYTES_MIN
    assert not trimmer.due()
    clock.now += TRIM_INTERVAL_S
    process.rss += 1
    assert trimmer.due()
    assert not trimmer.due()  # once in an interval


def test_free_memory_returns_to_the_system() -> None:
    trimmer = Trimmer()
    freed = [bytes(100_000) for _ in range(1000)]  # below what the C library takes from the kernel one by one
    del freed[::2]
    before = trimmer._process.memory_info().rss
    del freed
    allocator.trim()
    assert trimmer._process.memory_info().rss <= before

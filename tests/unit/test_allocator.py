"""When a process returns the memory of large work."""

from __future__ import annotations

import errno
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from shared.process import allocator
from shared.process.allocator import (
    QUIET_SHARE,
    TRIM_BYTES_MIN,
    TRIM_BYTES_MIN_QUIET,
    TRIM_BYTES_MIN_SMALL,
    TRIM_INTERVAL_S,
    TRIM_PAUSE_S,
    TRIM_SELDOM_S,
    TRIM_SHARE_MIN,
    TRIM_SHARE_MIN_SELDOM,
    Trimmer,
)


class Process:
    """Stands for this process; `rss` is what is resident."""

    rss = 0

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=self.rss)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0, free_bytes=0, busy_share=1.0)
    monkeypatch.setattr(allocator.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(allocator.time, "process_time", lambda: clock.now * clock.busy_share)
    monkeypatch.setattr(allocator, "free_bytes", lambda: clock.free_bytes)
    monkeypatch.setattr(allocator._Trims, "is_owed", False)
    monkeypatch.setattr(allocator._Trims, "last_at", -math.inf)
    return clock


def trimmer_of(process: Process) -> Trimmer:
    trimmer = Trimmer()
    trimmer._process = process  # type: ignore[assignment]
    return trimmer


@pytest.mark.parametrize(
    ("resident", "growth"),
    [
        (0, TRIM_BYTES_MIN_SMALL),
        (12 * TRIM_BYTES_MIN_SMALL, TRIM_BYTES_MIN_SMALL),
        (24 * TRIM_BYTES_MIN_SMALL, 2 * TRIM_BYTES_MIN_SMALL),
        (int(TRIM_BYTES_MIN / TRIM_SHARE_MIN), TRIM_BYTES_MIN),
        (100 * TRIM_BYTES_MIN, TRIM_BYTES_MIN),
    ],
)
def test_memory_is_looked_at_now_and_then_and_returned_when_the_process_has_grown_by_its_share(
    clock: SimpleNamespace, resident: int, growth: int
) -> None:
    process = Process()
    process.rss = 200 * TRIM_BYTES_MIN
    trimmer = trimmer_of(process)
    assert not trimmer.due()  # too early
    clock.now += TRIM_INTERVAL_S
    assert trimmer.due()
    process.rss = resident
    trimmer.run()
    clock.now += TRIM_INTERVAL_S
    process.rss += growth
    assert not trimmer.due()
    clock.now += TRIM_INTERVAL_S
    process.rss += 1
    assert trimmer.due()
    assert not trimmer.due()  # once in an interval


@pytest.mark.parametrize(
    ("resident", "growth"),
    [
        (0, TRIM_BYTES_MIN_QUIET),
        (48 * TRIM_BYTES_MIN_QUIET, TRIM_BYTES_MIN_QUIET),
        (96 * TRIM_BYTES_MIN_QUIET, 2 * TRIM_BYTES_MIN_QUIET),
        (int(TRIM_BYTES_MIN / TRIM_SHARE_MIN_SELDOM), TRIM_BYTES_MIN),
        (100 * TRIM_BYTES_MIN, TRIM_BYTES_MIN),
    ],
)
def test_a_busy_process_returns_less_memory_when_it_has_not_done_so_for_a_while(
    clock: SimpleNamespace, resident: int, growth: int
) -> None:
    process = Process()
    process.rss = resident
    trimmer = trimmer_of(process)
    trimmer.run()
    clock.now += TRIM_SELDOM_S
    process.rss += growth
    assert not trimmer.due()
    clock.now += TRIM_INTERVAL_S
    process.rss += 1
    assert trimmer.due()
    trimmer.run()
    clock.now += TRIM_INTERVAL_S
    process.rss += growth + 1
    assert trimmer.due() == (growth == TRIM_BYTES_MIN)  # again for a process of which both shares are too large


@pytest.mark.parametrize(("busy_share", "is_quiet"), [(QUIET_SHARE / 2, True), (2 * QUIET_SHARE, False)])
def test_a_quiet_process_returns_less_memory_too(clock: SimpleNamespace, busy_share: float, is_quiet: bool) -> None:
    clock.busy_share = busy_share
    process = Process()
    trimmer = trimmer_of(process)
    trimmer.run()
    for attribute in ("rss", "free_bytes"):
        owner = process if attribute == "rss" else clock
        for more, is_due in ((TRIM_BYTES_MIN_QUIET, False), (1, is_quiet)):
            clock.now += TRIM_INTERVAL_S
            setattr(owner, attribute, getattr(owner, attribute) + more)
            assert trimmer.due() == is_due
        trimmer.run()


def test_memory_that_was_in_use_at_the_last_time_returns_when_it_has_been_freed(clock: SimpleNamespace) -> None:
    trimmer = trimmer_of(Process())
    clock.free_bytes = 5 * TRIM_BYTES_MIN_SMALL
    trimmer.run()
    for more, is_due in ((TRIM_BYTES_MIN_SMALL, False), (1, True)):
        clock.now += TRIM_INTERVAL_S
        clock.free_bytes += more
        assert trimmer.due() == is_due
    trimmer.run()
    clock.now += TRIM_INTERVAL_S
    assert not trimmer.due()


def test_a_trim_that_is_put_off_is_made_up_for(clock: SimpleNamespace) -> None:
    trimmer = trimmer_of(Process())
    trimmer.run()
    for waited_s, is_owed in ((1, True), (TRIM_PAUSE_S, False), (1, True)):
        clock.now += waited_s
        allocator.trim(TRIM_PAUSE_S)
        clock.now += TRIM_INTERVAL_S
        assert trimmer.due() == is_owed
        allocator.trim()
    clock.now += TRIM_INTERVAL_S
    assert not trimmer.due()


def test_freed_memory_counts_as_free() -> None:
    held = [bytes(100_000) for _ in range(1000)]
    before = allocator.free_bytes()
    del held[::2]
    assert allocator.free_bytes() - before > 40_000_000


def test_free_memory_returns_to_the_system() -> None:
    trimmer = Trimmer()
    freed = [bytes(100_000) for _ in range(1000)]  # below what the C library takes from the kernel one by one
    del freed[::2]
    before = trimmer._process.memory_info().rss
    del freed
    allocator.trim()
    assert trimmer._process.memory_info().rss <= before


def test_scratch_memory_goes_back_to_the_system_at_once() -> None:
    process = Trimmer()._process
    size = 8 * allocator.SCRATCH_BYTES_MIN
    before = process.memory_info().rss
    held = allocator.scratch((size // 8, 2), np.int32)
    held[:] = 1
    behind = bytes(100_000)  # what is above it in the heap does not keep it
    assert process.memory_info().rss - before > size // 2
    del held
    assert process.memory_info().rss - before < size // 2
    assert len(behind) == 100_000


@pytest.mark.parametrize("rows", [0, 1, allocator.SCRATCH_BYTES_MIN // 8])
def test_scratch_memory_is_an_array_of_zeros(rows: int) -> None:
    array = allocator.scratch((rows, 2), np.int32)
    assert array.shape == (rows, 2) and array.dtype == np.int32
    assert array.flags.c_contiguous and array.flags.writeable
    assert not array.any()


def test_memory_that_the_kernel_refuses_is_a_memory_error_like_that_of_other_arrays() -> None:
    size = 1 << 46  # more than the addresses of a process
    with pytest.raises(MemoryError, match=f"gives no {size} bytes"):
        allocator.scratch((size,), np.uint8)


_GROWS = """
import numpy as np
from shared.process import allocator
from worker.series.growing_array import GrowingArray

allocator.keep_pages()  # as a worker does
array, before = GrowingArray(np.uint8), allocator.free_bytes()
while array.size < 24 << 20:
    array.room(1 << 20)[:] = 1
print(allocator.free_bytes() - before)
"""


def test_what_an_array_that_grows_has_outgrown_is_not_left_in_the_heap() -> None:
    ran = subprocess.run([sys.executable, "-c", _GROWS], capture_output=True, text=True, check=True, timeout=60)
    assert int(ran.stdout) < 4 << 20  # in the heap, it would be 31 MB


def test_a_process_that_can_open_no_more_files_goes_on_and_trims_later(clock: SimpleNamespace) -> None:
    class NoMoreFiles(Process):
        def memory_info(self) -> SimpleNamespace:
            raise OSError(errno.EMFILE, "Too many open files", "/proc/1/statm")

    trimmer = trimmer_of(NoMoreFiles())
    clock.now += TRIM_INTERVAL_S
    assert not trimmer.due()
    trimmer.run()
    trimmer._process = Process()  # type: ignore[assignment]
    trimmer._process.rss = TRIM_BYTES_MIN + 1  # type: ignore[attr-defined]
    clock.now += TRIM_INTERVAL_S
    assert trimmer.due()

"""Chunks of samples: exact to the last bit, and small where values are alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import chunks_v1 as old_chunks
from worker.series.blocks import chunk_layout, chunks
from worker.series.blocks.chunks import PAGE_SAMPLES
from worker.series.blocks.chunks_v1 import ALONE_SAMPLES
from worker.series.blocks.compression import compressed
from worker.series.blocks.paged_chunk import PagedChunk

COUNTS = np.array([3, 3, 1, 2])
TIMES = np.array([10, 20, 35, 10, 20, 35, -5, 7, 7000])
FIRSTS = np.array([10, 10, -5, 7])


def test_a_chunk_of_a_later_release_is_refused() -> None:
    data = bytearray(chunks.encode(COUNTS, TIMES, np.zeros(9)))
    data[0] = 77
    with pytest.raises(ValueError, match="version 77"):
        chunks.decode(bytes(data), COUNTS, FIRSTS)


def run(kind: str, count: int, random: np.random.Generator) -> NDArray[np.float64]:
    if kind == "constant":
        return np.full(count, random.choice([0.0, -0.0, 1.5, 7.0, np.nan, np.inf, 2.0**70]))
    if kind == "whole":
        return random.integers(-50, 50, count).astype(np.float64)
    if kind == "counter":
        return np.cumsum(random.poisson(300, count)).astype(np.float64)
    if kind == "even":
        return (7 - 3 * np.arange(count)).astype(np.float64)
    if kind == "large":
        return (random.integers(-(1 << 62), 1 << 62, count) >> random.integers(0, 62, count)).astype(np.float64)
    if kind == "bits":
        return random.integers(0, 1 << 64, count, dtype=np.uint64).view(np.float64)
    return random.normal(size=count)


def times_of(pace: str, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    if pace == "even":
        return int(random.integers(0, 1 << 41)) + 15_000 * np.arange(count)
    if pace == "late":
        return int(random.integers(0, 1 << 41)) + 15_000 * np.arange(count) + random.integers(-3, 4, count)
    if pace == "drifting":
        return np.cumsum(random.integers(14_900, 15_300, count))
    return np.cumsum(random.integers(1, 1 << 40, count)) - (1 << 45)


kinds = st.sampled_from(["constant", "whole", "counter", "even", "large", "bits", "fraction"])
paces = st.sampled_from(["like the last", "even", "late", "drifting", "any"])
lengths = st.sampled_from([1, 2, 5, *(limit + more for limit in (ALONE_SAMPLES, PAGE_SAMPLES) for more in (-1, 0, 9))])
encoders = pytest.mark.parametrize("encode", [chunks.encode, old_chunks.encode], ids=["this release", "an earlier one"])


Runs = list[tuple[str, int, str]]


def samples(runs: Runs, seed: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    """(counts, the times of each run, the values of each run)."""
    random = np.random.default_rng(seed)
    times: list[NDArray[np.int64]] = []
    for _, count, pace in runs:
        if pace == "like the last" and times and len(times[-1]) == count:
            times.append(times[-1])
        else:
            times.append(times_of(pace, count, random))
    return np.array([count for _, count, _ in runs]), times, [run(kind, count, random) for kind, count, _ in runs]


@encoders
@settings(deadline=None, max_examples=150)
@given(runs=st.lists(st.tuples(kinds, lengths, paces), min_size=1, max_size=9), seed=st.integers(0, 1 << 32))
def test_what_comes_back_is_what_was_put_in(encode: Callable[..., bytes], runs: Runs, seed: int) -> None:
    counts, times, values = samples(runs, seed)
    data = encode(counts, np.concatenate(times), np.concatenate(values))
    firsts = np.array([own[0] for own in times])
    found_times, found = chunks.decode(data, counts, firsts)
    assert found_times.tolist() == np.concatenate(times).tolist()
    assert found.tobytes() == np.concatenate(values).tobytes()


@settings(deadline=None, max_examples=150)
@given(
    runs=st.lists(st.tuples(kinds, lengths, paces), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 32),
    choice=st.integers(1, (1 << 12) - 1),
)
def test_some_runs_are_read_to_where_they_are_wanted_and_nothing_else_is_written(
    runs: Runs, seed: int, choice: int
) -> None:
    counts, times, values = samples(runs, seed)
    chosen = np.array([r for r in range(len(runs)) if choice >> r & 1], dtype=np.int64)
    opened = PagedChunk(
        chunks.encode(counts, np.concatenate(times), np.concatenate(values)), counts, np.array([t[0] for t in times])
    )
    order = np.argsort(np.random.default_rng(seed).random(len(chosen)))
    at, end = np.zeros(len(chosen), np.int64), 3
    for i in order.tolist():  # in any order, with gaps
        at[i], end = end, end + int(counts[chosen[i]]) + 2
    found_times, found = np.full(end, -77), np.full(end, 7.5)
    opened.read(chosen, at, found_times, found, keeps_references=True)
    for i, r in enumerate(chosen.tolist()):
        own = slice(at[i], at[i] + counts[r])
        assert found_times[own].tolist() == times[r].tolist()
        assert found[own].tobytes() == values[r].tobytes()
        found_times[own], found[own] = -77, 7.5
    assert (found_times == -77).all() and (found == 7.5).all()


def test_a_page_is_read_without_the_others() -> None:
    counts = np.full(40, 1000)
    times, values = np.tile(np.arange(1000) * 15_000, 40), np.random.default_rng(1).poisson(300, 40_000).astype(float)
    data = bytearray(chunks.encode(counts, times, values))
    data[-4000:] = bytes(4000)  # the end of the last page
    opened = PagedChunk(bytes(data), counts, np.zeros(40, np.int64))
    found_times, found = np.empty(1000, np.int64), np.empty(1000)
    opened.read(np.array([9]), np.array([0]), found_times, found)
    assert found.tolist() == values[9000:10_000].tolist()
    with pytest.raises(ValueError):
        opened.read(np.array([39]), np.array([0]), found_times, found)


def test_a_nan_with_the_bits_of_a_reference_is_an_ordinary_one_when_it_is_read() -> None:
    bits = np.array([0x7FFD << 48 | 5, 0x7FFD << 48 | 5, 0x7FF8000000000001, 0x7FFD << 48], np.int64)
    counts, firsts = np.array([2, 2]), np.array([0, 2])
    opened = PagedChunk(chunks.encode(counts, np.arange(4), bits.view(np.float64)), counts, firsts)
    found_times, found = np.empty(4, np.int64), np.empty(4)
    opened.read(np.arange(2), np.array([0, 2]), found_times, found)
    assert found.view(np.int64).tolist() == [0x7FF8 << 48, 0x7FF8 << 48, 0x7FF8000000000001, 0x7FF8 << 48]


def packed(pages: list[list[int]], columns: list[bytes], streams: bytes = b"") -> bytes:
    """A chunk of these parts; `pages`: where the runs of each end, and the bytes of its arrays."""
    header = chunk_layout.HEADER.pack(chunk_layout.VERSION, 0, 0, len(pages), *map(len, columns))
    return b"".join((header, np.array(pages, "<u4").tobytes(), *columns, streams))


NO_STREAMS = [0] * 5
ONE = compressed(np.ones(1, np.int64))
TWO = compressed(np.ones(2, np.int64))
GOOD = ([[2, *NO_STREAMS]], [compressed(np.zeros(2, np.uint16)), TWO, TWO, TWO, b""])


@pytest.mark.parametrize(
    ("pages", "columns", "why"),
    [
        ([], GOOD[1], "share its 2 runs"),
        ([[1, *NO_STREAMS]], GOOD[1], "share its 2 runs"),
        ([[2, *NO_STREAMS], [2, *NO_STREAMS]], GOOD[1], "share its 2 runs"),
        ([[2, 0, 0, 0, 0, 9]], GOOD[1], "end at byte"),
        (GOOD[0], [compressed(np.zeros(3, np.uint16)), TWO, TWO, TWO, b""], "more than 2 numbers"),
        (GOOD[0], [compressed(np.zeros(2, np.int64)), TWO, TWO, TWO, b""], "pcodec"),
        (GOOD[0], [compressed(np.array([0, 128], np.uint16)), TWO, TWO, TWO, b""], "kind that is not known"),
        (GOOD[0], [compressed(np.array([0, 5 << 3], np.uint16)), TWO, TWO, TWO, b""], "kind that is not known"),
        (GOOD[0], [compressed(np.array([3, 0], np.uint16)), ONE, TWO, TWO, b""], "another number of samples"),
        (GOOD[0], [GOOD[1][0], ONE, TWO, TWO, b""], "1 of 2 numbers"),
        (GOOD[0], [GOOD[1][0], TWO, b"", TWO, b""], "pcodec"),
        (GOOD[0], [*GOOD[1][:4], ONE], "numbers of no run"),
        (GOOD[0], [compressed(np.array([0, 1 << 3], np.uint16)), TWO, TWO, TWO, b""], "lacks an array"),
    ],
)
def test_a_chunk_that_contradicts_itself_is_refused(pages: list[list[int]], columns: list[bytes], why: str) -> None:
    counts, firsts = np.array([2, 2]), np.array([0, 5])
    assert chunks.decode(packed(*GOOD), counts, firsts)[0].tolist() == [0, 1, 5, 6]
    with pytest.raises(ValueError, match=why):
        chunks.decode(packed(pages, columns), counts, firsts)


def test_a_run_has_the_times_of_the_run_before_it_whichever_page_that_is_in() -> None:
    columns = [compressed(np.array([0, 3], np.uint16)), ONE, TWO, TWO, b""]
    for pages in (GOOD[0], [[1, *NO_STREAMS], [2, *NO_STREAMS]]):
        found, _ = chunks.decode(packed(pages, columns), np.array([2, 2]), np.array([0, 5]))
        assert found.tolist() == [0, 1, 5, 6]
        with pytest.raises(ValueError, match="another number of samples"):
            chunks.decode(packed(pages, columns), np.array([2, 3]), np.array([0, 5]))
    times = np.tile(np.cumsum(np.random.default_rng(1).integers(1, 99, 5000)), 4)
    data = chunks.encode(np.full(4, 5000), times, np.arange(20_000) / 7)
    opened = PagedChunk(data, np.full(4, 5000), np.full(4, times[0]))
    found, values = np.empty(5000, np.int64), np.empty(5000)
    opened.read(np.array([3]), np.array([0]), found, values)
    assert found.tolist() == times[:5000].tolist()
    assert len(data) < len(chunks.encode(np.array([5000]), times[:5000], np.zeros(5000))) + 9 * 15_000


def test_counters_and_late_scrapes_take_little_more_than_what_is_random_in_them() -> None:
    random = np.random.default_rng(1)
    counts, n = np.full(17, 480), 17 * 480
    even = np.tile(np.arange(480) * 15_000, 17)
    steps = random.poisson(random.integers(100, 1000, (17, 1)), (17, 480))
    counters = np.cumsum(steps, axis=1).astype(np.float64).ravel()
    bits = len(chunks.encode(counts, even, counters)) * 8 / n
    assert bits < 0.5 * np.log2(2 * np.pi * np.e * 500) + 0.5
    late = len(chunks.encode(counts, even + random.integers(-3, 4, n), counters)) * 8 / n
    assert late - bits < np.log2(7) + 0.7  # a run's first time is late, too


def test_constant_runs_cost_nothing_beside_others() -> None:
    random = np.random.default_rng(1)
    one = random.normal(size=480)
    constants = np.repeat(random.integers(0, 1000, 60).astype(np.float64), 480)
    times = np.arange(480) * 15_000
    alone = chunks.encode(np.array([480]), times, one)
    beside = chunks.encode(np.full(61, 480), np.tile(times, 61), np.concatenate((one, constants)))
    assert len(beside) - len(alone) < 61 * 4


def test_whole_numbers_beside_fractions_are_still_whole() -> None:
    counter = np.cumsum(np.random.default_rng(1).integers(0, 9, 100)).astype(np.float64)
    fraction = np.random.default_rng(2).normal(size=100)
    times = np.arange(100) * 15_000
    apart = [len(chunks.encode(np.array([100]), times, own)) for own in (counter, fraction)]
    both = chunks.encode(np.array([100, 100]), np.tile(times, 2), np.concatenate((fraction, counter)))
    assert len(both) < sum(apart)


@encoders
@pytest.mark.parametrize("cut", [1, 30, 60])
def test_a_chunk_that_lacks_bytes_is_refused(encode: Callable[..., bytes], cut: int) -> None:
    values = np.random.default_rng(1).normal(size=9)
    data = encode(COUNTS, TIMES, values)
    with pytest.raises(ValueError):
        chunks.decode(data[:-cut], COUNTS, FIRSTS)


@encoders
@pytest.mark.parametrize("counts", [[3, 2], [2, 3], [1, 3, 2], [3, 3, 2, 2]])
def test_a_run_that_is_the_beginning_of_its_neighbour_keeps_its_own_length(
    encode: Callable[..., bytes], counts: list[int]
) -> None:
    times = np.concatenate([np.array([10, 20, 35])[:count] for count in counts])
    values = np.arange(len(times)) / 7
    data = encode(np.array(counts), times, values)
    found_times, found = chunks.decode(data, np.array(counts), np.full(len(counts), 10))
    assert found_times.tolist() == times.tolist()
    assert found.tolist() == values.tolist()

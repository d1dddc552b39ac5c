"""Chunks of samples: exact to the last bit, and small where values are alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.series.blocks import chunks
from worker.series.blocks.chunks import ALONE_SAMPLES

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
    if kind == "bits":
        return random.integers(0, 1 << 64, count, dtype=np.uint64).view(np.float64)
    return random.normal(size=count)


kinds = st.sampled_from(["constant", "whole", "bits", "fraction"])
lengths = st.sampled_from([1, 2, 5, ALONE_SAMPLES - 1, ALONE_SAMPLES, ALONE_SAMPLES + 9])


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(kinds, lengths, st.booleans()), min_size=1, max_size=9), st.integers(0, 1 << 32))
def test_what_comes_back_is_what_was_put_in(runs: list[tuple[str, int, bool]], seed: int) -> None:
    random = np.random.default_rng(seed)
    times: list[NDArray[np.int64]] = []
    for _, count, like_the_last in runs:
        if like_the_last and times and len(times[-1]) == count:
            times.append(times[-1])
        else:
            times.append(np.cumsum(random.integers(1, 1 << 40, count)) - (1 << 45))
    counts = np.array([count for _, count, _ in runs])
    values = np.concatenate([run(kind, count, random) for kind, count, _ in runs])
    data = chunks.encode(counts, np.concatenate(times), values)
    firsts = np.array([own[0] for own in times])
    found_times, found = chunks.decode(data, counts, firsts)
    assert found_times.tolist() == np.concatenate(times).tolist()
    assert found.tobytes() == values.tobytes()


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


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_a_chunk_that_lacks_bytes_is_refused(cut: int) -> None:
    values = np.random.default_rng(1).normal(size=9)
    data = chunks.encode(COUNTS, TIMES, values)
    with pytest.raises(ValueError):
        chunks.decode(data[:-cut], COUNTS, FIRSTS)


@pytest.mark.parametrize("counts", [[3, 2], [2, 3], [1, 3, 2], [3, 3, 2, 2]])
def test_a_run_that_is_the_beginning_of_its_neighbour_keeps_its_own_length(counts: list[int]) -> None:
    times = np.concatenate([np.array([10, 20, 35])[:count] for count in counts])
    values = np.arange(len(times)) / 7
    data = chunks.encode(np.array(counts), times, values)
    found_times, found = chunks.decode(data, np.array(counts), np.full(len(counts), 10))
    assert found_times.tolist() == times.tolist()
    assert found.tolist() == values.tolist()

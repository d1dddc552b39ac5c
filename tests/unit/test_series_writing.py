"""Writes of series by number to the shard that gave the numbers, and to one that was opened anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from shared.errors import Internal
from shared.frames import references as reference_frames
from tests.unit.series_shard import TIMEOUT_S, Quiet
from worker.series.writing import write

Sent = list[tuple[int, int, float]]
"""Number of the series, time, value."""


def labelled(names: str, time_ms: int) -> bytes:
    series = [([("__name__", "m"), ("job", name)], [(time_ms, 1.0)]) for name in names]
    (frame,) = remote_write.split(body(series), 1, UNLIMITED).parts[0]
    return bytes(frame)


def by_number(epoch: int, sent: Sent) -> bytes:
    numbers, times, values = zip(*sent, strict=True)
    runs = [number | 1 << reference_frames.COUNT_SHIFT for number in numbers]
    words = [reference_frames.MARK, epoch, len(sent), len(sent), 0, *runs, *times]
    return np.array(words, dtype=np.int64).tobytes() + np.array(values).tobytes()


def stored(shard: Quiet) -> dict[str, list]:
    return {dict(labels)["job"]: samples for labels, samples in shard.samples().items()}


def test_numbers_are_those_of_the_series_until_the_shard_is_opened_anew(tmp_path: Path) -> None:
    shard = Quiet(tmp_path)
    answer = write({shard.part: [labelled("ba", 1)]}, TIMEOUT_S)
    assert answer.samples == 2
    assert answer.stale == {}
    assert list(answer.numbers[shard.part]) == [0]
    b, a = answer.numbers[shard.part][0].tolist()
    epoch = shard.part.epoch
    answer = write({shard.part: [by_number(epoch, [(a, 2, 5.0), (b, 2, 6.0)])]}, TIMEOUT_S)
    assert (answer.samples, answer.stale, answer.numbers) == (2, {}, {})
    before = stored(shard)
    assert before == {"a": [(1, 1.0), (2, 5.0)], "b": [(1, 1.0), (2, 6.0)]}
    shard.close()
    shard.open()
    assert shard.part.epoch != epoch
    # The other frames of the same write are stored.
    stale = by_number(epoch, [(a, 3, 7.0)])
    answer = write({shard.part: [stale, labelled("c", 3), stale]}, TIMEOUT_S)
    assert (answer.samples, answer.stale) == (1, {shard.part: [0, 2]})
    assert list(answer.numbers[shard.part]) == [1]
    answer = write({shard.part: [stale]}, TIMEOUT_S)
    assert (answer.samples, answer.stale, answer.numbers) == (0, {shard.part: [0]}, {})
    assert stored(shard) == {**before, "c": [(3, 1.0)]}
    shard.close()


def test_a_number_that_was_never_given_is_an_internal_error(tmp_path: Path) -> None:
    shard = Quiet(tmp_path)
    write({shard.part: [labelled("ab", 1)]}, TIMEOUT_S)
    before = stored(shard)
    with pytest.raises(Internal, match="a series 2; the shard has 2"):
        write({shard.part: [by_number(shard.part.epoch, [(0, 2, 1.0), (2, 2, 1.0)])]}, TIMEOUT_S)
    assert stored(shard) == before
    shard.close()

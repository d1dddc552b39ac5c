"""Frames of samples and of exemplars with labels: what does not fit together is refused before anybody uses it."""

from __future__ import annotations

import numpy as np
import pytest

from shared import labels
from shared.errors import Internal
from shared.frames import exemplars as exemplar_frames
from shared.frames import samples as sample_frames

SERIES = [labels.encode((("__name__", "up"), ("i", name))) for name in ("a", "bc")]
COUNTS, ENTRIES = [1, 2], 3
LARGE = 1 << 62
OFFSETS_AT, COUNTS_AT = 2, 5
"""In the words behind the header: of the series' label bytes, and of the counts."""


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def columns() -> list[int]:
    """Hashes, offsets, counts, times and values."""
    sizes = [len(each) for each in SERIES]
    return [1, 2, 0, sizes[0], sum(sizes), *COUNTS, *range(ENTRIES), *range(ENTRIES)]


def sample_frame(changed: dict[int, int]) -> bytes:
    data = b"".join(SERIES)
    words = columns()
    for place, word in changed.items():
        words[place] = word
    header = [sample_frames.MARK, len(SERIES), ENTRIES, len(data)]
    return np.array([*header, *words], np.int64).tobytes() + padded(data)


def exemplar_frame(changed: dict[int, int]) -> bytes:
    data, own = b"".join(SERIES), labels.encode((("trace", "1"),))
    words = [*columns(), 0, len(own), len(own), len(own)]
    for place, word in changed.items():
        words[place] = word
    header = [exemplar_frames.MARK, len(SERIES), ENTRIES, len(data), len(own)]
    return np.array([*header, *words], np.int64).tobytes() + padded(data) + padded(own)


FORMS = [(sample_frames.parse, sample_frame), (exemplar_frames.parse, exemplar_frame)]


@pytest.mark.parametrize(("parse", "frame"), FORMS)
def test_runs_are_those_that_were_written(parse, frame) -> None:
    runs = parse(frame({}))
    assert [bytes(runs.data[a:b]) for a, b in zip(runs.starts, runs.ends, strict=True)] == SERIES
    assert runs.counts.tolist() == COUNTS and runs.samples == ENTRIES
    assert parse(frame({COUNTS_AT: 0, COUNTS_AT + 1: 3})).counts.tolist() == [0, 3]


@pytest.mark.parametrize(("parse", "frame"), FORMS)
@pytest.mark.parametrize(
    "changed",
    [
        {COUNTS_AT: 167_772_161},
        {COUNTS_AT: 0},
        {COUNTS_AT: -1, COUNTS_AT + 1: 4},
        {COUNTS_AT: LARGE, COUNTS_AT + 1: LARGE},
        {OFFSETS_AT: 1},
        {OFFSETS_AT + 1: -1},
        {OFFSETS_AT + 1: LARGE},
        {OFFSETS_AT + 2: 1},
    ],
)
def test_runs_that_do_not_fit_their_frame_are_refused(parse, frame, changed: dict[int, int]) -> None:
    with pytest.raises(Internal, match="is not in the form of"):
        parse(frame(changed))


@pytest.mark.parametrize("changed", [{0: 1}, {1: LARGE}, {1: -1}, {3: 1}])
def test_labels_of_exemplars_that_do_not_fit_their_frame_are_refused(changed: dict[int, int]) -> None:
    first = len(columns())
    with pytest.raises(Internal, match="is not in the form of"):
        exemplar_frames.parse(exemplar_frame({first + place: word for place, word in changed.items()}))

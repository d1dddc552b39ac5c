"""Frames with numbers of series and histograms: what is read, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Internal
from shared.frames import references as reference_frames
from shared.histograms.packed import PackedHistograms
from shared.histograms.references import references
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram

ONE = NativeHistogram(schema=1, count=3.0, sum=0.5, positive={0: 1.0, 1: 2.0})
TWO = NativeHistogram(schema=2, count=70_000.0, sum=0.5, positive={5: 70_000.0})
HEADER = reference_frames.HISTOGRAMS_HEADER_WORDS
VALUES_AT = HEADER + 1 + 2


def frame(rows: list[int], packed: list[bytes]) -> bytes:
    """A series 7 with samples at 1, 2, … ms that refer to these rows of the histograms."""
    histograms = b"".join(packed)
    words = [reference_frames.HISTOGRAMS_MARK, 5, 1, len(rows), 0, len(histograms) // 8]
    words += [7 | len(rows) << reference_frames.COUNT_SHIFT, *range(1, len(rows) + 1)]
    return np.array(words, np.int64).tobytes() + references(np.array(rows)).tobytes() + histograms


def packed(*histograms: NativeHistogram) -> bytes:
    return b"".join(PackedHistograms.of(batch_of(list(histograms))).bytes())


@given(st.integers(0, 7))
def test_a_frame_is_read_at_any_address(offset: int) -> None:
    sent = frame([0, 1], [packed(ONE, TWO)])
    at = memoryview(bytearray(offset) + sent)[offset:]
    columns = reference_frames.parse(at)
    assert (columns.epoch, columns.number_max, columns.latest_ms, columns.has_starts) == (5, 7, 2, False)
    assert columns.series.tolist() == [7] and columns.counts.tolist() == [2]
    assert columns.times_ms.tolist() == [1, 2]
    assert columns.histograms is not None and len(columns.histograms) == 2
    assert columns.histograms.unpacked().columns.observations.tolist() == [3.0, 70_000.0]


def test_the_histograms_may_be_several_frames() -> None:
    columns = reference_frames.parse(frame([0, 1], [packed(ONE), packed(TWO)]))
    assert columns.histograms is not None and len(columns.histograms.frames) == 2
    assert columns.histograms.unpacked().columns.observations.tolist() == [3.0, 70_000.0]


@pytest.mark.parametrize("rows", [[2], [0, 1, 2], [1 << 40]])
def test_a_reference_past_the_histograms_is_refused(rows: list[int]) -> None:
    with pytest.raises(Internal, match="refer to histograms that are not there, of 2"):
        reference_frames.parse(frame(rows, [packed(ONE, TWO)]))


def test_a_reference_without_histograms_is_refused() -> None:
    with pytest.raises(Internal, match="refer to histograms that are not there, of 0"):
        reference_frames.parse(frame([0], []))


@given(st.data())
def test_words_of_histograms_are_refused_exactly_where_they_are_none(data: st.DataObject) -> None:
    """As `PackedHistograms.of_words` does, which takes them apart frame by frame."""
    whole = frame([0, 1], [packed(ONE, TWO)])
    words = np.frombuffer(whole, np.int64).copy()
    begin = VALUES_AT + 2
    word, bit = data.draw(st.integers(begin, len(words) - 1)), data.draw(st.integers(0, 62))
    words[word] ^= 1 << bit
    try:
        expected = PackedHistograms.of_words(words[begin:].copy())
    except ValueError as error:
        with pytest.raises(Internal, match="for series") as raised:
            reference_frames.parse(words.tobytes())
        assert str(error) in str(raised.value)
        return
    if len(expected) < 2:
        with pytest.raises(Internal, match="refer to histograms"):
            reference_frames.parse(words.tobytes())
        return
    found = reference_frames.parse(words.tobytes()).histograms
    assert found is not None and [f.sections for f in found.frames] == [f.sections for f in expected.frames]


def test_runs_that_do_not_have_all_samples_are_refused() -> None:
    words = np.frombuffer(frame([0, 1], [packed(ONE, TWO)]), np.int64).copy()
    words[HEADER] = 7 | 3 << reference_frames.COUNT_SHIFT
    with pytest.raises(Internal, match="not in the form"):
        reference_frames.parse(words.tobytes())


@pytest.mark.parametrize(
    "changed", [{1: -1}, {2: -1}, {2: 1 << 62}, {3: 1 << 62}, {2: 1 << 61, 3: 1 << 62}, {4: 1}, {5: 1 << 62}]
)
def test_a_header_that_does_not_fit_its_frame_is_refused(changed: dict[int, int]) -> None:
    words = np.frombuffer(frame([0, 0], [packed(ONE)]), np.int64).copy()
    reference_frames.parse(words.tobytes())
    for place, word in changed.items():
        words[place] = word
    with pytest.raises(Internal, match="is not in the form of"):
        reference_frames.parse(words.tobytes())


@pytest.mark.parametrize("data", [b"", b"arrival4", b"arrival3" + bytes(4)])
def test_a_frame_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(Internal, match=f"a frame of {len(data)} bytes"):
        reference_frames.parse(data)

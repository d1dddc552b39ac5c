"""Histograms as the words of frames: checked as strictly as those that are decoded, and the same when they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.histograms import frames, packed
from shared.histograms.packed import PackedHistograms
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import custom, exponential
from tests.oracle_native_histograms import NativeHistogram

EXAMPLES = settings(max_examples=100, deadline=None)
ONE = NativeHistogram(schema=0, positive={1: 3.0, 2: 1.0}, negative={4: 2.0}, count=6.0, sum=1.0)
CUSTOM = NativeHistogram(schema=-53, positive={0: 2.0}, count=2.0, bounds=(0.5, 1.0))


def batches(least: int = 0) -> st.SearchStrategy:
    return st.lists(st.one_of(exponential(), custom()), min_size=least, max_size=6).map(batch_of)


def texts(batch) -> list[str]:
    return [repr(histogram) for histogram in histograms_of(batch)]


def words_of(packed_histograms: PackedHistograms) -> np.ndarray:
    return np.frombuffer(b"".join(map(bytes, packed_histograms.bytes())), np.int64)


@EXAMPLES
@given(st.lists(batches(), min_size=1, max_size=4))
def test_frames_one_after_another_are_all_their_rows(own) -> None:
    together = packed.joined([PackedHistograms.of(batch) for batch in own])
    again = PackedHistograms.of_words(words_of(together))
    expected = [text for batch in own for text in texts(batch)]
    assert len(again) == len(together) == len(expected)
    assert again.nbytes == sum(len(bytes(part)) for part in together.bytes())
    assert texts(again.unpacked()) == texts(together.unpacked()) == expected


@pytest.mark.parametrize("batch", [[ONE, CUSTOM, ONE], [CUSTOM], [ONE]])
def test_words_are_refused_exactly_where_their_frame_cannot_be_decoded(batch: list[NativeHistogram]) -> None:
    """Each byte of a frame is replaced by others."""
    whole = bytes(frames.encode(batch_of(batch)))
    refused = 0
    for at in range(len(whole)):
        for other in {0, 1, 2, 3, 9, 0x7F, 0x80, 0xFF, 0xCB, whole[at] ^ 1}:
            damaged = whole[:at] + bytes([other]) + whole[at + 1 :]
            try:
                expected = texts(frames.decode(damaged))
            except ValueError:
                refused += 1
                with pytest.raises(ValueError, match="something else than histograms"):
                    PackedHistograms.of_words(np.frombuffer(damaged, np.int64))
            else:
                assert texts(PackedHistograms.of_words(np.frombuffer(damaged, np.int64)).unpacked()) == expected
    assert refused > len(whole)


@EXAMPLES
@given(batches(least=1), st.data())
def test_words_that_lack_some_or_have_more_are_refused(batch, data) -> None:
    words = words_of(PackedHistograms.of(batch))
    cut = data.draw(st.integers(0, len(words) - 1))
    more = np.concatenate((words, words[:cut])) if cut else words[:0]
    for wrong in (words[:cut], more):
        with pytest.raises(ValueError, match="histograms from byte"):
            PackedHistograms.of_words(wrong)


@pytest.mark.parametrize("counts", [-1, 1 << 60, -(1 << 60), (1 << 63) - 1])
def test_a_number_of_counts_that_cannot_be_is_refused(counts: int) -> None:
    words = words_of(PackedHistograms.of(batch_of([ONE]))).copy()
    words[3] = counts
    with pytest.raises(ValueError, match="something else"):
        PackedHistograms.of_words(words)


def test_words_at_odd_addresses_are_copied() -> None:
    octets = bytearray(b"\0" + words_of(PackedHistograms.of(batch_of([ONE]))).tobytes())
    for first in (0, 1):
        view = memoryview(octets)[first : len(octets) - 1 + first]
        words = packed.aligned_words(view)
        assert words.flags.aligned
        assert words.tobytes() == bytes(view)

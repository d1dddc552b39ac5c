"""Histograms as bytes, and samples that refer to histograms."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.histograms import frame_writing, frames, references
from shared.histograms.batch import HistogramBatch, Layouts, concatenated, sealed
from shared.promql.model import STALE_NAN_BITS
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import custom, exponential
from tests.oracle_native_histograms import CUSTOM, NativeHistogram

EXAMPLES = settings(max_examples=60, deadline=None)


def histograms() -> st.SearchStrategy[NativeHistogram]:
    return st.one_of(exponential(), custom())


def batches() -> st.SearchStrategy:
    return st.lists(histograms(), max_size=8).map(batch_of)


def texts(batch) -> list[str]:
    return [repr(histogram) for histogram in histograms_of(batch)]


@EXAMPLES
@given(batches())
def test_a_batch_has_the_same_rows_after_it_was_bytes(batch) -> None:
    frame = frames.encode(batch)
    assert len(frame) % 8 == 0
    assert texts(frames.decode(frame)) == texts(batch)


@EXAMPLES
@given(batches(), st.data())
def test_no_layout_is_written_that_no_row_has(batch, data) -> None:
    rows = data.draw(st.lists(st.integers(0, max(len(batch) - 1, 0)), max_size=4 if len(batch) else 0))
    taken = batch.take(np.array(rows, np.int64))
    again = frames.decode(frames.encode(taken))
    assert texts(again) == [texts(batch)[row] for row in rows]
    assert set(again.columns.layout.tolist()) == set(range(len(again.layouts)))


@EXAMPLES
@given(batches(), st.data())
def test_frames_written_at_once_are_those_of_their_rows_alone(batch, data) -> None:
    parts = data.draw(st.lists(st.lists(st.integers(0, len(batch) - 1), max_size=4), max_size=4)) if len(batch) else []
    order = np.array([row for rows in parts for row in rows], np.int64)
    plan = frame_writing.Plan.of(batch, order, np.cumsum([len(rows) for rows in parts], dtype=np.int64))
    sizes = plan.table[:, frame_writing.BYTES].tolist()
    places = np.cumsum([8, *sizes])[:-1]
    out = np.full(16 + sum(sizes), 0xFF, np.uint8)  # what is not written shows
    plan.write(out, places)
    for rows, place, size in zip(parts, places.tolist(), sizes, strict=True):
        frame = out[place : place + size].tobytes()
        assert frame == (bytes(frames.encode(batch.take(np.array(rows)))) if rows else b"")
        assert not rows or texts(frames.decode(frame)) == [texts(batch)[row] for row in rows]
    assert (out[:8] == 0xFF).all() and (out[-8:] == 0xFF).all()


@pytest.mark.parametrize("largest", [255.0, 256.0, 65_535.0, 65_536.0, 2.0**32 - 1, 2.0**32, 2.0**53, 0.5, -0.0])
def test_counts_are_exact_at_the_ends_of_each_type(largest: float) -> None:
    batch = batch_of([NativeHistogram(schema=0, positive={1: largest, 2: 1.0}, count=largest, sum=1.0)])
    again = frames.decode(frames.encode(batch)).columns
    assert np.array_equal(again.counts.view(np.int64), batch.columns.counts.view(np.int64))
    assert np.array_equal(again.observations.view(np.int64), batch.columns.observations.view(np.int64))


@pytest.mark.parametrize(
    ("column", "value"),
    [("schema", 9), ("schema", -5), ("zero_at", 3), ("zero_at", -1), ("zero_at", -2), ("schema", CUSTOM)],
)
def test_layouts_that_cannot_be_are_refused(column: str, value: int) -> None:
    batch = batch_of([NativeHistogram(schema=0, positive={1: 1.0, 2: 1.0})])
    table = batch.layouts.columns
    wrong = table._replace(**{column: np.full_like(getattr(table, column), value)})
    with pytest.raises(ValueError, match="layouts of histograms"):
        frames.decode(frames.encode(HistogramBatch(Layouts(sealed(wrong)), batch.columns)))


@pytest.mark.parametrize("index", [-1, 3])
def test_custom_buckets_without_boundaries_are_refused(index: int) -> None:
    batch = batch_of([NativeHistogram(schema=CUSTOM, positive={index: 1.0}, bounds=(1.0, 2.0))])
    with pytest.raises(ValueError, match="layouts of histograms"):
        frames.decode(frames.encode(batch))


@pytest.mark.parametrize("count", [-1.0, -0.0, 0.5, np.nan, np.inf, -np.inf, 2.0**52, 2.0**63, 5e-324, -(2.0**52)])
def test_one_count_that_is_no_small_whole_number_leaves_all_exact(count: float) -> None:
    counts = {i: float(i) for i in range(20)} | {11: count}
    batch = batch_of([NativeHistogram(schema=0, positive=counts, count=7.0, sum=1.0)])
    again = frames.decode(frames.encode(batch)).columns
    assert np.array_equal(again.counts.view(np.int64), batch.columns.counts.view(np.int64))


def test_small_counts_take_a_byte() -> None:
    wide = batch_of([NativeHistogram(schema=0, positive={i: 1e9 * i for i in range(1000)})] * 8)
    small = batch_of([NativeHistogram(schema=0, positive={i: float(i % 7) for i in range(1000)})] * 8)
    assert len(frames.encode(wide)) > 8 * 8 * 1000 > 7 * 1000 + len(frames.encode(small))


@EXAMPLES
@given(st.lists(histograms(), min_size=1, max_size=3).map(batch_of), st.data())
def test_bytes_that_lack_some_are_refused(batch, data) -> None:
    frame = frames.encode(batch)
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(ValueError, match="histograms"):
        frames.decode(frame[:cut])


def test_a_row_of_a_layout_that_is_not_there_is_refused() -> None:
    batch = batch_of([NativeHistogram(schema=0, positive={1: 3.0}, count=3.0, sum=1.0)])
    frame = bytearray(frames.encode(batch))
    at = len(frame) - 24  # layout, schema and flags take a word each
    assert struct.unpack_from("<i", frame, at) == (0,)
    for layout in (1, -1):
        struct.pack_into("<i", frame, at, layout)
        with pytest.raises(ValueError, match="layouts"):
            frames.decode(frame)


# References


def test_references_tell_their_rows_and_are_no_other_number() -> None:
    rows = np.array([0, 1, 77, (1 << 48) - 1])
    values = references.references(rows)
    assert references.is_reference(values).all()
    assert references.rows_of(values).tolist() == rows.tolist()
    others = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, -np.nan, 5e-324])
    stale = np.array([STALE_NAN_BITS, 0x7FF8000000000001, 0x7FFC000000000000, -1]).view(np.float64)
    assert not references.is_reference(np.concatenate((others, stale))).any()


def test_what_comes_from_outside_is_no_reference() -> None:
    values = np.array([1.0, *references.references(np.array([3])), np.nan])
    cleaned = references.without_references(values)
    assert not references.is_reference(cleaned).any()
    assert np.array_equal(cleaned, [1.0, np.nan, np.nan], equal_nan=True)
    plain = np.array([1.0, np.nan])
    assert references.without_references(plain) is plain


@EXAMPLES
@given(st.lists(st.lists(exponential(), min_size=1, max_size=4), min_size=1, max_size=4), st.data())
def test_stacked_values_refer_to_the_same_histograms(groups, data) -> None:
    parts, expected = [], []
    for group in groups:
        rows = data.draw(st.lists(st.integers(0, len(group) - 1), max_size=5))
        floats = [1.0, *references.references(np.array(rows, np.int64)), np.nan]
        parts.append((np.array(floats), batch_of(group)))
        expected.append([texts(batch_of([group[row]]))[0] for row in rows])
    parts.append((np.array([2.0]), None))
    moved, batch = references.stacked(parts)
    all_texts = texts(batch)
    for values, wanted in zip(moved, expected, strict=False):
        found = references.is_reference(values)
        assert [all_texts[row] for row in references.rows_of(values[found])] == wanted
        assert values[0] == 1.0
    assert moved[-1].tolist() == [2.0]


def test_parts_of_one_batch_share_it() -> None:
    batch = batch_of([NativeHistogram(schema=0, positive={1: 3.0}, count=3.0, sum=1.0)] * 3)
    values = references.references(np.arange(3))
    moved, joined = references.stacked([(values[:1], batch), (values[1:], batch)])
    assert joined is batch
    assert [references.rows_of(part).tolist() for part in moved] == [[0], [1, 2]]


def test_only_used_histograms_are_kept() -> None:
    batch = concatenated([batch_of([NativeHistogram(schema=0, positive={1: float(i)})]) for i in range(5)])
    values = np.array([1.0, *references.references(np.array([3, 1, 3]))])
    moved, used = references.used_only(values, batch)
    assert used is not None and texts(used) == [texts(batch)[1], texts(batch)[3]]
    assert references.rows_of(moved[1:]).tolist() == [1, 0, 1]
    assert references.used_only(np.array([1.0]), batch)[1] is None
    assert references.used_only(references.references(np.arange(5)), batch)[1] is batch

"""Samples that are histograms, or have start timestamps, for tests: as Python values and as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from shared import labels
from shared.frames import samples as sample_frames
from shared.frames.samples import EXTENDED_MARK
from shared.hashing import hash64
from shared.histograms import references
from shared.histograms.batch import HistogramBatch
from shared.histograms.packed import PackedHistograms
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import custom, exponential
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.series_shard import EVERYTHING, Shard

Value = float | NativeHistogram
Run = tuple[str, list[tuple[int, Value, int]]]
"""The label `job` of a series, and (Unix ms, value, start timestamp) of its samples."""


def any_values() -> st.SearchStrategy[Value]:
    return st.one_of(st.floats(allow_nan=False), exponential(), custom())


def starts() -> st.SearchStrategy[int]:
    return st.sampled_from([0, 0, 1, -5, 1 << 40])


def columns_of(own: Sequence[Value]) -> tuple[np.ndarray, HistogramBatch | None]:
    """(float64[n], the histograms they refer to)."""
    is_histogram = np.array([isinstance(value, NativeHistogram) for value in own], np.bool_)
    values = np.zeros(len(own))
    values[~is_histogram] = [value for value in own if not isinstance(value, NativeHistogram)]
    histograms = [value for value in own if isinstance(value, NativeHistogram)]
    values[is_histogram] = references.references(np.arange(len(histograms)))
    return values, batch_of(histograms) if histograms else None


def start_column(own: Sequence[int]) -> np.ndarray | None:
    return np.array(own, np.int64) if any(own) else None


def text_of(value: Value) -> str:
    """What the value is, to be compared."""
    if isinstance(value, NativeHistogram):
        value = replace(
            value, positive=dict(sorted(value.positive.items())), negative=dict(sorted(value.negative.items()))
        )
    return repr(value)


def texts(values: np.ndarray, histograms: HistogramBatch | PackedHistograms | None) -> list[str]:
    """What each of these values is."""
    if isinstance(histograms, PackedHistograms):
        histograms = histograms.unpacked()
    rows = histograms_of(histograms) if histograms is not None else []
    is_histogram, row_of = references.is_reference(values).tolist(), references.rows_of(values).tolist()
    return [text_of(rows[row_of[i]] if is_histogram[i] else value) for i, value in enumerate(values.tolist())]


def frame(own: list[Run]) -> bytes:
    """The frame with these samples of series by their label `job`."""
    texts_of_series = [labels.encode((("__name__", "m"), ("job", job))) for job, _ in own]
    entries = [entry for _, of_run in own for entry in of_run]
    values, histograms = columns_of([value for _, value, _ in entries])
    label_bytes = b"".join(texts_of_series)
    words = np.concatenate(
        [
            [EXTENDED_MARK, len(own), len(entries), len(label_bytes)],
            np.array([hash64(text) for text in texts_of_series], np.uint64).view(np.int64),
            np.cumsum([0, *map(len, texts_of_series)]),
            np.array([len(of_run) for _, of_run in own], np.int64),
            np.array([time for time, _, _ in entries], np.int64),
            values.view(np.int64),
        ]
    ).astype(np.int64)
    padded = label_bytes + bytes(-len(label_bytes) % 8)
    start_timestamps = start_column([start for _, _, start in entries])
    return bytes(sample_frames.extended(words.tobytes() + padded, start_timestamps, histograms))


def entries_of(
    times_ms: np.ndarray, values: np.ndarray, own_starts: np.ndarray | None, histograms: HistogramBatch | None
) -> list[tuple[int, str, int]]:
    found = np.zeros(len(values), np.int64) if own_starts is None else own_starts
    return list(zip(times_ms.tolist(), texts(values, histograms), found.tolist(), strict=True))


def read(shard: Shard) -> dict[str, list[tuple[int, str, int]]]:
    """By job, what a read of the shard gives."""
    lookup, ids = shard.part.select([[]], *EVERYTHING)
    frame_of_labels = lookup.frame(ids, shard.symbols)
    found = shard.part.read(ids, *EVERYTHING)
    entries = entries_of(found.timestamps_ms, found.values, found.start_timestamps_ms, found.histograms)
    bounds = found.offsets.tolist()
    return {dict(frame_of_labels.labels(row))["job"]: entries[bounds[row] : bounds[row + 1]] for row in range(len(ids))}

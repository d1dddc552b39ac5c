"""The oracle's native histograms as batches and back, and as messages of remote write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadtest.harness.histogram_messages import histogram_message
from shared.histograms.batch import HINT, NO_ZERO, HistogramBatch, HistogramColumns, sealed
from shared.histograms.interning import collected, collection, intern
from tests.oracle_native_histograms import CUSTOM, Hint, NativeHistogram


def batch_of(histograms: Sequence[NativeHistogram]) -> HistogramBatch:
    buckets = sum(len(h.positive) + len(h.negative) + 1 for h in histograms)
    layouts = collection(len(histograms) + 1, buckets + 1, sum(len(h.bounds) for h in histograms) + 1)
    numbers, counts, start = [], [], [0]
    for h in histograms:
        negative, positive = sorted(h.negative, reverse=True), sorted(h.positive)
        zero = [] if h.schema == CUSTOM else [0]
        indexes = [*negative, *zero, *positive]
        at, bound_at = layouts.start[layouts.used[0]], layouts.bound_start[layouts.used[0]]
        layouts.indexes[at : at + len(indexes)] = indexes
        layouts.bound[bound_at : bound_at + len(h.bounds)] = h.bounds
        numbers.append(
            intern(layouts, h.schema, h.zero_threshold, len(negative) if zero else NO_ZERO, len(indexes), len(h.bounds))
        )
        counts += [
            *(h.negative[i] for i in negative),
            *(h.zero_count for _ in zero),
            *(h.positive[i] for i in positive),
        ]
        start.append(len(counts))
    return HistogramBatch(
        collected(layouts),
        sealed(
            HistogramColumns(
                np.array(numbers, np.int32),
                np.array([h.hint.value for h in histograms], np.uint8),
                np.array([h.count for h in histograms], float),
                np.array([h.sum for h in histograms], float),
                np.array(start, np.int64),
                np.array(counts, float),
            )
        ),
    )


def histograms_of(batch: HistogramBatch) -> list[NativeHistogram]:
    return [_histogram(batch, row) for row in range(len(batch))]


def _histogram(batch: HistogramBatch, row: int) -> NativeHistogram:
    rows, layouts = batch.columns, batch.layouts.columns
    layout = int(rows.layout[row])
    indexes = layouts.indexes[layouts.start[layout] : layouts.start[layout + 1]].tolist()
    counts = rows.counts[rows.start[row] : rows.start[row + 1]].tolist()
    assert len(indexes) == len(counts)
    zero = int(layouts.zero_at[layout])
    pairs = list(zip(indexes, counts, strict=True))
    bounds = layouts.bound[layouts.bound_start[layout] : layouts.bound_start[layout + 1]]
    return NativeHistogram(
        schema=int(layouts.schema[layout]),
        count=float(rows.observations[row]),
        sum=float(rows.sum[row]),
        zero_threshold=float(layouts.zero_threshold[layout]),
        zero_count=0.0 if zero == NO_ZERO else counts[zero],
        positive=dict(pairs[zero + 1 :]),
        negative=dict(pairs[: max(zero, 0)]),
        bounds=tuple(bounds.tolist()),
        hint=Hint(int(rows.flags[row]) & HINT),
    )


def message_of(h: NativeHistogram, time_ms: int, start_ms: int = 0) -> bytes:
    """A message of remote write, with float counts."""
    positive, negative = sorted(h.positive), sorted(h.negative)
    zero: dict[str, Any] = {} if h.is_custom else {"zero_count_float": h.zero_count}
    return histogram_message(
        timestamp=time_ms, start_timestamp=start_ms, schema=h.schema, count_float=h.count, sum=h.sum,
        zero_threshold=h.zero_threshold, **zero, custom_values=h.bounds, reset_hint=h.hint.value,
        positive_spans=_spans(positive), positive_counts=[h.positive[i] for i in positive],
        negative_spans=_spans(negative), negative_counts=[h.negative[i] for i in negative],
    )  # fmt: skip


def _spans(indexes: Sequence[int]) -> list[tuple[int, int]]:
    """A span for each run of neighbours: (its distance from the one before, its length)."""
    spans: list[tuple[int, int]] = []
    end = 0
    for index in indexes:
        if spans and index == end:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((index - end, 1))
        end = index + 1
    return spans

"""An in-memory `Source` for tests and benchmarks: label sets and their samples in flat arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import re2
from numpy.typing import ArrayLike, NDArray

from shared.errors import BadData
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import used_only
from shared.labels import LabelFrame, Labels, Symbols
from shared.promql.ast import Matcher
from shared.promql.model import Samples


def label_set(labels: Mapping[str, str]) -> Labels:
    """The label set of names and values; an empty value means that the series lacks the label."""
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def matches(matcher: Matcher, value: str) -> bool:
    """Whether a label's value (empty where the series lacks the label) satisfies the matcher."""
    if matcher.op == "=":
        return value == matcher.value
    if matcher.op == "!=":
        return value != matcher.value
    try:
        found = re2.fullmatch(matcher.value, value) is not None
    except re2.error as error:
        raise BadData(f"{matcher.value!r} is not a regular expression of RE2: {error}") from error
    return found if matcher.op == "=~" else not found


class MemorySource:
    """{label set: (timestamps_ms, values) or (timestamps_ms, values, start_timestamps_ms)}; timestamps ascend.
    Values may refer to rows of `histograms`."""

    def __init__(self, series: Mapping[Labels, Sequence[ArrayLike]], histograms: HistogramBatch | None = None) -> None:
        self.labels = list(series)
        columns = [tuple(np.asarray(column) for column in samples) for samples in series.values()]
        lengths = [len(samples[0]) for samples in columns]
        self._offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        self._timestamps = _joined([samples[0] for samples in columns], np.int64)
        self._values = _joined([samples[1] for samples in columns], np.float64)
        self._starts: NDArray[np.int64] | None = None
        if any(len(samples) > 2 for samples in columns):
            nothing = [np.zeros(n, dtype=np.int64) for n in lengths]
            rows = [c[2] if len(c) > 2 else zeros for c, zeros in zip(columns, nothing, strict=True)]
            self._starts = _joined(rows, np.int64)
        self._histograms = histograms
        self._frames: dict[int, tuple[Symbols, LabelFrame]] = {}

    @classmethod
    def of(cls, series: Mapping[str, Sequence[ArrayLike]]) -> MemorySource:
        """Series named by text such as `metric{a="b"}`, which must be one a selector could be."""
        from shared.promql.parser import parse_selector

        sets = {tuple(sorted((m.name, m.value) for m in parse_selector(text))): s for text, s in series.items()}
        return cls(sets)

    def frame(self, symbols: Symbols) -> LabelFrame:
        """All label sets as columns of codes of `symbols`; made once a table."""
        held = self._frames.get(id(symbols))
        if held is None or held[0] is not symbols:
            held = self._frames[id(symbols)] = (symbols, LabelFrame.of(self.labels, symbols))
        return held[1]

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> MemorySelection:
        keep = np.ones(len(self.labels), dtype=np.bool_)
        frame = self.frame(symbols)
        for matcher in matchers:
            codes, inverse = np.unique(frame.column(matcher.name), return_inverse=True)
            good = np.array([matches(matcher, text) for text in symbols.texts(codes)], dtype=np.bool_)
            keep &= good[inverse]
        return MemorySelection(self, frame, np.flatnonzero(keep), start_ms, end_ms)


class MemorySelection:
    def __init__(
        self, source: MemorySource, frame: LabelFrame, rows: NDArray[np.intp], start_ms: int, end_ms: int
    ) -> None:
        self._source = source
        self._rows = rows
        self._start_ms = start_ms
        self._end_ms = end_ms
        self._labels = frame if len(rows) == frame.size else frame.take(rows)

    @property
    def labels(self) -> LabelFrame:
        return self._labels

    def read(self, first: int, last: int) -> Samples:
        source, rows = self._source, self._rows[first:last]
        begins, ends = source._offsets[rows], source._offsets[rows + 1]
        lengths = ends - begins
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        at: slice | NDArray[np.int64]
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
            at = slice(int(begins[0]), int(ends[-1]))
        else:
            at = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1], dtype=np.int64)
        timestamps, values = source._timestamps[at], source._values[at]
        starts = None if source._starts is None else source._starts[at]
        inside = (timestamps >= self._start_ms) & (timestamps <= self._end_ms)
        if not inside.all():
            offsets = np.concatenate([[0], np.cumsum(inside)]).astype(np.int64)[offsets]
            timestamps, values = timestamps[inside], values[inside]
            starts = None if starts is None else starts[inside]
        values, histograms = used_only(values, source._histograms)
        return Samples(offsets, timestamps, values, starts, histograms)


def _joined(columns: Sequence[NDArray], dtype: type) -> NDArray:
    return np.concatenate(columns).astype(dtype) if columns else np.zeros(0, dtype=dtype)

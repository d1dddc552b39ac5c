"""The index of one shard's series: canonical label bytes → series id, and each series' labels as interned codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared import kernel_types as types
from shared.kernels import kernel
from shared.labels import Symbols
from shared.protobuf_fields import checked_length
from shared.xxh64 import Bytes, xxh64
from worker.series.growing_array import GrowingArray
from worker.series.index.bytemap import ByteMap
from worker.series.index.lookup import Lookup
from worker.series.index.patterns import Patterns
from worker.series.index.postings import Postings

LABEL_BYTES_MIN = 8
"""The least length of a label field: a tag and a length for the field, its name and its value, and at least one byte
each of name and value."""

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_HASHES = types.Array(types.uint64, 1, "C")


@kernel(types.int64(Bytes, _INTS_IN, _INTS, _INTS, _INTS, _HASHES), first=True)
def _split(
    data: np.ndarray,
    offsets: np.ndarray,
    counts: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    hashes: np.ndarray,
) -> int:
    """Split label sets into texts. Set i is data[offsets[i]:offsets[i + 1]], in canonical form (it was checked when it
    came in). The texts, names and values in turn, go to `starts`, `ends` and `hashes`; counts[i] is the number of
    labels of set i. Returns the number of texts."""
    out = 0
    for i in range(len(offsets) - 1):
        at, first = offsets[i], out
        while at < offsets[i + 1]:
            _, at = checked_length(data, at + 1)
            for _ in range(2):
                size, at = checked_length(data, at + 1)
                starts[out], ends[out] = at, at + size
                hashes[out] = xxh64(data, at, at + size)
                at += size
                out += 1
        counts[i] = (out - first) // 2
    return out


class Index:
    """Series get ids 0, 1, 2 … in order of appearance. Not safe for concurrent use, but what `lookup` returns is."""

    def __init__(self, symbols: Symbols, patterns: Patterns) -> None:
        self._symbols = symbols
        self._patterns = patterns
        self._series = ByteMap()
        self._numbers: dict[str, int] = {}
        self._name_texts: list[str] = []
        self._name_numbers = np.zeros(0, dtype=np.int32)  # by code; -1: not a label name
        self._label_offsets = GrowingArray(np.int64)
        self._label_offsets.extend(np.zeros(1, dtype=np.int64))
        self._label_names = GrowingArray(np.int32)
        self._label_values = GrowingArray(np.int32)
        self._postings = Postings()

    def __len__(self) -> int:
        return len(self._series)

    @property
    def size_bytes(self) -> int:
        """Memory of label bytes, labels by series and postings; the texts of the symbols are not in it."""
        labels = self._label_offsets.size_bytes + self._label_names.size_bytes + self._label_values.size_bytes
        return self._series.size_bytes + labels + self._postings.size_bytes

    def resolve(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """int64[n]: the ids of the series with canonical label bytes data[starts[i]:ends[i]], whose xxh64 hashes are
        hashes[i]. Unknown series are registered."""
        ids = self._series.resolve(data, starts, ends, hashes)
        registered = self._label_offsets.size - 1
        if len(self._series) > registered:
            self._register(registered)
        return ids

    def label_bytes(self, first: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(canonical label bytes of the series from id `first` on, int64[n+1] offsets of each into them)."""
        return self._series.strings(first)

    def lookup(self) -> Lookup:
        """The index as it is now, for readers."""
        size = self._label_offsets.size - 1
        return Lookup(
            self._symbols,
            self._patterns,
            size,
            self._label_offsets.rows(),
            self._label_names.rows(),
            self._label_values.rows(),
            tuple(self._name_texts),
            self._numbers,
            self._postings.lists(),
        )

    def _register(self, first: int) -> None:
        """Enter the labels of the series from id `first` on."""
        data, offsets = self._series.strings(first)
        series = len(offsets) - 1
        texts_max = 2 * (len(data) // LABEL_BYTES_MIN)
        starts, ends = np.empty(texts_max, dtype=np.int64), np.empty(texts_max, dtype=np.int64)
        hashes, counts = np.empty(texts_max, dtype=np.uint64), np.empty(series, dtype=np.int64)
        texts = _split(data, offsets, counts, starts, ends, hashes)
        codes = self._symbols.codes_of(data, starts[:texts], ends[:texts], hashes[:texts])
        names, values = self._names_of(codes[0::2]), np.ascontiguousarray(codes[1::2])
        self._label_names.extend(names)
        self._label_values.extend(values)
        self._label_offsets.extend(self._label_offsets.data[first] + np.cumsum(counts))
        self._postings.add(names, values, np.repeat(np.arange(first, first + series, dtype=np.int32), counts))

    def _names_of(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32[n]: the numbers of label names, given their codes. New names get the next numbers."""
        codes_end = int(codes.max(initial=0)) + 1
        if codes_end > len(self._name_numbers):
            unnumbered = np.full(codes_end - len(self._name_numbers), -1, dtype=np.int32)
            self._name_numbers = np.concatenate((self._name_numbers, unnumbered))
        names = self._name_numbers
        for code in np.unique(codes[names[codes] < 0]).tolist():
            text = self._symbols.text(code)
            names[code] = len(self._name_texts)
            self._numbers[text] = len(self._name_texts)
            self._name_texts.append(text)
        return names[codes]

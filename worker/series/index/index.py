"""The index of one shard's series: canonical label bytes → series id, and each series' labels as interned codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import checked_length
from shared.xxh64 import Bytes, equal_bytes, xxh64
from worker.series.growing_array import GrowingArray
from worker.series.index.label_sets import LabelSets, Registered
from worker.series.index.lookup import Lookup
from worker.series.index.patterns import Patterns
from worker.series.index.postings import Postings, distinct
from worker.series.index.texts import TextTable

LABEL_BYTES_MIN = 8
"""The least length of a label field: a tag and a length for the field, its name and its value, and at least one byte
each of name and value."""
SERIES_MAX = 1 << 31
"""Postings have 4 bytes, signed, for each id."""

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_HASHES = types.Array(types.uint64, 1, "C")
_FLAGS = types.Array(types.boolean, 1, "C")
_CODES = types.Array(types.int32, 1, "C")
_CODES_IN = types.Array(types.int32, 1, "C", readonly=True)


@inlined(allocates=False)
def _text(
    data: np.ndarray, at: int, size: int, alike: int, count: int, starts: np.ndarray, ends: np.ndarray, hashes: Any
) -> int:
    """The number of the text data[at:at + size]: `alike` if that text (-1: none) is equal, or else `count`, the next
    number, under which it is then noted."""
    if alike >= 0 and ends[alike] - starts[alike] == size and equal_bytes(data, starts[alike], data, at, size):
        return alike
    starts[count], ends[count] = at, at + size
    hashes[count] = xxh64(data, at, at + size)
    return count


@kernel(types.int64(Bytes, _INTS_IN, _INTS, _CODES, _CODES, _INTS, _INTS, _HASHES, _FLAGS), first=True, allocates=False)
def _split(
    data: np.ndarray,
    offsets: np.ndarray,
    label_ends: np.ndarray,
    names: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    hashes: np.ndarray,
    is_name: np.ndarray,
) -> int:
    """Split label sets into texts. Set i is data[offsets[i]:offsets[i + 1]], in canonical form (it was checked when it
    arrived). Its labels end before label label_ends[i]; names[label] and values[label] are numbers of texts, which go
    to `starts`, `ends`, `hashes` and `is_name`. A text gets a new number unless it equals the text at the same position
    of the set before. Returns the number of texts."""
    texts = label = earlier = earlier_end = 0
    for i in range(len(offsets) - 1):
        at, first = offsets[i], label
        while at < offsets[i + 1]:
            _, at = checked_length(data, at + 1)
            is_beside = earlier < earlier_end
            size, at = checked_length(data, at + 1)
            name = _text(data, at, size, names[earlier] if is_beside else -1, texts, starts, ends, hashes)
            if name == texts:
                is_name[texts] = True
                texts += 1
            size, at = checked_length(data, at + size + 1)
            value = _text(data, at, size, values[earlier] if is_beside else -1, texts, starts, ends, hashes)
            if value == texts:
                is_name[texts] = False
                texts += 1
            at += size
            names[label], values[label] = name, value
            label += 1
            earlier += 1
        label_ends[i] = label
        earlier, earlier_end = first, label
    return texts


@kernel(
    types.void(_CODES_IN, _CODES_IN, _CODES_IN, _CODES_IN, _INTS_IN, types.int64, _CODES, _CODES, _INTS, _CODES),
    first=True,
    allocates=False,
)
def _enter(
    names: np.ndarray,
    values: np.ndarray,
    numbers: np.ndarray,
    codes: np.ndarray,
    label_ends: np.ndarray,
    first: int,
    label_names: np.ndarray,
    label_values: np.ndarray,
    keys: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Write the labels that `_split` has found, of the series from id `first` on, and their postings: the key of each
    label, and the id of its series. `numbers`: the number of each text that is a label name; `codes`: the code of each
    text."""
    label = 0
    for i in range(len(label_ends)):
        while label < label_ends[i]:
            name, value = numbers[names[label]], codes[values[label]]
            label_names[label], label_values[label] = name, value
            keys[label] = np.int64(name) << 32 | np.int64(value)
            ids[label] = first + i
            label += 1


class Index:
    """Series get ids 0, 1, 2 … in order of appearance. Not safe for concurrent use, but what `lookup` returns is."""

    def __init__(self, symbols: TextTable, patterns: Patterns) -> None:
        self._symbols = symbols
        self._patterns = patterns
        self._series = LabelSets()
        self._numbers: dict[str, int] = {}
        self._name_texts: list[str] = []
        self._name_codes = GrowingArray(np.int32)
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
        """Memory of label bytes, labels by series and postings, without the texts of the symbols."""
        labels = self._label_offsets.size_bytes + self._label_names.size_bytes + self._label_values.size_bytes
        return self._series.size_bytes + labels + self._postings.size_bytes

    def resolve(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        series_max: int = SERIES_MAX,
    ) -> NDArray[np.int64]:
        """int64[n]: the ids of the series with canonical label bytes data[starts[i]:ends[i]], whose xxh64 hashes are
        hashes[i]. Unknown series get ids, and are registered by the next call of `register`: one call for several
        batches costs less than one for each. Series beyond `series_max` get -1, and stay unknown."""
        registered = Registered(
            self._label_offsets.data,
            self._label_names.data,
            self._label_values.data,
            self._name_codes.data,
            *self._symbols.arrays(),
        )
        return self._series.resolve(data, starts, ends, hashes, registered, series_max)

    def register(self) -> None:
        """Enter the labels of the series that were added since the last call, so that selections find these series."""
        registered = self._label_offsets.size - 1
        if len(self._series) > registered:
            self._register(registered)

    def label_bytes(self, first: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(canonical label bytes of the series from id `first` on, int64[n+1] offsets of each into them); not of series
        whose bytes have been dropped."""
        return self._series.kept(first)

    def drop_label_bytes(self, upto: int) -> None:
        """Drop the label bytes of the series below `upto`, which must be registered and saved."""
        assert upto < self._label_offsets.size, f"series {upto} are to be dropped, {self._label_offsets.size - 1} known"
        self._series.drop(upto)

    def lookup(self) -> Lookup:
        """The current index, for readers."""
        size = self._label_offsets.size - 1
        return Lookup(
            self._symbols,
            self._patterns,
            size,
            self._label_offsets.rows(),
            self._label_names.rows(),
            self._label_values.rows(),
            tuple(self._name_texts),
            self._name_codes.rows(),
            self._numbers,
            self._postings.lists(),
        )

    def _register(self, first: int) -> None:
        """Enter the labels of the series from id `first` on."""
        data, offsets = self._series.kept(first)
        series, labels_max = len(offsets) - 1, len(data) // LABEL_BYTES_MIN
        names, values = np.empty(labels_max, dtype=np.int32), np.empty(labels_max, dtype=np.int32)
        starts, ends = np.empty(2 * labels_max, dtype=np.int64), np.empty(2 * labels_max, dtype=np.int64)
        hashes, is_name = np.empty(2 * labels_max, dtype=np.uint64), np.empty(2 * labels_max, dtype=np.bool_)
        label_ends = np.empty(series, dtype=np.int64)
        texts = _split(data, offsets, label_ends, names, values, starts, ends, hashes, is_name)
        codes = self._symbols.codes_of(data, starts[:texts], ends[:texts], hashes[:texts])
        numbers = np.empty(texts, dtype=np.int32)
        numbers[is_name[:texts]] = self._names_of(codes[is_name[:texts]])
        labels = int(label_ends[-1])
        keys, ids = np.empty(labels, dtype=np.int64), np.empty(labels, dtype=np.int32)
        label_names, label_values = self._label_names.room(labels), self._label_values.room(labels)
        _enter(names, values, numbers, codes, label_ends, first, label_names, label_values, keys, ids)
        self._label_offsets.extend(label_ends + self._label_offsets.data[first])
        self._postings.add(keys, ids)

    def _names_of(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32[n]: the numbers of label names, given their codes. New names get the next numbers."""
        codes_end = int(codes.max(initial=0)) + 1
        if codes_end > len(self._name_numbers):
            unnumbered = np.full(codes_end - len(self._name_numbers), -1, dtype=np.int32)
            self._name_numbers = np.concatenate((self._name_numbers, unnumbered))
        numbers = self._name_numbers[codes]
        if (numbers >= 0).all():
            return numbers
        for code in distinct(codes[numbers < 0]).tolist():
            text = self._symbols.text(code)
            self._name_codes.extend(np.array([code], dtype=np.int32))
            self._name_numbers[code] = len(self._name_texts)
            self._numbers[text] = len(self._name_texts)
            self._name_texts.append(text)
        return self._name_numbers[codes]

"""The exemplars of one shard: all of them in memory, bounded in bytes, in number per series and in age.

They become durable with their write: the journal has a record of them next to that of the samples. When samples are
sealed, all exemplars are written to rows `series/exemplars/<n>` of the store, in the batch that cuts the journal. A
start reads these rows and replays the later records. Replaying a record whose exemplars are in a row changes nothing.
"""

from __future__ import annotations

import time
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.settings import Settings
from shared.xxh64 import Bytes, copy_bytes, equal_bytes
from worker.series.exemplar_record import ExemplarRecord, decode
from worker.series.growing_array import GrowingArray
from worker.series.head import BEFORE
from worker.storage.faces import RowBatch, Rows

FIXED_BYTES = 40
"""Bytes in memory of one exemplar, besides its labels."""
KEPT_SHARE = 0.75
"""The share of the bound that is kept when the bound is reached, so that each exemplar is moved only a few times."""
ROW_EXEMPLARS = 4096
"""Exemplars of one row of the store: some 400 KB."""
STEP_BYTES_MIN = 64 << 10

PREFIX = b"series/exemplars/"
END = b"series/exemplars0"

ADDED, REPEATED, OLDER = range(3)

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


class SavedExemplars(msgspec.Struct, array_like=True):
    """One row of the store: `columns` as of `ExemplarRecord.frames`, with permanent ids."""

    count: int
    label_bytes: int
    columns: bytes

    def record(self) -> ExemplarRecord:
        """Raises ValueError."""
        return decode(self.columns, self.count, self.label_bytes)


@kernel(
    types.int64(
        *(_INTS_IN, _INTS_IN, _INTS_IN, _INTS_IN, Bytes),
        *(_INTS, _INTS, _INTS, _INTS, _INTS, _INTS, _OUT),
        *(types.int64, types.int64, _INTS),
    ),
    first=True,
)
def _append(
    new_series: np.ndarray,
    new_times: np.ndarray,
    new_values: np.ndarray,
    new_offsets: np.ndarray,
    new_labels: np.ndarray,
    last: np.ndarray,
    series: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    offsets: np.ndarray,
    previous: np.ndarray,
    labels: np.ndarray,
    size: int,
    per_series: int,
    tally: np.ndarray,
) -> int:
    """Append each exemplar unless its series already has it or has a later one. `values` are the bits of floats. Adds
    to `tally` how many were ADDED, REPEATED or OLDER; returns the new size."""
    for i in range(len(new_series)):
        number, at_ms = new_series[i], new_times[i]
        start, end = new_offsets[i], new_offsets[i + 1]
        earlier = last[number]
        if earlier >= 0 and times[earlier] > at_ms:
            tally[OLDER] += 1
            continue
        is_repeated = False
        for _ in range(per_series):
            if earlier < 0 or times[earlier] != at_ms:
                break
            if (
                values[earlier] == new_values[i]
                and offsets[earlier + 1] - offsets[earlier] == end - start
                and equal_bytes(labels, offsets[earlier], new_labels, start, end - start)
            ):
                is_repeated = True
                break
            earlier = previous[earlier]
        if is_repeated:
            tally[REPEATED] += 1
            continue
        series[size], times[size], values[size], previous[size] = number, at_ms, new_values[i], last[number]
        copy_bytes(labels, offsets[size], new_labels, start, end - start)
        offsets[size + 1] = offsets[size] + end - start
        last[number] = size
        size += 1
        tally[ADDED] += 1
    return size


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, types.int64, types.int64, types.int64, _INTS, _FLAGS), first=True)
def _choose(
    series: np.ndarray,
    times: np.ndarray,
    offsets: np.ndarray,
    after_ms: int,
    per_series: int,
    bytes_max: int,
    counts: np.ndarray,
    is_kept: np.ndarray,
) -> None:
    """Set is_kept[i] for the latest `per_series` exemplars of each series with t ≥ after_ms, the last to arrive first,
    as long as they have at most `bytes_max`. `counts`: zeros, by series."""
    size_bytes = 0
    for i in range(len(series) - 1, -1, -1):
        if times[i] < after_ms or counts[series[i]] >= per_series:
            continue
        size_bytes += FIXED_BYTES + offsets[i + 1] - offsets[i]
        if size_bytes > bytes_max:
            break
        counts[series[i]] += 1
        is_kept[i] = True


@kernel(types.int64(_FLAGS, _INTS, _INTS, _INTS, _INTS, _INTS, _INTS, _OUT), first=True)
def _compact(
    is_kept: np.ndarray,
    last: np.ndarray,
    series: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    offsets: np.ndarray,
    previous: np.ndarray,
    labels: np.ndarray,
) -> int:
    """Move the kept exemplars to the front, in their order. Returns how many there are."""
    last[:] = -1
    size = 0
    start = offsets[0]
    for i in range(len(is_kept)):
        end = offsets[i + 1]
        if is_kept[i]:
            number, at = series[i], offsets[size]
            series[size], times[size], values[size], previous[size] = number, times[i], values[i], last[number]
            for k in range(end - start):
                labels[at + k] = labels[start + k]
            offsets[size + 1] = at + end - start
            last[number] = size
            size += 1
        start = end
    return size


@kernel(types.void(_INTS_IN, _INTS_IN, Bytes, _INTS, _OUT))
def _gather_labels(
    rows: np.ndarray, offsets: np.ndarray, labels: np.ndarray, out_offsets: np.ndarray, out: np.ndarray
) -> None:
    for i in range(len(rows)):
        start, size = offsets[rows[i]], offsets[rows[i] + 1] - offsets[rows[i]]
        copy_bytes(out, out_offsets[i], labels, start, size)
        out_offsets[i + 1] = out_offsets[i] + size


class Exemplars:
    """Safe to use from many threads. Series are given by their numbers in the index.

    Bounds: the last `TRIPTYCH_EXEMPLARS_PER_SERIES` of a series, none older than `TRIPTYCH_EXEMPLARS_RETENTION` or
    `TRIPTYCH_RETENTION` before the newest of the shard, and the shard's part of `TRIPTYCH_EXEMPLARS_BYTES`. Exemplars
    beyond the first two bounds are no longer read, and are removed when the third bound is reached.
    """

    def __init__(self, store: Rows, settings: Settings) -> None:
        self._store = store
        self._bytes_max = -(-settings.exemplars_bytes // settings.shard_count())
        self._per_series = settings.exemplars_per_series
        self._retention_ms = min(filter(None, (settings.exemplars_retention_ms, settings.retention_ms)), default=0)
        self._lock = Lock()  # guards everything below
        self._last = np.full(0, -1, dtype=np.int64)  # by series: the position of its latest exemplar, -1 if it has none
        self._series, self._times, self._previous = (GrowingArray(np.int64) for _ in range(3))
        self._values = GrowingArray(np.int64)
        self._offsets = GrowingArray(np.int64)
        self._offsets.extend(np.zeros(1, dtype=np.int64))
        self._labels = GrowingArray(np.uint8)
        self._newest_ms = BEFORE
        self._tally = np.zeros(3, dtype=np.int64)
        self._dropped = 0
        self._changes = self._saving = self._saved = 0
        self._rows: list[ExemplarRecord] = []

    def __len__(self) -> int:
        return self._series.size

    @property
    def is_enabled(self) -> bool:
        return self._bytes_max > 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes() + self._last.nbytes

    def begin_counting(self) -> None:
        """Reset the counters: exemplars that a start restores and replays were counted when they arrived."""
        with self._lock:
            self._tally[:] = 0
            self._dropped = 0

    def counts(self) -> dict[str, int]:
        """Counters for the metrics: exemplars that were stored, refused and removed."""
        stored, repeated, older = self._tally.tolist()
        return {"stored": stored, "repeated": repeated, "out_of_order": older, "bound": self._dropped}

    def load(self) -> NDArray[np.int64]:
        """Read the rows. Returns the permanent ids of the series in them. Raises StoreDamaged."""
        for key, value in self._store.scan("meta", PREFIX, END):
            with self._store.decoding("meta", key):
                self._rows.append(msgspec.msgpack.decode(value, type=SavedExemplars).record())
        return np.concatenate([np.zeros(0, dtype=np.int64), *(record.series for record in self._rows)])

    def restore(self, permanent: NDArray[np.int64]) -> None:
        """Add the exemplars that `load` has read. `permanent`: the permanent id of each series, ascending."""
        for record in self._rows:
            at = np.minimum(np.searchsorted(permanent, record.series), max(len(permanent) - 1, 0))
            is_known = permanent[at] == record.series if len(permanent) else np.zeros(len(record), dtype=np.bool_)
            self.add(taken(record.of(at), np.flatnonzero(is_known)))
        with self._lock:
            if self.is_enabled:
                self._changes = 0  # the rows already have all of this
            elif self._rows:
                self._changes += 1  # the next `save` removes the rows
            self._rows = []

    def add(self, record: ExemplarRecord) -> None:
        """Store these exemplars, except those that their series already has and those older than the latest of their
        series, as in Prometheus."""
        if not len(record) or not self.is_enabled:
            return
        with self._lock:
            self._cover(int(record.series.max()))
            self._newest_ms = max(self._newest_ms, int(record.times_ms.max()))
            weight = record.label_offsets + FIXED_BYTES * np.arange(len(record) + 1)
            step_bytes = max(self._bytes_max // 4, STEP_BYTES_MIN)
            first = 0
            while first < len(record):
                end = int(np.searchsorted(weight, weight[first] + step_bytes, side="right")) - 1
                end = min(max(end, first + 1), len(record))
                self._append(record.between(first, end))
                if self._size_bytes() > self._bytes_max:
                    self._trim(int(self._bytes_max * KEPT_SHARE))
                first = end
            self._changes += 1

    def delete(self, series: NDArray[np.int64], start_ms: int, end_ms: int) -> None:
        """Remove the exemplars of these series with start ≤ t ≤ end."""
        with self._lock:
            is_deleted = self._among(series, start_ms, end_ms)
            if is_deleted.any():
                self._keep(~is_deleted)
                self._changes += 1

    def having(self, series: NDArray[np.int64], start_ms: int, end_ms: int) -> NDArray[np.int64]:
        """Those of the series that have exemplars with start ≤ t ≤ end, ascending."""
        with self._lock:
            return np.unique(self._series.rows()[self._among(series, start_ms, end_ms)])

    def find(self, series: NDArray[np.int64], start_ms: int, end_ms: int) -> ExemplarRecord:
        """The exemplars of these series with start ≤ t ≤ end, ordered by series and then by time."""
        with self._lock:
            is_matching = self._visible() & self._among(series, start_ms, end_ms)
            rows = np.flatnonzero(is_matching)
            return self._taken(rows[np.argsort(self._series.rows()[rows], kind="stable")])

    def save(self, batch: RowBatch, permanent: GrowingArray) -> None:
        """Add rows with all exemplars to `batch`, replacing the earlier rows, if anything has changed. `permanent`: the
        permanent id of each series."""
        with self._lock:
            self._saving = self._changes
            if self._saving == self._saved:
                return
            record = self._taken(np.flatnonzero(self._visible()))
        record = record.of(permanent.data[record.series])
        batch.delete_range("meta", PREFIX, END)
        for number, first in enumerate(range(0, len(record), ROW_EXEMPLARS)):
            part = record.between(first, min(first + ROW_EXEMPLARS, len(record)))
            row = SavedExemplars(len(part), len(part.labels), b"".join(part.frames()))
            batch.put("meta", PREFIX + number.to_bytes(4, "big"), msgspec.msgpack.encode(row))

    def saved(self) -> None:
        """Note that the batch of `save` is in the store."""
        self._saved = self._saving

    # Callers of the methods below hold the lock.

    def _size_bytes(self) -> int:
        return FIXED_BYTES * self._series.size + int(self._offsets.data[self._series.size])

    def _cover(self, highest: int) -> None:
        if highest >= len(self._last):
            grown = np.full(max(highest + 1, len(self._last) * 3 // 2), -1, dtype=np.int64)
            grown[: len(self._last)] = self._last
            self._last = grown

    def _append(self, record: ExemplarRecord) -> None:
        for column in (self._series, self._times, self._values, self._previous, self._offsets):
            column.reserve(len(record))
        self._labels.size = int(self._offsets.data[self._series.size])
        self._labels.reserve(len(record.labels))
        size = _append(
            *(record.series, record.times_ms, record.values.view(np.int64), record.label_offsets, record.labels),
            *(self._last, self._series.data, self._times.data, self._values.data, self._offsets.data),
            *(self._previous.data, self._labels.data, self._series.size, self._per_series, self._tally),
        )
        self._resize(size)

    def _resize(self, size: int) -> None:
        for column in (self._series, self._times, self._values, self._previous):
            column.size = size
        self._offsets.size = size + 1

    def _after_ms(self) -> int:
        """The time before which exemplars have expired. A time in the future expires nothing until then."""
        if not self._retention_ms:
            return BEFORE
        return max(BEFORE, min(self._newest_ms, int(time.time() * 1000)) - self._retention_ms)

    def _visible(self, bytes_max: int = np.iinfo(np.int64).max) -> NDArray[np.bool_]:
        is_kept = np.zeros(self._series.size, dtype=np.bool_)
        columns = (self._series.rows(), self._times.rows(), self._offsets.rows())
        _choose(*columns, self._after_ms(), self._per_series, bytes_max, np.zeros_like(self._last), is_kept)
        return is_kept

    def _among(self, series: NDArray[np.int64], start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        is_wanted = np.zeros(len(self._last), dtype=np.bool_)
        is_wanted[series[series < len(is_wanted)]] = True
        times = self._times.rows()
        return is_wanted[self._series.rows()] & (times >= start_ms) & (times <= end_ms)

    def _trim(self, bytes_max: int) -> None:
        size_before = self._series.size
        self._keep(self._visible(bytes_max))
        self._dropped += size_before - self._series.size

    def _keep(self, is_kept: NDArray[np.bool_]) -> None:
        columns = (self._series.data, self._times.data, self._values.data, self._offsets.data, self._previous.data)
        self._resize(_compact(is_kept, self._last, *columns, self._labels.data))

    def _taken(self, rows: NDArray[np.int64]) -> ExemplarRecord:
        return taken(
            ExemplarRecord(
                self._series.rows(),
                self._times.rows(),
                self._values.rows().view(np.float64),
                self._offsets.rows(),
                self._labels.data,
            ),
            rows,
        )


def taken(record: ExemplarRecord, rows: NDArray[np.int64]) -> ExemplarRecord:
    """Copies of these exemplars, in this order."""
    lengths = record.label_offsets[rows + 1] - record.label_offsets[rows]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    labels = np.empty(int(lengths.sum()), dtype=np.uint8)
    _gather_labels(rows, record.label_offsets, record.labels, offsets, labels)
    return ExemplarRecord(record.series[rows], record.times_ms[rows], record.values[rows], offsets, labels)

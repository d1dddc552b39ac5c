"""The series of a shard as rows of its store: family "series", first id (8 bytes, big-endian) → number of series (8
bytes, little-endian) and the columns of a `SeriesRecord` with consecutive ids from it.

Ids are permanent: journal and blocks name series by them. A series without samples is removed when the rows are next
swept, and leaves a hole. No id is given twice: row `series/ids` of family "meta" has the end of the ids given so far.
It is written with each of the rows. They may be lost with the power until the store is synced, and are then written
again from the journal, which has the same series.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from shared.errors import Unavailable
from worker.series import series_record
from worker.series.series_record import IDS_MAX, SeriesRecord
from worker.storage.faces import RowBatch, Rows
from worker.storage.rows.damage import StoreDamaged

_KEY = struct.Struct(">Q")
_COUNT = struct.Struct("<Q")
GIVEN = b"series/ids"
BULK_BYTES = 8 << 20
"""Label bytes that `load` yields at a time, approximately, and so the size of a row after a sweep."""
BULK_SERIES = 1 << 16
"""Series in one row after a sweep, at most."""
ROWS_MAX = 4096
"""If there are more rows than this, besides those that large holes require, a sweep rewrites them."""
HOLE_MAX = 1 << 10
"""A sweep writes a hole of up to this many ids, at 4 bytes each, into a row, and begins a new row after a larger
hole."""
DEAD_SHARE = 0.1
"""Above this share of series without samples, a sweep rewrites the rows."""

Labels = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]
"""(permanent ids int64[n] ascending, label bytes, int64[n + 1] offsets into them)."""


class Registry:
    """The series rows of one shard. Once `load` has ended, `next_id` is the id of the next series to be saved, above
    all ids that were ever given."""

    def __init__(self, store: Rows) -> None:
        self._store = store
        self.next_id = 0
        self.rows = 0
        self._row = 0, 0
        """The row that `_without_rows` has read last: (first id, end). Many records may be of one, after a sweep."""

    @property
    def room(self) -> int:
        """How many more series may be saved."""
        return IDS_MAX - self.next_id

    @property
    def full(self) -> Unavailable:
        """The error for new series when there is no `room`."""
        return Unavailable(
            f"the shard has had {self.next_id} series, and may have {IDS_MAX}: it takes no more new ones"
        )

    def put(self, batch: RowBatch, label_bytes: NDArray[np.uint8], offsets: NDArray[np.int64]) -> SeriesRecord:
        """Add to `batch` the series with ids from `next_id` on; their labels are
        label_bytes[offsets[i]:offsets[i + 1]]. There must be `room` for them. Returns them for the journal."""
        record = SeriesRecord.of(self.next_id, label_bytes, offsets)
        assert record.end <= IDS_MAX, f"series up to id {record.end} are to be saved, and ids end at {IDS_MAX}"
        _put_row(batch, record)
        batch.put("meta", GIVEN, _KEY.pack(record.end))
        return record

    def restore(self, record: SeriesRecord) -> int:
        """Write those of the record's series that no row has. They are not synced. Returns how many there were. Raises
        StoreDamaged, Unavailable."""
        batch, restored = self._store.batch(), 0
        for first, end in self._without_rows(record.first, record.end):
            _put_row(batch, record.between(first, end))
            restored += end - first
        if restored:
            batch.put("meta", GIVEN, _KEY.pack(max(self.given(), record.end)))
            self._store.write(batch)
        return restored

    def _without_rows(self, first: int, end: int) -> list[tuple[int, int]]:
        """The runs (first id, end) of the ids from `first` to `end` that no row has, not even as a hole."""
        if first >= self._row[0] and end <= self._row[1]:
            return []
        runs = []
        at = first
        before = islice(self._store.scan("series", end=_KEY.pack(first + 1), reverse=True), 1)
        for key, value in chain(before, self._store.scan("series", _KEY.pack(first + 1), _KEY.pack(end))):
            with self._store.decoding("series", key):
                row = parsed(key, value)
            self._row = row.first, row.end
            if row.first > at:
                runs.append((at, row.first))
            at = max(at, self._row[1])
        return [*runs, (at, end)] if at < end else runs

    def load(self) -> Iterator[Labels]:
        """All series by ascending id, in parts of about BULK_BYTES. Raises StoreDamaged if rows overlap, are missing at
        the end, or cannot be decoded."""
        ids: list[NDArray] = []
        lengths: list[NDArray] = []
        texts: list[NDArray[np.uint8]] = []
        gathered = 0
        for key, value in self._store.scan("series"):
            with self._store.decoding("series", key):
                row = parsed(key, value)
                if row.first < self.next_id:
                    raise ValueError(f"series {row.first} is twice in the store")
            self.next_id = row.end
            self.rows += 1
            alive = np.flatnonzero(row.lengths)
            ids.append(alive + row.first)
            lengths.append(row.lengths[alive])
            texts.append(row.labels)
            gathered += len(row.labels)
            if gathered >= BULK_BYTES:
                yield _joined(ids, lengths, texts)
                ids, lengths, texts, gathered = [], [], [], 0
        if ids:
            yield _joined(ids, lengths, texts)
        self._check_given()

    def given(self) -> int:
        """The id up to which ids were given, as the store says. Raises StoreDamaged."""
        end_row = self._store.get("meta", GIVEN)
        with self._store.decoding("meta", GIVEN):
            return 0 if end_row is None else int(_KEY.unpack(end_row)[0])

    def has_rows_from(self, series: int) -> bool:
        """Whether a row begins with this id or a higher one."""
        return next(self._store.keys("series", _KEY.pack(series)), None) is not None

    def _check_given(self) -> None:
        end = self.given()
        if end != self.next_id:
            text = f"the rows of its series end at id {self.next_id}, and ids were given up to {end}"
            raise StoreDamaged(f"the store {self._store.path} is damaged: {text}")

    def sweep(self, alive: NDArray[np.int64]) -> int:
        """Rewrite the rows, as few and long ones, without the series that are not in `alive` (ascending ids), if there
        are many such series or many rows. Returns the number of removed series. This is a single batch: a crash leaves
        the old rows or the new ones."""
        stored = Registry(self._store)
        series_count = dead_count = 0
        for ids, _, _ in stored.load():
            series_count += len(ids)
            dead_count += int(np.count_nonzero(~np.isin(ids, alive)))
        large_holes = int(np.count_nonzero(np.diff(alive) > HOLE_MAX))
        if dead_count <= DEAD_SHARE * series_count and stored.rows <= ROWS_MAX + large_holes:
            return 0
        end = stored.next_id
        batch = self._store.batch()
        batch.delete_range("series", _KEY.pack(0), _KEY.pack(end))
        last = 0
        for ids, label_bytes, offsets in Registry(self._store).load():
            is_alive = np.isin(ids, alive)
            for first in range(0, len(ids), BULK_SERIES):
                rows = np.flatnonzero(is_alive[first : first + BULK_SERIES]) + first
                if len(rows):
                    _put_sparse(batch, ids[rows], label_bytes, offsets[rows], offsets[rows + 1])
                    last = int(ids[rows[-1]]) + 1
        if last < end:  # so that the ids of the last series are not given again
            _put_row(batch, SeriesRecord(end - 1, np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.uint8)))
        self._store.write(batch, durable=True)
        return dead_count


def parsed(key: bytes, value: bytes) -> SeriesRecord:
    """The series of a row, and its holes. Raises ValueError, struct.error."""
    (first,) = _KEY.unpack(key)
    (count,) = _COUNT.unpack_from(value)
    return series_record.decode(first, count, memoryview(value)[_COUNT.size :])


def _row(record: SeriesRecord) -> bytes:
    """The value of the record's row; `parsed` reads it."""
    return b"".join((_COUNT.pack(len(record)), *record.columns()))


def _put_row(batch: RowBatch, record: SeriesRecord) -> None:
    batch.put("series", _KEY.pack(record.first), _row(record))


def _put_sparse(batch: RowBatch, ids: NDArray, label_bytes: NDArray, starts: NDArray, ends: NDArray) -> None:
    """Add rows to `batch`, one for all `ids` up to a hole of more than HOLE_MAX, with length 0 for the ids in between
    that are not among `ids`."""
    cuts = [0, *(np.flatnonzero(np.diff(ids) > HOLE_MAX) + 1).tolist(), len(ids)]
    for begin, end in pairwise(cuts):
        row_ids, row_starts, sizes = ids[begin:end], starts[begin:end], (ends - starts)[begin:end]
        lengths = np.zeros(int(row_ids[-1] - row_ids[0]) + 1, dtype=np.int32)
        lengths[row_ids - row_ids[0]] = sizes
        places = np.repeat(row_starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
        _put_row(batch, SeriesRecord(int(row_ids[0]), lengths, label_bytes[places]))


def _joined(ids: list[NDArray], lengths: list[NDArray], texts: list[NDArray[np.uint8]]) -> Labels:
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths), dtype=np.int64)))
    return np.concatenate(ids).astype(np.int64), np.concatenate(texts), offsets

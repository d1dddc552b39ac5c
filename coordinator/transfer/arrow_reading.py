"""Series from an Arrow IPC stream with the columns of `coordinator.transfer.arrow`.

A record batch from a client is examined before its numbers are used, because the library trusts offsets. Compressed
batches are refused, because it is not known beforehand how much memory they would take.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from coordinator.transfer.arrow import library
from coordinator.transfer.histograms import Histogram, message_of
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import ROW_US, Refusals
from coordinator.transfer.series_body import SeriesArrays
from shared.errors import BadData

ROWS_AT_ONCE = 50_000
SAMPLES_AT_ONCE = 1 << 20
HISTOGRAM_BYTES_PER_SAMPLE = 8
"""Characters of histograms that count as one sample when rows are gathered."""
OBJECTS_AT_ONCE = 500
LABELS_MAX, HISTOGRAMS_MAX = 1000, 1000
"""Histograms of one row. Objects are made of them before they can be checked. Exports never write more into one row."""
_COMPRESSION_FIELD = 3
"""Fields of the table RecordBatch in Arrow's Message.fbs: length, nodes, buffers, compression."""

_SECONDS_MAX = ((1 << 63) - 1) // 1000
"""The limits of times, which are an int64 in milliseconds."""

_DECODE_HISTOGRAM = msgspec.json.Decoder(Histogram).decode


def read(body: bytes, label_sets: LabelSets, refusals: Refusals) -> Iterator[tuple[SeriesArrays, list[int]]]:
    """(The series of some rows of the stream, the number of the row of each); `values` may be missing where there are
    `histograms`. Invalid rows are added to `refusals`. Work for a thread. Raises BadData if the body is no such
    stream."""
    pa = library()
    try:
        _refuse_compressed(pa, body)
        reader = pa.ipc.open_stream(pa.py_buffer(body))
        require_columns(pa, reader.schema)
        first_row = 0
        for batch in reader:
            batch.validate(full=True)
            rows = _Rows(pa, batch, first_row)
            for begin, end in rows.cuts():
                yield rows.series(begin, end, label_sets, refusals)
            first_row += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadData(f"the body is not an Arrow IPC stream: {str(error)[:200]}") from error


def require_columns(pa: Any, schema: Any) -> None:
    """Raises BadData unless these are the columns that exports write."""
    type_tests = {"metric": pa.types.is_map, "timestamps": pa.types.is_list}
    for name, is_right in type_tests.items():
        if schema.names.count(name) != 1 or not is_right(schema.field(name).type):
            raise BadData(
                f"the stream has no column {name!r} of the type that exports write; its columns are "
                f"{', '.join(f'{field.name}: {field.type}' for field in schema)[:300]}"
            )
    kinds = {"values": pa.list_(pa.float64()), "histograms": pa.list_(pa.string())}
    for name, kind in kinds.items():
        if name in schema.names and (schema.names.count(name) != 1 or schema.field(name).type != kind):
            raise BadData(f"the column {name!r} is {schema.field(name).type}; it must be {kind}")
    metric, times = schema.field("metric").type, schema.field("timestamps").type.value_type
    if metric.key_type != pa.string() or metric.item_type != pa.string():
        raise BadData(f"the column 'metric' is {metric}; it must be {pa.map_(pa.string(), pa.string())}")
    if not pa.types.is_timestamp(times) and times != pa.int64():
        raise BadData(f"the column 'timestamps' has {times}; it must have timestamps, or int64 milliseconds")


class _Rows:
    """The rows of a record batch, with its numbers as arrays; row 0 is number `first_row` of the stream."""

    def __init__(self, pa: Any, batch: Any, first_row: int) -> None:
        self._batch = batch
        self._first_row = first_row
        _require_few(batch, "metric", LABELS_MAX, "labels", first_row)
        if "histograms" in batch.schema.names:
            _require_few(batch, "histograms", HISTOGRAMS_MAX, "histograms", first_row)
        times = batch.column("timestamps")
        self._starts, self._counts = _spans(times)
        self._raw_times = times.values.cast(pa.int64()).fill_null(0).to_numpy()
        self._times_ms, is_far = _milliseconds(pa, times.values, self._raw_times)
        self._has_far_time = _have_any(is_far, self._starts, self._counts)
        self._has_null = _have_any(_nulls(times.values), self._starts, self._counts)
        self._value_starts, self._value_counts = np.zeros((2, batch.num_rows), dtype=np.int64)
        self._values = np.zeros(0)
        if "values" in batch.schema.names:
            values = batch.column("values")
            self._value_starts, self._value_counts = _spans(values)
            self._values = values.values.fill_null(0).to_numpy()
            self._has_null |= _have_any(_nulls(values.values), self._value_starts, self._value_counts)

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Rows that are read at once: begin ≤ row < end."""
        reach = np.cumsum(self._counts + histogram_bytes(self._batch) // HISTOGRAM_BYTES_PER_SAMPLE)
        begin, rows = 0, len(reach)
        while begin < rows:
            before = int(reach[begin - 1]) if begin else 0
            end = int(np.searchsorted(reach, before + SAMPLES_AT_ONCE, side="right"))
            end = min(max(begin + 1, end), begin + ROWS_AT_ONCE, rows)
            yield begin, end
            begin = end

    def series(self, begin: int, end: int, label_sets: LabelSets, refusals: Refusals) -> tuple[SeriesArrays, list[int]]:
        """The series of the rows begin ≤ row < end, and the number of the row of each."""
        labels, rows = list[bytes](), list[int]()
        with_histograms, histogram_rows = list[tuple[bytes, list[bytes]]](), list[int]()
        for row, (pairs, histograms) in enumerate(self._objects(begin, end), begin):
            try:
                label_bytes = label_sets.of_pairs(pairs)
                self._require_numbers(row)
                first, count = int(self._starts[row]), int(self._counts[row])
                if histograms:
                    messages = _messages(histograms, self._times_ms[first : first + count].tolist())
                    with_histograms.append((label_bytes, messages))
                    histogram_rows.append(row)
                    continue
                if self._value_counts[row] != count:
                    raise BadData(f"it has {self._value_counts[row]} values and {count} timestamps")
            except BadData as error:
                refusals.add(f"row {self._first_row + row}: {error}")
                continue
            labels.append(label_bytes)
            rows.append(row)
        refusals.spend(ROW_US * (end - begin) + label_sets.take_work_us())
        kept_rows = np.array(rows, dtype=np.int64)
        firsts, counts = self._starts[kept_rows], self._counts[kept_rows]
        values = self._values
        if len(values) != len(self._times_ms) or (self._value_starts[kept_rows] != firsts).any():
            values = np.zeros(len(self._times_ms))
            for first, count, at in zip(
                firsts.tolist(), counts.tolist(), self._value_starts[kept_rows].tolist(), strict=True
            ):
                values[first : first + count] = self._values[at : at + count]
        numbers = [self._first_row + row for row in (*rows, *histogram_rows)]
        return SeriesArrays(labels, firsts, counts, self._times_ms, values, with_histograms), numbers

    def _require_numbers(self, row: int) -> None:
        """Raises BadData for a null in a list of this row, and for a time that no sample can have."""
        if self._has_null[row]:
            raise BadData("a list has nulls; right are numbers, NaN too")
        if self._has_far_time[row]:
            seconds = self._raw_times[self._starts[row] :][: self._counts[row]]
            far = int(seconds[_are_far(seconds)][0])
            raise BadData(f"a timestamp is out of the range of int64 milliseconds: it is {far} s")

    def _objects(self, begin: int, end: int) -> Iterator[tuple[list[tuple[str, str]], list[str | None] | None]]:
        """(labels, histograms) of each row, made for few rows at a time: the library holds the interpreter lock."""
        has_histograms = "histograms" in self._batch.schema.names
        for first in range(begin, end, OBJECTS_AT_ONCE):
            piece = self._batch.slice(first, min(OBJECTS_AT_ONCE, end - first))
            histograms = piece.column("histograms").to_pylist() if has_histograms else [None] * piece.num_rows
            yield from zip((pairs or [] for pairs in piece.column("metric").to_pylist()), histograms, strict=True)


def _require_few(batch: Any, name: str, most: int, what: str, first_row: int) -> None:
    counts = np.diff(batch.column(name).offsets.to_numpy())
    too_many = np.flatnonzero(counts > most)
    if len(too_many):
        row = int(too_many[0])
        raise BadData(f"row {first_row + row} has {counts[row]} {what}; the limit is {most}")


def _messages(texts: list[str | None], times_ms: list[int]) -> list[bytes]:
    if len(texts) != len(times_ms):
        raise BadData(f"it has {len(texts)} histograms and {len(times_ms)} timestamps")
    try:
        return [message_of(_DECODE_HISTOGRAM(text or ""), at) for text, at in zip(texts, times_ms, strict=True)]
    except msgspec.MsgspecError as error:
        raise BadData(f"a histogram cannot be read: {error}") from error


def _spans(column: Any) -> tuple[Any, Any]:
    """(where the list of each row begins, how long it is: 0 for null)."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    counts = np.diff(offsets)
    counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return offsets[:-1], counts


def histogram_bytes(batch: Any) -> Any:
    """int64[rows]: bytes of the texts of histograms in each row of a record batch."""
    if "histograms" not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=np.int64)
    import pyarrow.compute as pc  # which the library does not load on its own

    column = batch.column("histograms")
    reach = _reach(pc.binary_length(column.values).fill_null(0).to_numpy())
    return np.diff(reach[column.offsets.to_numpy()])


def _milliseconds(pa: Any, times: Any, raw: Any) -> tuple[Any, Any]:
    """(Times as int64 milliseconds, which of them are out of their range; None if none is). `raw`: each time as an
    int64."""
    if not pa.types.is_timestamp(times.type) or times.type.unit == "ms":
        return raw, None
    if times.type.unit == "s":
        is_far = _are_far(raw)
        return np.where(is_far, 0, raw) * 1000, is_far
    milliseconds = times.cast(pa.timestamp("ms", tz=times.type.tz), safe=False)
    return milliseconds.cast(pa.int64()).fill_null(0).to_numpy(), None


def _are_far(seconds: Any) -> Any:
    return (seconds > _SECONDS_MAX) | (seconds < -_SECONDS_MAX)


def _nulls(numbers: Any) -> Any:
    """Which of them are null; None if none is."""
    return numbers.is_null().to_numpy(zero_copy_only=False) if numbers.null_count else None


def _have_any(is_wrong: Any, starts: Any, counts: Any) -> Any:
    """bool[rows]: whether any number of the list of each row is wrong. Some numbers may belong to no row."""
    if is_wrong is None:
        return np.zeros(len(starts), dtype=np.bool_)
    reach = _reach(is_wrong)
    return reach[starts + counts] > reach[starts]


def _reach(numbers: Any) -> Any:
    """int64[n + 1]: the sum of all numbers before each."""
    return np.concatenate([[0], np.cumsum(numbers, dtype=np.int64)])


def _refuse_compressed(pa: Any, body: bytes) -> None:
    """Raises BadData if a record batch is compressed."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise BadData("the stream is compressed; send it without compression, or with Content-Encoding: gzip")


def _is_compressed(metadata: bytes) -> bool:
    """Whether the flatbuffer Message holds a RecordBatch with compression (https://flatbuffers.dev/internals/)."""
    try:
        (root,) = struct.unpack_from("<I", metadata, 0)
        header = _field(metadata, root, 2)
        if header is None:
            return True
        (ahead,) = struct.unpack_from("<I", metadata, header)
        return _field(metadata, header + ahead, _COMPRESSION_FIELD) is not None
    except (struct.error, IndexError):
        return True


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table lies; None if the table does not have it."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    place = 4 + 2 * number
    if place >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, table - back + place)
    return table + offset if offset else None

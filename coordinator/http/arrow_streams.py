"""Responses as Arrow IPC streams (https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format).

pyarrow is an optional dependency. It is imported when a client first requests such a response.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.log.headers import unpacked
from coordinator.vectors.merging import Hits
from coordinator.vectors.ranked_ids import shown_scores
from shared.histograms.references import is_reference
from shared.labels import LabelFrame
from shared.log.headers import HeadedValue
from shared.messages.log_pages import Records
from shared.promql.model import Bool, Grid, Int, Matrix, RangeVector

SAMPLES_OF_BATCH = 1 << 16
SERIES_OF_BATCH = 1 << 12
"""The approximate number of samples, or of series, in a batch of a query response: about a megabyte."""


@cache
def is_installed() -> bool:
    return find_spec("pyarrow") is not None


@cache
def library() -> ModuleType:
    """pyarrow. The first call takes tenths of a second, so it must not be made on the event loop."""
    import pyarrow

    return pyarrow


class ArrowStream:
    """Writes batches of one schema. `metadata`, of the schema and of batches: name → text."""

    def __init__(self, fields: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        self._schema = library().schema(list(fields.items()), metadata=dict(metadata))
        self._sink = _Sink()
        self._writer = library().ipc.new_stream(self._sink, self._schema)

    def batch(self, columns: Sequence[Any], metadata: Mapping[str, str] | None = None) -> bytes:
        """The bytes of a batch of these columns. The first batch is preceded by the schema."""
        batch = library().record_batch(list(columns), schema=self._schema)
        self._writer.write_batch(batch, custom_metadata=dict(metadata) if metadata else None)
        return self._sink.taken()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.taken()


class _Sink:
    """Collects what Arrow writes until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: Any) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def remarks_text(texts: Sequence[str]) -> str:
    return json.dumps(list(texts), ensure_ascii=False)


# Series


def has_histograms(value: Matrix | RangeVector) -> bool:
    if isinstance(value, Matrix):
        return value.histograms is not None and bool((is_reference(value.values) & value.present).any())
    return value.samples.histograms is not None and bool(is_reference(value.samples.values).any())


def series_chunks(value: Matrix | RangeVector, grid: Grid, metadata: Mapping[str, str]) -> Iterator[bytes]:
    """One row for each series: `labels` (a map), `timestamps` (a list of times in ms, UTC) and `values` (a list of
    doubles)."""
    arrow = library()
    fields = {
        "labels": arrow.map_(arrow.string(), arrow.string()),
        "timestamps": arrow.list_(arrow.timestamp("ms", tz="UTC")),
        "values": arrow.list_(arrow.float64()),
    }
    stream = ArrowStream(fields, metadata)
    size = value.labels.size
    step = max(1, min(SERIES_OF_BATCH, SAMPLES_OF_BATCH // max(1, _samples(value) // max(size, 1))))
    for first in range(0, size, step):
        rows = slice(first, min(first + step, size))
        offsets, times_ms, values = (
            _of_matrix(value, grid, rows) if isinstance(value, Matrix) else _of_range(value, rows)
        )
        list_offsets = arrow.array(offsets.astype(np.int32))
        lists = [
            arrow.ListArray.from_arrays(
                list_offsets, arrow.array(times_ms, arrow.int64()).cast(fields["timestamps"].value_type)
            ),
            arrow.ListArray.from_arrays(list_offsets, arrow.array(values, arrow.float64())),
        ]
        yield stream.batch([_labels(value.labels.take(rows)), *lists])
    yield stream.end()


def _samples(value: Matrix | RangeVector) -> int:
    return value.values.size if isinstance(value, Matrix) else len(value.samples.values)


def _of_matrix(value: Matrix, grid: Grid, rows: slice) -> tuple[Int, Int, NDArray[np.float64]]:
    present: Bool = value.present[rows]
    times_ms = np.broadcast_to(grid.times_ms(), present.shape)[present]
    return _offsets(present.sum(axis=1)), times_ms, value.values[rows][present]


def _of_range(value: RangeVector, rows: slice) -> tuple[Int, Int, NDArray[np.float64]]:
    samples, offsets = value.samples, value.samples.offsets[rows.start : rows.stop + 1]
    sample_range = slice(int(offsets[0]), int(offsets[-1]))
    return offsets - offsets[0], samples.timestamps_ms[sample_range], samples.values[sample_range]


def _offsets(counts: NDArray[Any]) -> Int:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _labels(labels: LabelFrame) -> Any:
    """map<string, string>[size]: the labels of each series, sorted by name."""
    names = sorted(labels.columns)
    codes = np.array([labels.columns[name] for name in names], np.int32).reshape(len(names), labels.size)
    series, columns = np.nonzero(codes.T)
    arrow = library()
    return arrow.MapArray.from_arrays(
        arrow.array(_offsets(np.bincount(series, minlength=labels.size)).astype(np.int32)),
        arrow.array(np.array(names, object)[columns] if names else [], arrow.string()),
        arrow.array(labels.symbols.texts(codes[columns, series]), arrow.string()),
    )


# Records of the log


class RecordStream:
    """One row for each record: `sequence`, `time` (null if unknown), `key`, `value`, `headers` (a map, or null if there
    are none), `contentType`, `tombstone`. The last batch has no records. Its metadata are `nextSequence`,
    `logStartSequence`, and as JSON `warnings` and `infos`."""

    def __init__(self, key: bytes | None) -> None:
        arrow = library()
        self._key = key
        self._fields = {
            "sequence": arrow.uint64(),
            "time": arrow.timestamp("ms", tz="UTC"),
            "key": arrow.binary(),
            "value": arrow.binary(),
            "headers": arrow.map_(arrow.string(), arrow.string()),
            "contentType": arrow.string(),
            "tombstone": arrow.bool_(),
        }
        self._stream = ArrowStream(self._fields, {})

    def page(self, records: Records) -> bytes:
        arrow = library()
        values = records.value_list()
        heads = [unpacked(value.headers) if isinstance(value, HeadedValue) else None for value in values]
        keys = records.key_list() or [self._key or b""] * len(records)
        columns = (
            records.sequences,
            arrow.array(records.times, mask=records.times == 0).cast(self._fields["time"]),
            keys,
            values,
            [list(head[0].items()) if head and head[0] else None for head in heads],
            [head[1] or None if head else None for head in heads],
            [head[2] if head else False for head in heads],
        )
        return self._stream.batch(
            [
                column if isinstance(column, arrow.Array) else arrow.array(column, kind)
                for column, kind in zip(columns, self._fields.values(), strict=True)
            ]
        )

    def end(self, following: int, log_start: int, warnings: Sequence[str], infos: Sequence[str] = ()) -> bytes:
        metadata = {
            "nextSequence": str(following),
            "logStartSequence": str(log_start),
            "warnings": remarks_text(warnings),
            "infos": remarks_text(infos),
        }
        empty_columns = [library().array([], kind) for kind in self._fields.values()]
        return self._stream.batch(empty_columns, metadata) + self._stream.end()


# Search results


def hits_stream(lists: Sequence[Hits], metric: str, warnings: Sequence[str], infos: Sequence[str]) -> bytes:
    """One row for each result: `query` (its number in the request), `id`, `score`, `attributes` as JSON (null if not
    requested), and `vector` if requested. The metadata of the schema are `warnings` and `infos`, as JSON."""
    arrow = library()
    fields = {"query": arrow.uint32(), "id": arrow.string(), "score": arrow.float32(), "attributes": arrow.string()}
    numbers = np.repeat(np.arange(len(lists), dtype=np.uint32), [len(hits.ids) for hits in lists])
    nearness = np.concatenate([np.zeros(0, np.float32), *(hits.near for hits in lists)])
    columns = [
        arrow.array(numbers),
        arrow.array([name.decode() for hits in lists for name in hits.ids], arrow.string()),
        arrow.array(shown_scores(nearness, metric)),
        arrow.array([text for hits in lists for text in _attributes(hits)], arrow.string()),
    ]
    vectors = [hits.vectors for hits in lists if hits.vectors is not None]
    if vectors and sum(map(len, vectors)) == len(numbers):
        dimension = vectors[0].shape[1]
        flat = arrow.array(np.concatenate(vectors).reshape(-1))
        columns.append(arrow.FixedSizeListArray.from_arrays(flat, dimension))
        fields["vector"] = arrow.list_(arrow.float32(), dimension)
    stream = ArrowStream(fields, {"warnings": remarks_text(warnings), "infos": remarks_text(infos)})
    return stream.batch(columns) + stream.end()


def _attributes(hits: Hits) -> list[str | None]:
    if not hits.attributes:
        return [None] * len(hits.ids)
    return [
        msgspec.json.encode(msgspec.msgpack.decode(packed)).decode() if packed else "{}" for packed in hits.attributes
    ]

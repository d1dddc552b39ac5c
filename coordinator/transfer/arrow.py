"""Samples as Arrow record batches: an IPC stream or a Parquet file.

A row is a series, or a piece of one: `metric` (its labels), `timestamps` (milliseconds, UTC) and `values`, two lists of
equal length. The lists are the arrays of the answer as they are, so nothing is done for a single sample. Polars'
`explode` and DuckDB's `unnest` make a row of every sample. A row of native histograms has `histograms`, the JSON
objects of `coordinator.transfer.histograms`, instead of values. Staleness markers and all other NaNs keep their bits.

Format: https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format. pyarrow is optional.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coordinator.transfer.histograms import histogram_groups
from coordinator.transfer.json_lines import float_samples
from coordinator.transfer.slices import Slice
from shared.errors import BadData
from shared.labels import LabelFrame
from shared.promql.model import Int

STREAM = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
SAMPLE_OPTIONS = {
    "use_dictionary": ["metric.key_value.key", "metric.key_value.value"],
    "column_encoding": {"timestamps.list.element": "DELTA_BINARY_PACKED", "values.list.element": "BYTE_STREAM_SPLIT"},
    "write_statistics": ["timestamps.list.element"],
}
"""How samples are written to Parquet: times as differences, and floats with the bytes of each position together."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def library() -> Any:
    """pyarrow. Raises BadData where it is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        raise BadData(
            "this server cannot read or write Arrow and Parquet, because pyarrow is not installed: "
            "pip install 'triptych[arrow]' adds it; JSON lines and CSV need nothing"
        ) from None
    return pa


def schema() -> Any:
    """The schema of the record batches of samples."""
    pa = library()
    return pa.schema(
        [
            pa.field("metric", pa.map_(pa.string(), pa.string()), nullable=False),
            pa.field("timestamps", pa.list_(pa.timestamp("ms", tz="UTC")), nullable=False),
            pa.field("values", pa.list_(pa.float64())),
            pa.field("histograms", pa.list_(pa.string())),
        ]
    )


def batches(read: Slice) -> Iterator[Any]:
    """The slice as a record batch of its floats, and another one of its histograms if it has any."""
    floats, rows = float_samples(read.samples)
    if len(rows):
        offsets = np.append(floats.offsets[rows], floats.offsets[-1])
        yield _batch(read.labels.take(rows), offsets, floats.timestamps_ms, values=floats.values)
    groups = list(histogram_groups(read))
    if groups:
        rows = np.array([row for row, _, _ in groups])
        offsets = np.cumsum([0, *(len(texts) for _, _, texts in groups)])
        times = np.array([time_ms for _, group_times_ms, _ in groups for time_ms in group_times_ms], dtype=np.int64)
        texts = [text for _, _, group_texts in groups for text in group_texts]
        yield _batch(read.labels.take(rows), offsets, times, histograms=texts)


def _batch(labels: LabelFrame, offsets: Int, times_ms: Int, values: Any = None, histograms: Any = None) -> Any:
    pa = library()
    columns_schema = schema()
    starts = pa.array(offsets.astype(np.int32))
    columns = [
        metrics(labels),
        pa.ListArray.from_arrays(starts, pa.array(times_ms).cast(columns_schema.types[1].value_type)),
    ]
    for field, content in ((columns_schema.field("values"), values), (columns_schema.field("histograms"), histograms)):
        if content is None:
            columns.append(pa.nulls(labels.size, field.type))
        else:
            columns.append(pa.ListArray.from_arrays(starts, pa.array(content, type=field.type.value_type)))
    return pa.record_batch(columns, schema=columns_schema)


def metrics(labels: LabelFrame) -> Any:
    """The label sets as an Arrow array of maps, names in order."""
    pa = library()
    names = sorted(labels.columns)
    texts: list[str] = []
    places = np.zeros((labels.size, len(names)), dtype=np.int32)
    for column, (values, local) in enumerate(labels.values(names)):
        places[:, column] = local + len(texts)
        texts += values
    codes = np.array([labels.columns[name] for name in names]).T if names else places
    is_there = codes != 0
    counts = is_there.sum(axis=1)
    keys = pa.array(names, pa.string()).take(pa.array(np.nonzero(is_there)[1]))
    items = pa.array(texts, pa.string()).take(pa.array(places[is_there]))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)


class ArrowStream:
    """An Arrow IPC stream; `file_schema`: its schema, by default that of samples."""

    content_type = STREAM
    tail = _END_OF_STREAM

    def __init__(self, file_schema: Any = None) -> None:
        self.head: bytes = (file_schema or schema()).serialize().to_pybytes()

    def chunks(self, read: Slice) -> Iterator[memoryview]:
        """Work for a thread."""
        for batch in batches(read):
            yield self.written(batch)

    def written(self, batch: Any) -> memoryview:
        return memoryview(batch.serialize())


class ParquetFile:
    """A Parquet file with a row group for each record batch. `file_schema`: its schema, by default that of samples;
    `options`: those of the library's ParquetWriter."""

    content_type = PARQUET

    def __init__(self, file_schema: Any = None, options: Mapping[str, Any] = SAMPLE_OPTIONS) -> None:
        library()
        import pyarrow.parquet as pq

        self._sink = _Sink()
        self._writer = pq.ParquetWriter(self._sink, file_schema or schema(), compression="zstd", **options)
        self.head = self._sink.take()

    def chunks(self, read: Slice) -> Iterator[bytes]:
        """Work for a thread."""
        for batch in batches(read):
            yield self.written(batch)

    def written(self, batch: Any) -> bytes:
        self._writer.write_batch(batch, row_group_size=max(1, batch.num_rows))
        return self._sink.take()

    @property
    def tail(self) -> bytes:
        """The end of the file, which lists its contents."""
        self._writer.close()
        return self._sink.take()


class _Sink:
    """A file that keeps what is written until `take` removes it."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._at = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._at += len(piece)
        return len(piece)

    def take(self) -> bytes:
        data, self._pieces = b"".join(self._pieces), []
        return data

    def tell(self) -> int:
        return self._at

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

"""Files and blocks with samples, as the batches in which an import sends them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import numpy as np
import snappy

from coordinator.transfer import csv_ends, openmetrics, tsdb_chunks
from coordinator.transfer.arrow import STREAM, library
from coordinator.transfer.arrow_reading import histogram_bytes, require_columns
from coordinator.transfer.series_body import SeriesArrays, series_field
from coordinator.transfer.text_source import few_lines
from coordinator.transfer.tsdb_chunks import BAD_SUM, BROKEN, HISTOGRAMS, OTHER, ChunkFiles
from coordinator.transfer.tsdb_histograms import Decoder
from coordinator.transfer.tsdb_index import Index, IndexedSeries, tombstones
from coordinator.transfer.uploading import ImportBatch
from shared.errors import BadData

SLICE_BYTES = 4 << 20
"""Bytes of text in one request."""
SAMPLE_TEXT_BYTES, SAMPLE_LINES_MAX = 4 * SLICE_BYTES, 1 << 18
"""Bytes and lines of OpenMetrics text for one request, which is a fourth as long: the fewer the requests, the less each
sample costs."""
LINE_BYTES_MAX = 8 << 20
CHUNKS_AT_ONCE = 1500
"""Chunks in one request. A chunk usually has 120 samples, so these are 180,000 samples."""
SERIES_CHUNKS_AT_ONCE = 4 * CHUNKS_AT_ONCE
"""Chunks of one series in one request, which may have 4,194,304 samples."""
PARQUET = b"PAR1"
"""The first bytes of such a file, whatever its name is."""
ROWS_AT_ONCE, SAMPLES_AT_ONCE, SAMPLE_BYTES = 2000, 500_000, 16
"""Rows and samples of one request in Arrow, unless a single row has more samples. Texts of histograms count as as many
samples as take the same bytes."""

WRITE, IMPORT, IMPORT_CSV = "/api/v1/write", "/api/v1/import", "/api/v1/import/csv"
_WRITE_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


class Source(Protocol):
    """`identity`: changes when the source does; `size`: its last position. `notes`: what it contains that cannot be
    imported."""

    name: str
    identity: str
    size: int
    notes: list[str]

    def batches(self, position: int) -> Iterator[ImportBatch]:
        """The batches behind this position; 0 for all. Raises OSError, and ValueError for invalid content."""


def written(body: bytes | memoryview, position: int, size: int) -> ImportBatch:
    """The batch of a message WriteRequest."""
    return ImportBatch(WRITE, _WRITE_HEADERS, snappy.compress(body), position, size)


class _File:
    """A file of text, which may be gzip. Positions are bytes of the text."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self.path = path
        self.name = str(path)
        self.identity = f"{status.st_size} {status.st_mtime_ns}"
        self.size = status.st_size
        self.notes: list[str] = []
        self._is_gzip = path.suffix == ".gz"

    @contextmanager
    def _open(self, position: int) -> Iterator[io.BufferedIOBase]:
        """The text from this position on. Raises ValueError for an incomplete compressed file."""
        try:
            with gzip.open(self.path, "rb") if self._is_gzip else self.path.open("rb") as file:
                file.seek(position)
                yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self.name} is no whole gzip file: {error}") from error

    def _slices(
        self, position: int, slice_bytes: int | None = None, keeps_rows: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """(Some complete lines, the position behind them) from this position on, in slices of SLICE_BYTES by default.
        `keeps_rows`: a line break within quotes does not end a row."""
        slice_bytes = slice_bytes or SLICE_BYTES
        with self._open(position) as file:
            incomplete_line = b""
            while True:
                more = file.read(max(slice_bytes - len(incomplete_line), slice_bytes // 4))
                text = incomplete_line + more
                end = (csv_ends.rows_end(text) if keeps_rows else text.rfind(b"\n") + 1) if more else len(text)
                if end:
                    position += end
                    yield text[:end], position
                elif len(text) > LINE_BYTES_MAX:
                    raise ValueError(f"{self.name} has a line of more than {LINE_BYTES_MAX} bytes at byte {position}")
                incomplete_line = text[end:]
                if not more:
                    return


class LinesFile(_File):
    """JSON lines."""

    def batches(self, position: int) -> Iterator[ImportBatch]:
        before = position
        for text, end in self._slices(position):
            yield ImportBatch(IMPORT, {"Content-Type": "application/x-ndjson"}, text, end, end - before)
            before = end


class CsvFile(_File):
    """CSV with a header; or with a description of its columns, where the first `skips` lines are left out."""

    def __init__(self, path: Path, columns: str = "", skips: int = 0) -> None:
        super().__init__(path)
        self._columns = columns
        self._skips = skips

    def batches(self, position: int) -> Iterator[ImportBatch]:
        with self._open(0) as file:
            if self._columns:
                head = b"".join(file.readline(LINE_BYTES_MAX) for _ in range(self._skips))
            else:
                head = file.read(LINE_BYTES_MAX)
                head = head[: csv_ends.first_row_end(head) or len(head)]
        header = b"" if self._columns else head
        target = f"{IMPORT_CSV}?{urlencode({'format': self._columns})}" if self._columns else IMPORT_CSV
        before = max(position, len(head))
        for text, end in self._slices(before, keeps_rows=True):
            yield ImportBatch(target, {"Content-Type": "text/csv"}, header + text, end, end - before)
            before = end


class OpenMetricsFile(_File):
    """OpenMetrics text, with a time for every sample."""

    def batches(self, position: int) -> Iterator[ImportBatch]:
        reader, before = openmetrics.Reader(), position
        for text, _ in self._slices(position, SAMPLE_TEXT_BYTES):
            for lines in few_lines(text, SAMPLE_LINES_MAX):
                before += len(lines)
                yield written(reader.read(lines).body(), before, len(lines))
        if before > position and not reader.has_ended:
            raise ValueError(f"{self.name} does not end with '# EOF', as OpenMetrics does; it may be cut off")


class Block:
    """A block of Prometheus's TSDB: a directory with an index, chunks and perhaps tombstones. Positions are those of
    its index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._index = Index(path / "index")
        self.size = self._index.position_end
        self.identity = f"{(path / 'index').stat().st_size} {(path / 'index').stat().st_mtime_ns}"
        self.notes: list[str] = []
        self._deleted = tombstones(path / "tombstones")
        self._chunks = ChunkFiles(path / "chunks")
        self._decoder = Decoder()
        self._unknown = self._broken = 0

    def batches(self, position: int) -> Iterator[ImportBatch]:
        before, gathered, chunks = position, list[IndexedSeries](), 0
        for at, series in self._index.series(position):
            while len(series.chunks) > SERIES_CHUNKS_AT_ONCE:
                first, later = series.chunks[:SERIES_CHUNKS_AT_ONCE], series.chunks[SERIES_CHUNKS_AT_ONCE:]
                yield from self._batches([replace(series, chunks=first)], before, before)
                series = replace(series, chunks=later)
            gathered.append(series)
            chunks += len(series.chunks)
            if chunks >= CHUNKS_AT_ONCE:
                yield from self._batches(gathered, before, at)
                before, gathered, chunks = at, [], 0
        if gathered:
            yield from self._batches(gathered, before, self.size)
        if self._unknown:
            self.notes.append(f"{self.name}: {self._unknown} chunks of a kind that is not known are left out")
        if self._broken:
            self.notes.append(f"{self.name}: {self._broken} chunks are damaged; their samples are missing")

    def _batches(self, gathered: list[IndexedSeries], before: int, end: int) -> Iterator[ImportBatch]:
        """The batches of these series. The last batch advances to the position behind them."""
        read = self._read(gathered)
        yield from self._histograms(gathered, read, before)
        yield written(self._floats(gathered, read).body(), end, end - before)
        self._unknown += int((read.status == OTHER).sum())
        self._broken += int(((read.status == BROKEN) | (read.status == BAD_SUM)).sum())

    def _read(self, gathered: list[IndexedSeries]) -> tsdb_chunks.Chunks:
        return self._chunks.read(np.array([chunk for series in gathered for chunk in series.chunks], dtype=np.int64))

    def _floats(self, gathered: list[IndexedSeries], read: tsdb_chunks.Chunks) -> SeriesArrays:
        labels = [series.labels for series in gathered for _ in series.chunks]
        self._delete(gathered, read)
        rows = np.flatnonzero(read.counts)
        label_sets = [labels[row] for row in rows.tolist()]
        return SeriesArrays(label_sets, read.firsts[rows], read.counts[rows], read.times_ms, read.values)

    def _histograms(
        self, gathered: list[IndexedSeries], read: tsdb_chunks.Chunks, position: int
    ) -> Iterator[ImportBatch]:
        owners = [(series, chunk >> 32) for series in gathered for chunk in series.chunks]
        rows = np.flatnonzero(read.status == HISTOGRAMS).tolist()
        for number, file_rows in groupby(rows, lambda row: owners[row][1]):
            chunks = list(file_rows)
            table = read.table[chunks]
            deleted = [self._deleted.get(owners[row][0].reference, ()) for row in chunks]
            for decoded in self._decoder.read(self._chunks.file(number), table, deleted):
                series = (series_field(owners[chunks[row]][0].labels, fields) for row, fields in decoded)
                yield written(b"".join(series), position, 0)
            read.table[chunks] = table

    def _delete(self, gathered: list[IndexedSeries], read: tsdb_chunks.Chunks) -> None:
        """Remove the samples that tombstones delete."""
        if not any(series.reference in self._deleted for series in gathered):
            return
        is_kept = np.ones(len(read.times_ms), dtype=np.bool_)
        row = 0
        for series in gathered:
            spans = self._deleted.get(series.reference, ())
            for _ in series.chunks:
                samples = slice(int(read.firsts[row]), int(read.firsts[row] + read.counts[row]))
                for start_ms, end_ms in spans:
                    is_kept[samples] &= (read.times_ms[samples] < start_ms) | (read.times_ms[samples] > end_ms)
                row += 1
        reach = np.concatenate([[0], np.cumsum(is_kept)])
        ends = reach[read.firsts + read.counts]
        read.firsts = reach[read.firsts]
        read.counts = ends - read.firsts
        read.times_ms, read.values = read.times_ms[is_kept], read.values[is_kept]


class ArrowFile:
    """An Arrow IPC stream, or a Parquet file, with the columns that exports write. Positions are record batches, or row
    groups."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self.path = path
        self.name = str(path)
        self.identity = f"{status.st_size} {status.st_mtime_ns}"
        self.notes: list[str] = []
        self.size = 0
        with path.open("rb") as file:
            self._is_parquet = file.read(len(PARQUET)) == PARQUET
        if self._is_parquet:
            self.size = self._parquet().num_row_groups

    def _parquet(self) -> Any:
        """Raises ValueError."""
        pa = library()
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from error

    def batches(self, position: int) -> Iterator[ImportBatch]:
        pa = library()
        import pyarrow.compute as pc  # which the library does not load on its own

        for number, batch in self._record_batches(position):
            self._require_columns(pa, batch.schema)
            counts = pc.list_value_length(batch.column("timestamps")).fill_null(0).to_numpy()
            reach = np.cumsum(SAMPLE_BYTES * counts + histogram_bytes(batch))
            begin = 0
            while begin < batch.num_rows:
                before = int(reach[begin - 1]) if begin else 0
                end = int(np.searchsorted(reach, before + SAMPLE_BYTES * SAMPLES_AT_ONCE, side="right"))
                end = min(max(begin + 1, end), begin + ROWS_AT_ONCE, batch.num_rows)
                is_last = end == batch.num_rows
                body = _stream(pa, batch.slice(begin, end - begin))
                yield ImportBatch(IMPORT, {"Content-Type": STREAM}, body, number + is_last, int(is_last))
                begin = end

    def _require_columns(self, pa: Any, schema: Any) -> None:
        try:
            require_columns(pa, schema)
        except BadData as error:
            raise ValueError(f"{self.name}: {error}") from error

    def _record_batches(self, position: int) -> Iterator[tuple[int, Any]]:
        pa = library()
        try:
            if self._is_parquet:
                file = self._parquet()
                for group in range(position, self.size):
                    for batch in file.read_row_group(group).combine_chunks().to_batches():  # none, if it has no rows
                        yield group, batch
                return
            with pa.OSFile(str(self.path), "rb") as opened:
                for number, batch in enumerate(pa.ipc.open_stream(opened)):
                    if number >= position:
                        yield number, batch
        except pa.ArrowException as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from error


def _stream(pa: Any, batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


FILE_FORMATS = ("openmetrics", "jsonl", "csv", "arrow", "parquet")
_SUFFIXES = {
    ".om": "openmetrics",
    ".openmetrics": "openmetrics",
    ".prom": "openmetrics",
    ".txt": "openmetrics",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".parquet": "parquet",
}


def sources_of(path: Path, kind: str | None = None, columns: str = "", skips: int = 0) -> list[Source]:
    """What a path names: a file, a block, or a directory of blocks such as a snapshot. Raises ValueError, OSError."""
    if path.is_dir():
        blocks = [path] if (path / "index").exists() else sorted(index.parent for index in path.glob("*/index"))
        if not blocks:
            raise ValueError(f"{path} has no blocks of Prometheus's TSDB: directories with an index and chunks")
        return [Block(block) for block in blocks]
    path.stat()  # a file that is not there is said to be that, not to have no format
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = kind or _SUFFIXES.get(suffixes[-1] if suffixes else "")
    match kind:
        case "openmetrics":
            return [OpenMetricsFile(path)]
        case "jsonl":
            return [LinesFile(path)]
        case "csv":
            return [CsvFile(path, columns, skips)]
        case "arrow" | "parquet":
            return [ArrowFile(path)]
    raise ValueError(
        f"the ending of {path} does not tell its format; choose one of {', '.join(FILE_FORMATS)} with --format"
    )

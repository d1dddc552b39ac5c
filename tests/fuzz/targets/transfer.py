"""What imports read: JSON lines, CSV, Arrow streams, OpenMetrics, and chunks and index of Prometheus's TSDB."""

from __future__ import annotations

import gzip
import io
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import numpy as np

from coordinator.series import remote_write
from coordinator.series.label_sets import Limits
from coordinator.transfer import arrow_reading, csv_reading, json_reading, openmetrics, tsdb_chunks, tsdb_index
from coordinator.transfer.arrow import ArrowStream
from coordinator.transfer.csv_reading import Columns
from coordinator.transfer.json_lines import JsonLines
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import Refusals
from coordinator.transfer.series_body import SeriesArrays, series_field
from coordinator.transfer.slices import Slice
from coordinator.transfer.text_source import TextSource, line_slices
from coordinator.transfer.tsdb_histograms import Decoder
from coordinator.transfer.tsdb_index import Index
from shared import labels
from shared.errors import TriptychError
from shared.labels import LabelFrame, Symbols
from shared.promql.model import Samples
from shared.settings import Settings
from tests.fuzz.target import Target
from tests.histogram_chunks import Layout, Row, chunk_data

LIMITS = Limits.of(Settings())
_BYTES_MAX = 1 << 20
_DECODER, _UP = Decoder(1 << 20), labels.encode((("__name__", "up"),))


def _require_whole(series: SeriesArrays, refusals: Refusals) -> None:
    """What is read is what remote write takes: no series is lost on the way."""
    split_request = remote_write.split(series.body(), 3, LIMITS)
    histograms = sum(len(messages) for _, messages in series.histograms)
    assert (
        split_request.samples + split_request.histograms + split_request.refused_count == series.samples + histograms
    ), "samples are lost"
    assert len(refusals.texts) <= refusals.count


def _lines(data: bytes) -> None:
    refusals, label_sets = Refusals("lines"), LabelSets(LIMITS)
    source = TextSource(data, is_gzip=data[:2] == b"\x1f\x8b", bytes_max=_BYTES_MAX)
    for first_line, text in line_slices(source, 512, 1024):
        series, lines = json_reading.read(text, first_line, label_sets, refusals)
        assert len(lines) == len(series.labels) + len(series.histograms)
        _require_whole(series, refusals)


def _csv(data: bytes) -> None:
    """The first line is the description of the columns; an empty one: there is a header."""
    head, _, rest = data.decode(errors="replace").partition("\n")
    refusals = Refusals("lines")
    columns = Columns.of_format(head) if head else None
    for series, lines in csv_reading.read(io.StringIO(rest, newline=""), columns, LabelSets(LIMITS), refusals):
        assert len(lines) == len(series.labels) + len(series.histograms)
        _require_whole(series, refusals)


def _arrow(data: bytes) -> None:
    refusals = Refusals("rows")
    for series, rows in arrow_reading.read(data, LabelSets(LIMITS), refusals):
        assert len(rows) == len(series.labels) + len(series.histograms)
        _require_whole(series, refusals)


def _openmetrics(data: bytes) -> None:
    """What is read as a whole is read line by line as well."""
    series = openmetrics.Reader().read(data)
    assert len(series.labels) == len(series.firsts)
    series.body()
    reader = openmetrics.Reader()
    assert sum(reader.read(line + b"\n").samples for line in data.split(b"\n")) == series.samples


def _chunk(data: bytes) -> None:
    """The data of a chunk of each encoding."""
    size = np.frombuffer(data, np.uint8)
    table = np.array([[tsdb_chunks.GOOD, 0, len(size), int.from_bytes(data[:2], "big")]], dtype=np.int64)
    if len(data) < 2:
        return
    times, words = np.empty(table[0, 3], np.int64), np.empty(table[0, 3], np.uint64)
    tsdb_chunks.decode(size, table, np.zeros(1, np.int64), times, words)
    for encoding in (tsdb_chunks.HISTOGRAM, tsdb_chunks.FLOAT_HISTOGRAM):
        whole = np.frombuffer(bytes([encoding]) + data, np.uint8)
        table = np.array([[tsdb_chunks.HISTOGRAMS, 1, len(whole), 0]], dtype=np.int64)
        for chunks in _DECODER.read(whole, table, [[(5, 7)]]):
            for _, fields in chunks:
                split_request = remote_write.split(series_field(_UP, fields), 3, LIMITS)
                assert split_request.histograms + split_request.refused_count > 0, "histograms are lost"
    tsdb_chunks.find(size, np.arange(-1, len(data) + 1), np.zeros((len(data) + 2, 4), np.int64))


def _index(data: bytes) -> None:
    # Whatever the checksums are: nearly all that is mutated would have wrong ones.
    with mock.patch.object(tsdb_index, "is_sound", lambda *_: True), tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "index"
        path.write_bytes(data)
        for _, series in Index(path).series():
            assert series.labels or not series.chunks or series.chunks


def _seed_slice() -> Slice:
    labels = LabelFrame.of([{"__name__": "up", "job": "ü"}, {"__name__": "down"}], Symbols())
    offsets, times = np.array([0, 2, 3]), np.array([1_700_000_000_000, 1_700_000_015_000, -5])
    return Slice(labels, Samples(offsets, times, np.array([1.5, np.nan, np.inf])))


def _line_seeds() -> Iterable[bytes]:
    text = b"".join(JsonLines().chunks(_seed_slice()))
    histogram = b'{"schema":1,"count":3,"sum":"NaN","zeroCount":1,"positive":{"-1":2},"counterResetHint":"gauge"}'
    yield text
    yield gzip.compress(text)
    yield b'{"metric":{"__name__":"h"},"histograms":[%b],"timestamps":[5]}\n' % histogram


def _arrow_seeds() -> Iterable[bytes]:
    writer = ArrowStream()
    yield b"".join([writer.head, *writer.chunks(_seed_slice()), writer.tail])


def _histogram_chunks() -> Iterable[bytes]:
    for is_float in (False, True):
        layout = Layout(-53, 0.0, [(0, 2)], [], [1.5, 1e9]) if is_float else Layout(3, 0.1, [(-2, 2), (3, 1)], [(1, 1)])
        rows = [Row(5 * k, 9.0 + k, 1.0, 2.5, [1.0] * layout.buckets) for k in range(4)]
        yield chunk_data(layout, rows, is_float=is_float, flags=2)


def _index_seed() -> bytes:
    """An index of one series with two chunks."""
    symbols = [b"", b"__name__", b"up"]
    table = struct.pack(">I", len(symbols)) + b"".join(bytes([len(text)]) + text for text in symbols)
    head = struct.pack(">IB", 0xBAAAD700, 2) + struct.pack(">I", len(table)) + table + bytes(4)
    series_at = len(head) + -len(head) % 16
    series = bytes([1, 1, 2, 2, 10, 20, 8, 1, 5, 40])
    body = head.ljust(series_at, b"\0") + bytes([len(series)]) + series + bytes(4)
    return body + struct.pack(">6QI", 5, series_at, len(body), len(body), len(body), len(body), 0)


TARGETS = [
    Target("transfer-lines", _lines, _line_seeds, tokens=("null", '"stale"', "1e400", '"-Infinity"', "[]", "\n")),
    Target(
        "transfer-csv",
        _csv,
        lambda: [b"1:label:job,2:metric:up,3:time:unix_s\na,1,5\n", b'\n__name__,__timestamp__,__value__\n"a",1,{}\n'],
        tokens=("rfc3339", ":metric:", "stale", '"', "\n"),
    ),
    Target("transfer-arrow", _arrow, _arrow_seeds),
    Target(
        "transfer-openmetrics",
        _openmetrics,
        lambda: [
            b'# TYPE a gauge\na{b="c\\n}"} 1 1.5 # {x="y"} 1\n{"n",d="e"} NaN 2\n# EOF\n',
            b'a{b="c"} 1 1\r\na{b="d"} -Inf 1\na{b="c"} 0.30000000000000004 2.0015\n',
        ],
        refusals=(TriptychError, ValueError),
        tokens=("{", '"', "\\", " 1 ", "# EOF", "\n", "\r", "\t", "1e22", "+Inf", "_"),
    ),
    Target("transfer-tsdb-chunk", _chunk, lambda: [bytes([0, 3, 2, *range(40)]), *_histogram_chunks()]),
    Target("transfer-tsdb-index", _index, lambda: [_index_seed()], refusals=(ValueError,)),
]

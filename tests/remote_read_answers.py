"""Answers of remote read, read by plain Python from the documents of their formats, for comparison."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import snappy

from loadtest.harness.histogram_messages import message_of
from proto import remote_read_pb2
from shared.histograms.batch import HINT, IS_FLOAT, HistogramBatch, read_only
from shared.histograms.references import references
from shared.labels import LabelFrame, Labels, Symbols
from shared.promql.model import RangeVector, Samples
from shared.protobuf_fields import read_varint
from tests.crc32c import crc32c
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import CUSTOM, Hint, NativeHistogram

Number = float | NativeHistogram
Series = dict[Labels, list[tuple[int, Number]]]
XOR, FLOAT_HISTOGRAM = 1, 3


def request_body(*queries: remote_read_pb2.Query, accepted: Sequence[int] = ()) -> bytes:
    """A request, compressed."""
    message = remote_read_pb2.ReadRequest(queries=queries, accepted_response_types=accepted)  # type: ignore[arg-type]
    return snappy.compress(message.SerializeToString())


def query_of(matchers: Sequence[tuple[str, str, str]], first_ms: int, last_ms: int, **hints: Any) -> Any:
    """`matchers`: (name, operator, value)."""
    query = remote_read_pb2.Query(start_timestamp_ms=first_ms, end_timestamp_ms=last_ms)
    for name, operator, value in matchers:
        query.matchers.add(type=("=", "!=", "=~", "!~").index(operator), name=name, value=value)
    if hints:
        query.hints.CopyFrom(remote_read_pb2.ReadHints(**hints))
    return query


def of_samples(body: bytes) -> list[Series]:
    """The results of an answer of samples, by query."""
    response = remote_read_pb2.ReadResponse.FromString(snappy.uncompress(body))
    return [{_labels(series): _samples(series) for series in result.timeseries} for result in response.results]


def of_frames(body: bytes, queries: int) -> list[Series]:
    """The results of streamed chunks, by query."""
    results: list[Series] = [{} for _ in range(queries)]
    for message in frames(body):
        (series,) = message.chunked_series
        samples = results[message.query_index].setdefault(_labels(series), [])
        for chunk in series.chunks:
            own = chunk_samples(chunk.type, chunk.data)
            assert (own[0][0], own[-1][0]) == (chunk.min_time_ms, chunk.max_time_ms)
            samples += own
    return results


def frames(body: bytes) -> Iterator[Any]:
    """The messages of the frames, whose checksums are right."""
    at = 0
    while at < len(body):
        length, at = read_varint(body, at)
        payload = body[at + 4 : at + 4 + length]
        assert int.from_bytes(body[at : at + 4], "big") == crc32c(payload)
        at += 4 + length
        yield remote_read_pb2.ChunkedReadResponse.FromString(payload)
    assert at == len(body)


def _labels(series: Any) -> Labels:
    pairs = tuple((label.name, label.value) for label in series.labels)
    assert list(pairs) == sorted(pairs)
    return pairs


def _samples(series: Any) -> list[tuple[int, Number]]:
    samples: list[tuple[int, Number]] = [(sample.timestamp, sample.value) for sample in series.samples]
    samples += [histogram_of(data) for data in series.histograms]
    return sorted(samples, key=lambda sample: sample[0])


def histogram_of(data: bytes) -> tuple[int, NativeHistogram]:
    """A message of a histogram: (its time, the histogram)."""
    message = message_of(data)
    is_float = message.WhichOneof("count") == "count_float"
    sides = []
    for spans, deltas, counts in (
        (message.positive_spans, message.positive_deltas, message.positive_counts),
        (message.negative_spans, message.negative_deltas, message.negative_counts),
    ):
        numbers = list(counts) if is_float else [float(sum(deltas[: i + 1])) for i in range(len(deltas))]
        sides.append(dict(zip(_indexes([(span.offset, span.length) for span in spans]), numbers, strict=True)))
    return message.timestamp, NativeHistogram(
        schema=message.schema,
        count=message.count_float if is_float else float(message.count_int),
        sum=message.sum,
        zero_threshold=message.zero_threshold,
        zero_count=message.zero_count_float if is_float else float(message.zero_count_int),
        positive=sides[0],
        negative=sides[1],
        bounds=tuple(message.custom_values),
        hint=Hint(message.reset_hint),
    )


def _indexes(spans: Sequence[tuple[int, int]]) -> list[int]:
    indexes: list[int] = []
    at = 0
    for offset, length in spans:
        at += offset
        indexes += range(at, at + length)
        at += length
    return indexes


class Bits:
    """A stream of bits, the highest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self._number, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        assert self._left >= 0
        return self._number >> self._left & ((1 << count) - 1)

    def rest(self) -> bytes:
        """The whole bytes that are left."""
        assert self.take(self._left % 8) == 0
        size = self._left // 8
        return self.take(8 * size).to_bytes(size, "big")

    def ones(self, most: int) -> int:
        """How many ones come next, at most so many; the zero after them is taken too."""
        count = 0
        while count < most and self.take(1):
            count += 1
        return count

    def double(self) -> float:
        return struct.unpack(">d", self.take(64).to_bytes(8, "big"))[0]

    def unsigned(self) -> int:
        ones = self.ones(8)
        return self.take((3, 6, 9, 12, 18, 25, 56, 64)[ones - 1]) if ones else 0

    def signed(self) -> int:
        ones = self.ones(8)
        return _signed(self.take(width := (3, 6, 9, 12, 18, 25, 56, 64)[ones - 1]), width) if ones else 0

    def varint(self) -> int:
        data = b""
        while not data or data[-1] & 0x80:
            data += bytes([self.take(8)])
        return read_varint(data, 0)[0]

    def time_change(self) -> int:
        ones = self.ones(4)
        return _signed(self.take(width := (14, 17, 20, 64)[ones - 1]), width) if ones else 0


def _signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits > 1 << (width - 1) or (width == 64 and bits >> 63) else bits


@dataclass
class Xor:
    """A value that follows others by the bits in which it differs."""

    bits: int
    leading: int = 0
    size: int = 0

    def follow(self, stream: Bits) -> float:
        if stream.take(1):
            if stream.take(1):
                self.leading, self.size = stream.take(5), stream.take(6) or 64
            self.bits ^= stream.take(self.size) << (64 - self.leading - self.size)
        return self.value

    @property
    def value(self) -> float:
        return struct.unpack(">d", self.bits.to_bytes(8, "big"))[0]


def chunk_samples(encoding: int, data: bytes) -> list[tuple[int, Number]]:
    """The samples of a chunk of floats or float histograms."""
    stream = Bits(data)
    count = stream.take(16)
    samples = _floats(stream, count) if encoding == XOR else _histograms(stream, count)
    assert encoding in (XOR, FLOAT_HISTOGRAM)
    assert stream.rest() in (b"", b"\0")  # of Prometheus, when the last byte is full
    return samples


def _floats(stream: Bits, count: int) -> list[tuple[int, Number]]:
    zigzag = stream.varint()
    time, value = zigzag >> 1 ^ -(zigzag & 1), Xor(stream.take(64))
    samples: list[tuple[int, Number]] = [(time, value.value)]
    step = 0
    for i in range(1, count):
        step = stream.varint() if i == 1 else step + stream.time_change()
        time += step
        samples.append((time, value.follow(stream)))
    return samples


def _histograms(stream: Bits, count: int) -> list[tuple[int, Number]]:
    header = {0: Hint.UNKNOWN, 2: Hint.RESET, 1: Hint.NOT_RESET, 3: Hint.GAUGE}[stream.take(2)]
    assert stream.take(6) == 0
    code = stream.take(8)
    threshold = 0.0 if code == 0 else stream.double() if code == 255 else math.ldexp(1.0, code - 244)
    schema = stream.signed()
    sides = []
    for _ in range(2):
        spans = []
        for _ in range(stream.unsigned()):
            length = stream.unsigned()
            spans.append((stream.signed(), length))
        sides.append(_indexes(spans))
    bounds = []
    if schema == CUSTOM:
        for _ in range(stream.unsigned()):
            scaled = stream.unsigned()
            bounds.append((scaled - 1) / 1000 if scaled else stream.double())
    samples: list[tuple[int, Number]] = []
    time = step = 0
    fields: list[Xor] = []
    for i in range(count):
        step = stream.signed() if i < 2 else step + stream.signed()
        time += step
        if i == 0:
            fields = [Xor(stream.take(64)) for _ in range(3 + len(sides[0]) + len(sides[1]))]
        numbers = [own.value if i == 0 else own.follow(stream) for own in fields]
        positive = dict(zip(sides[0], numbers[3:], strict=False))
        negative = dict(zip(sides[1], numbers[3 + len(sides[0]) :], strict=True))
        hint = header if i == 0 or header is Hint.GAUGE else Hint.NOT_RESET
        samples.append(
            (time, NativeHistogram(schema, numbers[0], numbers[2], threshold, numbers[1], positive, negative,
                                   tuple(bounds), hint))
        )  # fmt: skip
    return samples


def comparable(results: Sequence[Series]) -> list[dict[Labels, list[tuple[int, str]]]]:
    """The same with each number as text that is equal for equal bits only."""
    return [{labels: [(at, _text(own)) for at, own in samples] for labels, samples in each.items()} for each in results]


def _text(number: Number) -> str:
    if isinstance(number, NativeHistogram):
        sides = [sorted((i, float(n).hex()) for i, n in side.items()) for side in (number.positive, number.negative)]
        own = (number.schema, number.count, number.sum, number.zero_threshold, number.zero_count, number.bounds)
        return repr((own, sides, number.hint))
    return struct.pack(">d", number).hex()


def with_flags(batch: HistogramBatch, more: int) -> HistogramBatch:
    flags = read_only(batch.columns.flags & HINT | more, np.uint8)
    return HistogramBatch(batch.layouts, batch.columns._replace(flags=flags))


def vector_of(series: Series) -> RangeVector:
    """Floats and histograms, which have float counts."""
    found = [own for numbers in series.values() for _, own in numbers if isinstance(own, NativeHistogram)]
    batch = with_flags(batch_of(found), IS_FLOAT)
    rows = iter(references(np.arange(len(found))).tolist())
    flat = [
        (at, next(rows) if isinstance(own, NativeHistogram) else own) for own_ in series.values() for at, own in own_
    ]
    offsets = np.cumsum([0, *(len(numbers) for numbers in series.values())])
    times, values = (np.array(column) for column in zip(*flat, strict=True)) if flat else (np.zeros(0), np.zeros(0))
    labels = LabelFrame.of(list(series), Symbols())
    read = Samples(offsets, times.astype(np.int64), values.astype(float), histograms=batch if found else None)
    return RangeVector(labels, read, np.zeros(labels.size, bool))

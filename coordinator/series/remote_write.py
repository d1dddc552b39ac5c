"""Remote write 1.0: a request's body, which is decompressed already, checked and cut into one body per shard.

Protocol: https://prometheus.io/docs/specs/prw/remote_write_spec/. What a kernel recognises as a plain series
(`coordinator.series.walk`) goes as it stands; any other one goes through the protobuf library, one by one, to be
written anew in canonical form or refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator.series import division, exemplars, histograms, metadata
from coordinator.series import walk as kernels
from coordinator.series.division import NO_ROWS, Rows
from coordinator.series.exemplars import Exemplars
from coordinator.series.known_samples import KnownSamples
from coordinator.series.label_sets import Limits, problem_of, shown
from coordinator.series.lessons import Lesson
from coordinator.series.series_references import SeriesReferences
from coordinator.series.walk import (
    COLUMNS,
    COUNTS,
    END,
    EXEMPLARS,
    HISTOGRAM_BYTES,
    HISTOGRAMS,
    LABELS,
    LABELS_END,
    METADATA,
    ODDS,
    PLAIN,
    STATUS,
)
from coordinator.series.walked import Walk
from proto import remote_write_pb2, remote_write_v2_pb2
from shared import labels
from shared.errors import BadData, TooLarge
from shared.messages.series import FamilyMetadata
from shared.protobuf_fields import delimited_head
from shared.sample_frames import TIME_MS_MAX, TIME_MS_MIN
from shared.wire import Frame

SERIES_MAX = 1 << 20
"""Series of one request: its walk takes 48 bytes for each of them, however little the body spends on one."""
ODD_SERIES_MAX = 100_000
"""Series of one request that are not plain: some 10 µs of interpreted code each."""
ODD_FIELDS_MAX = 1 << 20
"""Fields of all series of one request that are not plain, which the protobuf library takes apart at some 50 bytes each:
samples, exemplars and unknown ones; its labels are bounded by their own limit."""
SAMPLES_MAX = 1 << 22
"""Samples of one request: the frames take 16 bytes for each, however little the body spends on one."""
ODD_BODY_BYTES_MAX = 16 << 20
"""Largest body with unknown top-level fields, and largest series that is not plain: what the protobuf library must take
apart at 8 bytes a byte."""
REFUSED_SHOWN_MAX = 5
"""How many refused series an error names; it gives the number of all."""
HISTOGRAM_BYTES_PER_STEP = 1024
"""Bytes of histograms that take as long as a series that is not plain: decoding and division take 1 to 7 ns of each."""
HISTOGRAM_BYTES_BESIDE = 64
"""A histogram takes as long as its bytes and so many more."""
LESSON_SERIES_MAX = 100_000
"""Series of one request whose numbers are learned: its tables are kept until it is stored."""
ODD_LABELS_MIN = 100_000
"""Labels of a series that is not plain, up to which it is refused alone, and the others of the request are stored."""

_TIMESERIES_FIELD = remote_write_pb2.RawWriteRequest.TIMESERIES_FIELD_NUMBER
_METADATA_FIELD = remote_write_pb2.RawWriteRequest.METADATA_FIELD_NUMBER
_SYMBOLS_FIELD = remote_write_v2_pb2.Request.SYMBOLS_FIELD_NUMBER
_LABELS_FIELD = remote_write_pb2.RawTimeSeries.LABELS_FIELD_NUMBER
_SECOND_TYPE = "application/x-protobuf;proto=io.prometheus.write.v2.Request"

NO_REFERENCES = SeriesReferences(0, 1)

AnySample = remote_write_pb2.Sample | remote_write_v2_pb2.Sample


@dataclass(slots=True)
class Cut:
    """A request ready to be sent: shard → its frames (`shared.sample_frames`, `shared.exemplar_frames`), the samples,
    histograms and exemplars in them, metadata, and what was left out.

    `refused` names the first `REFUSED_SHOWN_MAX` series, samples, histograms, exemplars or metadata not valid, of
    `refused_count`. `metadata_keys`: hashes of the metadata that came with series, for `metadata.KnownMetadata`.
    `known`: all of the request in place of `parts`, if it has nothing but samples of known series.
    """

    parts: dict[int, Sequence[Frame]] = field(default_factory=dict)
    samples: int = 0
    refused: list[str] = field(default_factory=list)
    refused_count: int = 0
    metadata: list[FamilyMetadata] = field(default_factory=list)
    metadata_keys: list[int] = field(default_factory=list)
    exemplars: int = 0
    exemplars_refused: int = 0
    exemplars_left_out: int = 0
    histograms: int = 0
    histograms_refused: int = 0
    lessons: list[Lesson] = field(default_factory=list, compare=False)
    """What there is to learn from the answer to the frames."""
    known_series: int = 0
    """How many series are in the frames by their numbers."""
    known: KnownSamples | None = None

    def refuse(self, text: str) -> None:
        self.refused_count += 1
        if len(self.refused) < REFUSED_SHOWN_MAX:
            self.refused.append(text)


def walk(body: Frame, limits: Limits, references: SeriesReferences = NO_REFERENCES) -> Walk | None:
    """Find the series of a body, those of `references` by their numbers; None if its top level has fields the kernel
    does not know.

    Raises TooLarge for more than SERIES_MAX series.
    """
    data = np.frombuffer(body, dtype=np.uint8)
    series = kernels.count_series(data)
    if series < 0:
        return None
    if series > SERIES_MAX:
        raise TooLarge(f"the request has {series} series; the limit is {SERIES_MAX}, send it in smaller ones")
    table = np.zeros((series, COLUMNS), dtype=np.int64)
    hashes = np.zeros(series, dtype=np.uint64)
    counts = np.zeros(COUNTS, dtype=np.int64)
    with references.lent() as tables:
        kernels.walk(data, table, hashes, counts, limits.array(), tables)
        epochs = references.epochs
    return Walk(data, data, table, hashes, counts, epochs=epochs)


def cut(body: Frame, shards: int, limits: Limits, references: SeriesReferences = NO_REFERENCES) -> Cut:
    """Check a decompressed request and cut it by the shard of each series, whose number is sent if it is among the
    `references`, and otherwise its labels.

    A series or sample that is not valid is left out and named in `Cut.refused`. Raises BadData if the body is not a
    WriteRequest, TooLarge past the bounds above.
    """
    return cut_walked(body, walk(body, limits, references), shards, limits)


def steps(walked: Walk | None) -> float:
    """How many series and metadata messages of a walked request are read by interpreted code, one by one: all of a body
    whose top level the kernel does not know. Histograms count by what their decoding takes."""
    if walked is None:
        return math.inf
    read = int(walked.counts[ODDS]) + int(walked.counts[METADATA])
    return read + decoding_steps(walked)


def decoding_steps(walked: Walk) -> int:
    """How many steps the decoding of the histograms of a walk takes."""
    beside = HISTOGRAM_BYTES_BESIDE * int(walked.counts[HISTOGRAMS])
    return (int(walked.counts[HISTOGRAM_BYTES]) + beside) // HISTOGRAM_BYTES_PER_STEP


def cut_walked(body: Frame, walked: Walk | None, shards: int, limits: Limits) -> Cut:
    """What `cut` does, of a body that has been walked."""
    answer = Cut()
    pieces: list[Walk] = []
    if walked is None:
        series, families = _count_fields(body, _TIMESERIES_FIELD), _count_fields(body, _METADATA_FIELD)
        if not series and not families and _count_fields(body, _SYMBOLS_FIELD):
            raise BadData(f"the body has symbols but no series: version 2.0 needs the Content-Type {_SECOND_TYPE}")
        if len(body) > ODD_BODY_BYTES_MAX:
            raise TooLarge(f"a body of {len(body)} bytes has unknown fields; the limit of such is {ODD_BODY_BYTES_MAX}")
        check_odd_count(series)
        metadata.check_count(families)
        try:
            request = remote_write_pb2.RawWriteRequest.FromString(bytes(body))
        except DecodeError as error:
            raise BadData(f"the body is not a protobuf WriteRequest: {error}") from error
        metadata_messages: Sequence[Frame] = request.metadata
        data = np.frombuffer(b"".join(request.timeseries), np.uint8)
        rows = np.arange(len(request.timeseries))
        sizes = np.fromiter(map(len, request.timeseries), np.int64, len(rows))
        ends = np.cumsum(sizes)
        begins = ends - sizes
    else:
        pieces.append(walked)
        rows = np.flatnonzero(walked.table[:, STATUS]) if walked.counts[ODDS] else NO_ROWS
        check_odd_count(len(rows))
        metadata.check_count(int(walked.counts[METADATA]))
        data, begins, ends = walked.body, walked.table[rows, LABELS], walked.table[rows, END]
        metadata_messages = metadata.messages(walked.body, int(walked.counts[METADATA]))
    if len(rows):
        pieces.append(rewalked(_odd(data, rows, begins, ends, limits, answer), limits))
    per_shard = divide(pieces, shards, answer)
    for piece in pieces:
        add_histograms(piece, histograms_of(piece), shards, answer, per_shard)
    _divide_exemplars(pieces, shards, limits, answer, per_shard)
    answer.parts.update(per_shard)
    answer.metadata = metadata.read(metadata_messages, answer.refuse)
    return answer


def _odd(
    data: NDArray[np.uint8],
    rows: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    limits: Limits,
    answer: Cut,
) -> Iterator[tuple[int, bytes]]:
    """The series data[begins:ends], whose numbers are `rows`, through the protobuf library one by one: (number, what
    `_exact` gives). Raises TooLarge for those that the library would make too many objects of."""
    counts = np.zeros((len(rows), 2), np.int64)
    # Of all of them: a kernel called for each would not let other threads in.
    kernels.count_fields(data, begins, ends, _LABELS_FIELD, counts)
    # Flat lists, of which no element is an object that the garbage collector must visit.
    spans = rows.tolist(), begins.tolist(), ends.tolist()
    labels_max = max(limits.labels, ODD_LABELS_MIN)
    totals = np.cumsum(counts[:, 1]).tolist()
    for number, begin, end, label_count, fields in zip(*spans, counts[:, 0].tolist(), totals, strict=True):
        if label_count > labels_max:
            raise TooLarge(f"series {number} has {label_count} labels; the limit is {limits.labels}")
        check_odd_size(number, end - begin, fields)
    for number, begin, end in zip(*spans, strict=True):
        yield number, _exact(number, data[begin:end].tobytes(), limits, answer)


def _count_fields(body: Frame, number: int) -> int:
    """How many length-delimited fields of this number the message has; 0 for what is no message."""
    data, counts = np.frombuffer(body, np.uint8), np.zeros((1, 2), np.int64)
    kernels.count_fields(data, np.zeros(1, np.int64), np.array([len(data)]), number, counts)
    return counts.item(0, 0)


def check_odd_count(series: int) -> None:
    if series > ODD_SERIES_MAX:
        raise TooLarge(f"{series} series are not in canonical form; the limit is {ODD_SERIES_MAX} a request")


def check_odd_size(number: int, size: int, fields: int) -> None:
    """Raises TooLarge for a series that is not plain and has so many bytes, and `fields` with those before it."""
    if size > ODD_BODY_BYTES_MAX:
        raise TooLarge(
            f"series {number} is not in canonical form and has {size} bytes; the limit is {ODD_BODY_BYTES_MAX}"
        )
    if fields > ODD_FIELDS_MAX:
        raise TooLarge(
            f"series not in canonical form have {fields} fields together, up to series {number}; "
            f"the limit is {ODD_FIELDS_MAX} a request"
        )


def divide(pieces: Sequence[Walk], shards: int, answer: Cut) -> dict[int, list[Frame]]:
    """Shard → the frames with the samples of the plain series of the walks. Raises TooLarge past SAMPLES_MAX."""
    per_shard: dict[int, list[Frame]] = {}
    for piece in pieces:
        whole, known = division.sort(piece, shards)
        if not len(whole.order) + len(known.order):
            continue
        answer.samples += whole.samples + known.samples
        if answer.samples > SAMPLES_MAX:
            raise TooLarge(
                f"the request has {answer.samples} samples; the limit is {SAMPLES_MAX}, send fewer at a time"
            )
        if len(whole.order):
            frames = division.frames(piece, whole)
            _add_lesson(
                answer, piece, whole, {shard: division.add_frame(per_shard, shard, frame) for shard, frame in frames}
            )
        if len(known.order):
            answer.known_series += len(known.order)
            for shard, frame in division.frames_of_known(piece, known):
                division.add_frame(per_shard, shard, frame)
    return per_shard


def histograms_of(piece: Walk) -> NDArray[np.int64] | None:
    """The histograms of the plain series of a walk of version 1.0, if there are any. Raises TooLarge past the limit."""
    count = int(piece.counts[HISTOGRAMS])
    if not count:
        return None
    rows = np.flatnonzero(piece.table[:, STATUS] == PLAIN)
    begins, ends = piece.table[rows, LABELS_END], piece.table[rows, END]
    return histograms.locate(piece.body, histograms.TAG, rows, begins, ends, count)


def add_histograms(
    piece: Walk, located: NDArray[np.int64] | None, shards: int, answer: Cut, per_shard: dict[int, list[Frame]]
) -> None:
    """Add the frames with these histograms of a walk. Those that are not valid go to `answer`. Raises TooLarge past the
    limit."""
    if located is None:
        return
    divided = histograms.divide(piece, located, shards)
    for row, fault in divided.faults:
        answer.refuse(f"{piece.name(row)}: {fault}")
    answer.refused_count += divided.refused - len(divided.faults)
    answer.histograms_refused += divided.refused
    answer.histograms += divided.stored
    for part in divided.slices:
        places = {shard: division.add_frame(per_shard, shard, frame) for shard, frame in part.frames}
        _add_lesson(answer, piece, part.rows, places)
        for shard, frame in part.frames_of_known:
            division.add_frame(per_shard, shard, frame)
        answer.known_series += part.known_series


def _add_lesson(answer: Cut, piece: Walk, rows: Rows, places: Mapping[int, int]) -> None:
    """The numbers of these rows, which are in frames with labels, are learned unless there are too many."""
    if places and piece.numbers is None and len(piece.table) <= LESSON_SERIES_MAX:
        answer.lessons.append(Lesson(piece, rows, places))


def _divide_exemplars(
    pieces: Sequence[Walk], shards: int, limits: Limits, answer: Cut, per_shard: dict[int, list[Frame]]
) -> None:
    """Add the frames with the exemplars of the plain series. Raises TooLarge past the limit."""
    total = sum(int(piece.counts[EXEMPLARS]) for piece in pieces)
    if not total:
        return
    if not limits.exemplars:
        answer.exemplars_left_out += total
        return
    exemplars.check_count(total, limits.exemplars)
    for piece in pieces:
        count = int(piece.counts[EXEMPLARS])
        if count:
            add_exemplars(exemplars.read(piece.body, piece.table, count), piece, shards, answer, per_shard)


def add_exemplars(found: Exemplars, piece: Walk, shards: int, answer: Cut, per_shard: dict[int, list[Frame]]) -> None:
    """Add the frames with these exemplars of the plain series of a walk. Those with a fault go to `answer`."""
    faults, valid = found.faults(), found.valid()
    for fault in faults[:REFUSED_SHOWN_MAX].tolist():
        answer.refuse(f"{piece.name(found.series(fault))}: {found.fault(fault)}")
    answer.refused_count += max(0, len(faults) - REFUSED_SHOWN_MAX)
    answer.exemplars_refused += len(faults)
    answer.exemplars += len(valid)
    for shard, frame in exemplars.divide(found, piece.label_data, piece.table, piece.hashes, valid, shards):
        per_shard.setdefault(shard, []).append(frame)


def rewalked(series: Iterable[tuple[int, bytes]], limits: Limits) -> Walk:
    """The walk of series (number, what `canonical` has written), all of which are plain. They are sent with their
    labels each time."""
    fields = {number: encoded for number, encoded in series if encoded}
    rewritten = walk(b"".join(fields.values()), limits)
    assert rewritten is not None and not rewritten.table[:, STATUS].any()
    rewritten.numbers = list(fields)
    return rewritten


def _exact(number: int, data: bytes, limits: Limits, answer: Cut) -> bytes:
    """One TimeSeries message through the protobuf library: its `timeseries` field in canonical form, or b"" where
    nothing of it is left. Refusals go to `answer`."""
    try:
        series = remote_write_pb2.RawTimeSeries.FromString(data)
    except DecodeError as error:
        raise BadData(f"the body is not a protobuf WriteRequest: series {number}: {error}") from error
    pairs = [(label.name, label.value) for label in series.labels]
    written = canonical(number, pairs, series.samples, limits, answer, series.exemplars, series.histograms)
    if written is None:
        answer.exemplars_refused += len(series.exemplars)
        answer.histograms_refused += len(series.histograms)
    return written or b""


def canonical(
    number: int,
    pairs: Sequence[tuple[bytes, bytes]],
    samples: Iterable[AnySample],
    limits: Limits,
    answer: Cut,
    exemplars: Sequence[bytes] = (),
    histograms: Sequence[bytes] = (),
    *,
    created_ms: int = 0,
    is_kept: bool = False,
) -> bytes | None:
    """The `timeseries` field in canonical form of a series with these labels, samples, encoded exemplars and encoded
    histograms: b"" where it has none of them, unless `is_kept`; None where its labels are not valid. Samples without a
    start timestamp get `created_ms`. Refusals go to `answer`."""
    problem = problem_of(pairs, limits)
    if problem:
        answer.refuse(f"series {number} {shown(pairs)}: {problem}")
        return None
    valid_samples = []
    for sample in samples:
        start_ms = sample.start_timestamp or created_ms
        is_in_range = [TIME_MS_MIN <= time_ms <= TIME_MS_MAX for time_ms in (sample.timestamp, start_ms)]
        if all(is_in_range):
            valid_samples.append(
                remote_write_pb2.Sample(value=sample.value, timestamp=sample.timestamp, start_timestamp=start_ms)
            )
        else:
            what, seen = ("start timestamp", start_ms) if is_in_range[0] else ("timestamp", sample.timestamp)
            answer.refuse(
                f"series {number} {shown(pairs)}: a sample's {what} is {seen} ms; "
                "it must lie within the years 1 to 9999"
            )
    if not valid_samples and not exemplars and not histograms and not is_kept:
        return b""
    label_bytes = labels.encode(tuple((name.decode(), value.decode()) for name, value in pairs if value))
    kept = remote_write_pb2.RawTimeSeries(samples=valid_samples, exemplars=exemplars, histograms=histograms)
    message = label_bytes + kept.SerializeToString()
    return delimited_head(_TIMESERIES_FIELD, len(message)) + message

"""Remote write 1.0: checks a decompressed request body and splits it into frames, by shard.

Protocol: https://prometheus.io/docs/specs/prw/remote_write_spec/. A series that the kernel recognises as plain
(`coordinator.series.walk`) is sent as it stands. Every other series is parsed on its own by the protobuf library, and
is either rewritten in canonical form or refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator.series import division, exemplars, histograms, metadata
from coordinator.series import walk as kernels
from coordinator.series.division import NO_ROWS, Rows
from coordinator.series.exemplars import Exemplars
from coordinator.series.label_sets import Limits, problem_of, shown
from coordinator.series.lessons import Lesson
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import REFUSED_SHOWN_MAX, SplitRequest
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
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.protobuf_fields import delimited_head
from shared.wire import Frame

SERIES_MAX = 1 << 20
"""Series of one request. The walk takes 48 bytes for each series, however few bytes the body has for it."""
ODD_SERIES_MAX = 100_000
"""Series of one request that are not plain: each takes about 10 µs of interpreted code."""
ODD_FIELDS_MAX = 1 << 20
"""Fields (samples, exemplars and unknown ones) of all series of one request that are not plain: the protobuf library
takes about 50 bytes for each. Labels have a limit of their own."""
SAMPLES_MAX = 1 << 22
"""Samples of one request: the frames take 16 bytes for each sample, however few bytes the body has for it."""
ODD_BODY_BYTES_MAX = 16 << 20
"""Largest body with unknown top-level fields, and largest series that is not plain: the protobuf library takes 8 bytes
of memory for each byte that it parses."""
HISTOGRAM_BYTES_PER_STEP = 1024
"""Bytes of histograms that take as long as one series that is not plain: decoding and grouping take 1 to 7 ns each."""
HISTOGRAM_BYTES_BESIDE = 64
"""Fixed cost of a histogram, in bytes: it takes as long as its own bytes and this many more."""
LESSON_SERIES_MAX = 100_000
"""A request with more series than this teaches no series numbers, since its tables would be kept until it is stored."""
ODD_LABELS_MIN = 100_000
"""A series that is not plain and has at most this many labels is refused alone; with more, the request is refused."""

_TIMESERIES_FIELD = remote_write_pb2.RawWriteRequest.TIMESERIES_FIELD_NUMBER
_METADATA_FIELD = remote_write_pb2.RawWriteRequest.METADATA_FIELD_NUMBER
_SYMBOLS_FIELD = remote_write_v2_pb2.Request.SYMBOLS_FIELD_NUMBER
_LABELS_FIELD = remote_write_pb2.RawTimeSeries.LABELS_FIELD_NUMBER
_SECOND_TYPE = "application/x-protobuf;proto=io.prometheus.write.v2.Request"

NO_REFERENCES = SeriesReferences(0, 1)

AnySample = remote_write_pb2.Sample | remote_write_v2_pb2.Sample


def walk(body: Frame, limits: Limits, references: SeriesReferences = NO_REFERENCES) -> Walk | None:
    """Find and check the series of a body, and look up the numbers of those in `references`. Returns None if the body
    has top-level fields that the kernel does not know. Raises TooLarge for more than SERIES_MAX series."""
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


def split(body: Frame, shards: int, limits: Limits, references: SeriesReferences = NO_REFERENCES) -> SplitRequest:
    """Check a decompressed request and split it by the shard of each series. A series in `references` is sent by its
    number, any other with its labels.

    Invalid series and samples are left out and named in `SplitRequest.refused`. Raises BadData if the body is not a
    WriteRequest, and TooLarge if it exceeds one of the limits above.
    """
    return split_walked(body, walk(body, limits, references), shards, limits)


def steps(walked: Walk | None) -> float:
    """The cost of splitting a walked request, in series and metadata messages that interpreted code reads one by one.
    Histograms count by the time that their decoding takes. Infinite if the kernel could not walk the body."""
    if walked is None:
        return math.inf
    read = int(walked.counts[ODDS]) + int(walked.counts[METADATA])
    return read + decoding_steps(walked)


def decoding_steps(walked: Walk) -> int:
    """The cost of decoding the histograms of a walk, in the unit of `steps`."""
    beside = HISTOGRAM_BYTES_BESIDE * int(walked.counts[HISTOGRAMS])
    return (int(walked.counts[HISTOGRAM_BYTES]) + beside) // HISTOGRAM_BYTES_PER_STEP


def split_walked(body: Frame, walked: Walk | None, shards: int, limits: Limits) -> SplitRequest:
    """As `split`, for a body that has been walked; None for `walked` if the kernel could not walk it."""
    split_request = SplitRequest()
    walks: list[Walk] = []
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
        walks.append(walked)
        rows = np.flatnonzero(walked.table[:, STATUS]) if walked.counts[ODDS] else NO_ROWS
        check_odd_count(len(rows))
        metadata.check_count(int(walked.counts[METADATA]))
        data, begins, ends = walked.body, walked.table[rows, LABELS], walked.table[rows, END]
        metadata_messages = metadata.messages(walked.body, int(walked.counts[METADATA]))
    if len(rows):
        walks.append(rewalked(_rewrite_odd(data, rows, begins, ends, limits, split_request), limits))
    per_shard = divide_samples(walks, shards, split_request)
    for walked in walks:
        add_histograms(walked, histograms_of(walked), shards, split_request, per_shard)
    _divide_exemplars(walks, shards, limits, split_request, per_shard)
    split_request.parts.update(per_shard)
    split_request.metadata = metadata.read(metadata_messages, split_request.refuse)
    return split_request


def _rewrite_odd(
    data: NDArray[np.uint8],
    rows: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    limits: Limits,
    split_request: SplitRequest,
) -> Iterator[tuple[int, bytes]]:
    """Parse the series data[begins[i]:ends[i]], which have the numbers `rows`, one by one with the protobuf library.
    Yields (number, result of `_rewrite`). Raises TooLarge if the library would create too many objects."""
    counts = np.zeros((len(rows), 2), np.int64)
    # One call for all series: with a call for each, other threads would not get the interpreter lock.
    kernels.count_fields(data, begins, ends, _LABELS_FIELD, counts)
    # Flat lists of ints, which the garbage collector does not have to traverse.
    spans = rows.tolist(), begins.tolist(), ends.tolist()
    labels_max = max(limits.labels, ODD_LABELS_MIN)
    totals = np.cumsum(counts[:, 1]).tolist()
    for number, begin, end, label_count, fields in zip(*spans, counts[:, 0].tolist(), totals, strict=True):
        if label_count > labels_max:
            raise TooLarge(f"series {number} has {label_count} labels; the limit is {limits.labels}")
        check_odd_size(number, end - begin, fields)
    for number, begin, end in zip(*spans, strict=True):
        yield number, _rewrite(number, data[begin:end].tobytes(), limits, split_request)


def _count_fields(body: Frame, number: int) -> int:
    """How many length-delimited fields with this number the message has; 0 if it is not a message."""
    data, counts = np.frombuffer(body, np.uint8), np.zeros((1, 2), np.int64)
    kernels.count_fields(data, np.zeros(1, np.int64), np.array([len(data)]), number, counts)
    return counts.item(0, 0)


def check_odd_count(series: int) -> None:
    if series > ODD_SERIES_MAX:
        raise TooLarge(f"{series} series are not in canonical form; the limit is {ODD_SERIES_MAX} a request")


def check_odd_size(number: int, size: int, fields: int) -> None:
    """Raises TooLarge if a series that is not plain has too many bytes, or if it and the ones before it have too many
    fields in total (`fields`)."""
    if size > ODD_BODY_BYTES_MAX:
        raise TooLarge(
            f"series {number} is not in canonical form and has {size} bytes; the limit is {ODD_BODY_BYTES_MAX}"
        )
    if fields > ODD_FIELDS_MAX:
        raise TooLarge(
            f"series not in canonical form have {fields} fields together, up to series {number}; "
            f"the limit is {ODD_FIELDS_MAX} a request"
        )


def divide_samples(walks: Sequence[Walk], shards: int, split_request: SplitRequest) -> dict[int, list[Frame]]:
    """Shard → the frames with the samples of the plain series of the walks. Raises TooLarge for more than SAMPLES_MAX
    samples."""
    per_shard: dict[int, list[Frame]] = {}
    for walked in walks:
        with_labels, by_number = division.sort(walked, shards)
        if not len(with_labels.order) + len(by_number.order):
            continue
        split_request.samples += with_labels.samples + by_number.samples
        if split_request.samples > SAMPLES_MAX:
            raise TooLarge(
                f"the request has {split_request.samples} samples; the limit is {SAMPLES_MAX}, send fewer at a time"
            )
        if len(with_labels.order):
            frames = division.frames(walked, with_labels)
            _add_lesson(
                split_request,
                walked,
                with_labels,
                {shard: division.add_frame(per_shard, shard, frame) for shard, frame in frames},
            )
        if len(by_number.order):
            split_request.known_series += len(by_number.order)
            for shard, frame in division.frames_of_known(walked, by_number):
                division.add_frame(per_shard, shard, frame)
    return per_shard


def histograms_of(walked: Walk) -> NDArray[np.int64] | None:
    """Locate the histograms of the plain series of a walk of version 1.0 (`histograms.locate`); None if there are none.
    Raises TooLarge for too many."""
    count = int(walked.counts[HISTOGRAMS])
    if not count:
        return None
    rows = np.flatnonzero(walked.table[:, STATUS] == PLAIN)
    begins, ends = walked.table[rows, LABELS_END], walked.table[rows, END]
    return histograms.locate(walked.body, histograms.TAG, rows, begins, ends, count)


def add_histograms(
    walked: Walk,
    located: NDArray[np.int64] | None,
    shards: int,
    split_request: SplitRequest,
    per_shard: dict[int, list[Frame]],
) -> None:
    """Add the frames with the located histograms of a walk to `per_shard`. Invalid ones are refused in `split_request`.
    Raises TooLarge for too many buckets."""
    if located is None:
        return
    divided = histograms.divide(walked, located, shards)
    for row, fault in divided.faults:
        split_request.refuse(f"{walked.name(row)}: {fault}")
    split_request.refused_count += divided.refused - len(divided.faults)
    split_request.histograms_refused += divided.refused
    split_request.histograms += divided.stored
    for histogram_slice in divided.slices:
        frame_indexes = {shard: division.add_frame(per_shard, shard, frame) for shard, frame in histogram_slice.frames}
        _add_lesson(split_request, walked, histogram_slice.rows, frame_indexes)
        for shard, frame in histogram_slice.frames_of_known:
            division.add_frame(per_shard, shard, frame)
        split_request.known_series += histogram_slice.known_series


def _add_lesson(split_request: SplitRequest, walked: Walk, rows: Rows, frame_indexes: Mapping[int, int]) -> None:
    """Have the numbers of these rows, whose labels are in the frames, learned from the replies, unless the request has
    too many series."""
    if frame_indexes and walked.numbers is None and len(walked.table) <= LESSON_SERIES_MAX:
        split_request.lessons.append(Lesson(walked, rows, frame_indexes))


def _divide_exemplars(
    walks: Sequence[Walk], shards: int, limits: Limits, split_request: SplitRequest, per_shard: dict[int, list[Frame]]
) -> None:
    """Add the frames with the exemplars of the plain series. Raises TooLarge for too many exemplars."""
    total = sum(int(walked.counts[EXEMPLARS]) for walked in walks)
    if not total:
        return
    if not limits.exemplars:
        split_request.exemplars_left_out += total
        return
    exemplars.check_count(total, limits.exemplars)
    for walked in walks:
        count = int(walked.counts[EXEMPLARS])
        if count:
            add_exemplars(exemplars.read(walked.body, walked.table, count), walked, shards, split_request, per_shard)


def add_exemplars(
    located: Exemplars, walked: Walk, shards: int, split_request: SplitRequest, per_shard: dict[int, list[Frame]]
) -> None:
    """Add the frames with these exemplars of the plain series of a walk. Invalid ones are refused in
    `split_request`."""
    faults, valid = located.faults(), located.valid()
    for fault in faults[:REFUSED_SHOWN_MAX].tolist():
        split_request.refuse(f"{walked.name(located.series(fault))}: {located.fault(fault)}")
    split_request.refused_count += max(0, len(faults) - REFUSED_SHOWN_MAX)
    split_request.exemplars_refused += len(faults)
    split_request.exemplars += len(valid)
    for shard, frame in exemplars.divide(located, walked.label_data, walked.table, walked.hashes, valid, shards):
        per_shard.setdefault(shard, []).append(frame)


def rewalked(series: Iterable[tuple[int, bytes]], limits: Limits) -> Walk:
    """The walk of rewritten series (number, bytes written by `canonical`), all of which are plain. These series are
    always sent with their labels."""
    fields = {number: encoded for number, encoded in series if encoded}
    rewritten = walk(b"".join(fields.values()), limits)
    assert rewritten is not None and not rewritten.table[:, STATUS].any()
    rewritten.numbers = list(fields)
    return rewritten


def _rewrite(number: int, data: bytes, limits: Limits, split_request: SplitRequest) -> bytes:
    """Parse a TimeSeries message with the protobuf library. Returns its `timeseries` field in canonical form, or b"" if
    nothing of it can be stored. Refusals go to `split_request`."""
    try:
        series = remote_write_pb2.RawTimeSeries.FromString(data)
    except DecodeError as error:
        raise BadData(f"the body is not a protobuf WriteRequest: series {number}: {error}") from error
    pairs = [(label.name, label.value) for label in series.labels]
    written = canonical(number, pairs, series.samples, limits, split_request, series.exemplars, series.histograms)
    if written is None:
        split_request.exemplars_refused += len(series.exemplars)
        split_request.histograms_refused += len(series.histograms)
    return written or b""


def canonical(
    number: int,
    pairs: Sequence[tuple[bytes, bytes]],
    samples: Iterable[AnySample],
    limits: Limits,
    split_request: SplitRequest,
    exemplars: Sequence[bytes] = (),
    histograms: Sequence[bytes] = (),
    *,
    created_ms: int = 0,
    is_kept: bool = False,
) -> bytes | None:
    """The `timeseries` field, in canonical form, of a series with these labels, samples, encoded exemplars and encoded
    histograms. Returns b"" if the series has nothing to store, unless `is_kept`; None if its labels are invalid.
    Samples without a start timestamp get `created_ms`. Refusals go to `split_request`."""
    problem = problem_of(pairs, limits)
    if problem:
        split_request.refuse(f"series {number} {shown(pairs)}: {problem}")
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
            what, seen_ms = ("start timestamp", start_ms) if is_in_range[0] else ("timestamp", sample.timestamp)
            split_request.refuse(
                f"series {number} {shown(pairs)}: a sample's {what} is {seen_ms} ms; "
                "it must lie within the years 1 to 9999"
            )
    if not valid_samples and not exemplars and not histograms and not is_kept:
        return b""
    label_bytes = labels.encode(tuple((name.decode(), value.decode()) for name, value in pairs if value))
    remainder = remote_write_pb2.RawTimeSeries(samples=valid_samples, exemplars=exemplars, histograms=histograms)
    message = label_bytes + remainder.SerializeToString()
    return delimited_head(_TIMESERIES_FIELD, len(message)) + message

"""The data points of an OTLP request, translated to a request of remote write 1.0, which then handles them.

Kernels find the points (`walk`) and write those whose label sets are known (`known_sets`). Python code translates the
label sets of new points, exponential histograms, summaries and exemplars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.otlp import exemplars, known_sets, label_sets, message_counts, native, point_walk, walk
from coordinator.otlp.known_sets import BEGIN, END, SETS, SIZES, Sets
from coordinator.otlp.label_sets import LabelSets, Metric, NotValid, Target, Translation
from coordinator.otlp.refusals import Refusals
from coordinator.otlp.survey import Survey
from coordinator.series import metadata, remote_write
from coordinator.series.metadata import FamilyMetadata
from coordinator.series.own_samples import STALE
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import SplitRequest
from proto import remote_write_pb2
from shared.errors import TooLarge
from shared.protobuf_fields import delimited_head
from shared.wire import Frame

NEW_SERIES_MAX = 100_000
"""Series of one request whose labels are not known yet, at some 30 µs each."""
NEW_BYTES_MAX = 64 << 20
"""Bytes of the labels of new series, of which there are several copies until the request is split."""
ATTRIBUTES_MAX = 1 << 21
"""Attributes of one request that Python code reads, with the members and elements of nested values: those of resources
and scopes, and of points that are new, have exemplars or are read by hand. Each takes some 1 µs, and two bytes or
more."""
BY_HAND_MAX = 20_000
BY_HAND_BYTES_MAX = 4 << 20
"""Points of one request that the protobuf library reads (`point_walk.BY_HAND`), at some 70 µs each, and their bytes."""
ITEMS = "data points"

_POINTS = {
    walk.GAUGE: message_counts.NUMBER,
    walk.SUM: message_counts.NUMBER,
    walk.HISTOGRAM: message_counts.HISTOGRAM,
    walk.EXPONENTIAL: message_counts.EXPONENTIAL,
    walk.SUMMARY: message_counts.SUMMARY,
}
"""Kind of metric → kind of its points' messages."""

T = TypeVar("T")

_TIMESERIES = remote_write_pb2.RawWriteRequest.TIMESERIES_FIELD_NUMBER
_HISTOGRAM = remote_write_pb2.RawTimeSeries.HISTOGRAMS_FIELD_NUMBER
_NO_SETS = Sets(np.empty(0, np.uint8), np.empty((0, known_sets.ENTRY_COLUMNS), np.int64), np.empty(0, np.int32))
NO_TIME = "a data point has no time (timeUnixNano)"
_FAULTS = {
    point_walk.NO_VALUE: "a data point has no value",
    point_walk.NO_TIME: NO_TIME,
    point_walk.BUCKETS_DIFFER: "a histogram does not have one bucket more than explicit bounds",
}


@dataclass(slots=True)
class Prepared:
    """A survey with all label sets (`new` are those that were not known), the series written `by_hand`, and
    metadata."""

    survey: Survey
    new: Sets
    new_keys: NDArray[np.uint64]
    by_hand: list[bytes]
    refusals: Refusals
    metadata: list[FamilyMetadata] = field(default_factory=list)
    metadata_keys: list[int] = field(default_factory=list)
    exemplars_left_out: int = 0

    @property
    def bytes_total(self) -> int:
        """An upper bound of the bytes of `written`."""
        points = self.survey.points
        kernel_bytes = known_sets.measure(points, len(points), self.survey.known, self.new)
        return int(kernel_bytes) + sum(map(len, self.by_hand))

    def require_at_most(self, bytes_max: int) -> int:
        """`bytes_total`. Raises TooLarge if it is more than `bytes_max`."""
        size = self.bytes_total
        if size > bytes_max:
            raise TooLarge(
                f"the body has {len(self.survey.body)} bytes, and with its labels written out {size}; the limit is "
                f"{bytes_max} (TRIPTYCH_DECOMPRESSED_BYTES_MAX), send it in smaller ones"
            )
        return size

    def written(self) -> Frame:
        """The request of remote write 1.0."""
        points, survey = self.survey.points, self.survey
        out = np.empty(int(known_sets.measure(points, len(points), survey.known, self.new)), np.uint8)
        end = known_sets.write(survey.body, points, len(points), survey.metrics, survey.known, self.new, out)
        return b"".join((out[:end].data, *self.by_hand)) if self.by_hand else out[:end].data


def split(
    prepared: Prepared, request: Frame, shards: int, translation: Translation, references: SeriesReferences
) -> SplitRequest:
    """The request as remote write splits it, with the metadata. What remote write refuses is added to the refusals."""
    split_request = remote_write.split(request, shards, translation.limits, references)
    refusals = prepared.refusals
    for text in split_request.refused:
        refusals.leave_out(text)
    refusals.count += split_request.histograms_refused
    refusals.others += split_request.refused_count - len(split_request.refused) - split_request.histograms_refused
    split_request.metadata, split_request.metadata_keys = prepared.metadata, prepared.metadata_keys
    split_request.exemplars_left_out += prepared.exemplars_left_out
    return split_request


def prepare(survey: Survey, translation: Translation, bytes_max: int) -> Prepared:
    """Translate the points that are not known. Raises TooLarge above the limits of this module, and for more than
    `bytes_max` bytes of labels."""
    return _Preparation(survey, translation, bytes_max).prepared()


class _Preparation:
    def __init__(self, survey: Survey, translation: Translation, bytes_max: int) -> None:
        self._survey = survey
        self._rules = translation
        self._bytes_left = min(bytes_max, NEW_BYTES_MAX)
        self._attributes_left = ATTRIBUTES_MAX
        self._series = 0
        self._refusals = Refusals()
        self._targets: dict[int, Target | NotValid] = {}
        self._scopes: dict[int, dict[str, str] | NotValid] = {}
        self._metrics: dict[int, Metric | NotValid] = {}
        self._sets: list[LabelSets] = []
        self._keys: dict[int, int] = {}
        self._by_hand: list[bytes] = []

    def prepared(self) -> Prepared:
        survey = self._survey
        self._refuse_faults()
        for row, key in zip(
            survey.missing.tolist(), survey.points[survey.missing, point_walk.KEY].tolist(), strict=True
        ):
            self._find(row, key)
        new = self._new_sets()
        self._read_by_hand()
        left_out = survey.exemplars
        if survey.exemplars and self._rules.limits.exemplars:
            left_out = 0
            self._read_exemplars(new)
        keys = np.array(list(self._keys), np.int64).view(np.uint64)
        prepared = Prepared(survey, new, keys, self._by_hand, self._refusals, exemplars_left_out=left_out)
        self._read_metadata(prepared)
        return prepared

    def _refuse_faults(self) -> None:
        for state, text in _FAULTS.items():
            rows = self._survey.of_state(state)
            if len(rows):
                self._refusals.refuse(f"metric {self._shown(int(rows[0]))}: {text}", len(rows))

    def _shown(self, row: int) -> str:
        metric = self._survey.metrics[self._survey.points[row, point_walk.METRIC]]
        return repr(self._survey.message(metric, walk.NAME)[:200].decode(errors="replace"))

    # Label sets

    def _find(self, row: int, key: int) -> None:
        """Set the point's entry to that of its key; the entry is made if the key is new."""
        point = self._survey.points[row]
        number = self._keys.get(key)
        if number is None:
            try:
                sets = self._translated(point)
            except NotValid as error:
                if point[point_walk.METRIC] == walk.TARGET_INFO:
                    self._refusals.leave_out(f"target_info: {error}")
                else:
                    self._refusals.refuse(f"metric {self._shown(row)}: {error}")
                point[point_walk.STATE] = point_walk.REFUSED
                return
            number = self._keys[key] = len(self._sets)
            self._sets.append(sets)
            self._bytes_left -= len(sets[0])
            self._series += len(sets[1])
            self._require_room()
        point[point_walk.ENTRY] = -2 - number

    def _require_room(self) -> None:
        if self._bytes_left < 0:
            raise TooLarge(
                f"the labels of the request's new series have more than {NEW_BYTES_MAX} bytes, the limit (or "
                "TRIPTYCH_DECOMPRESSED_BYTES_MAX, if that is less); send it in smaller ones"
            )
        if self._series > NEW_SERIES_MAX:
            raise TooLarge(f"the request has more than {NEW_SERIES_MAX} new series, the limit; send it in smaller ones")

    def _translated(self, point: NDArray[np.int64]) -> LabelSets:
        """The label sets of a point. Raises NotValid."""
        if point[point_walk.METRIC] == walk.TARGET_INFO:
            info = self._target(int(point[point_walk.POINT_BEGIN])).info
            labels = label_sets.encoded(info, self._rules) if info else b""
            return labels, (len(labels),) if labels else ()
        metric = self._metric(int(point[point_walk.METRIC]))
        kind = int(self._survey.metrics[point[point_walk.METRIC], walk.KIND])
        message = self._point(point, kind)
        if kind == walk.HISTOGRAM:
            return label_sets.histogram_sets(metric, message, self._rules)
        return label_sets.number_sets(metric, message, self._rules)

    def _point(self, point: NDArray[np.int64], kind: int) -> Any:
        data = self._survey.message(point, point_walk.POINT_BEGIN)
        self._count_attributes(data, _POINTS[kind], "a data point")
        return label_sets.message(label_sets.POINTS[kind], data, "a data point")

    def _count_attributes(self, data: bytes, kind: int, what: str) -> None:
        """Raises TooLarge if the request has too many attributes with those of this message, NotValid."""
        counts, is_whole = message_counts.counted(data, kind)
        self._attributes_left -= counts[message_counts.ATTRIBUTES]
        if self._attributes_left < 0:
            raise TooLarge(
                f"the request has more than {ATTRIBUTES_MAX} attributes and elements of values in resources, scopes "
                "and new points, the limit; send it in smaller ones"
            )
        if not is_whole:
            raise NotValid(f"{what} is not valid: a field is not whole, or a value is nested too deeply")

    def _metric(self, row: int) -> Metric:
        """Raises NotValid."""
        return _once(self._metrics, row, self._read_metric)

    def _read_metric(self, row: int) -> Metric:
        metric = self._survey.metrics[row]
        scope = int(metric[walk.SCOPE])
        target = self._target(int(self._survey.scopes[scope, walk.SCOPE_RESOURCE]))
        scope_labels = _once(self._scopes, scope, self._read_scope)
        return label_sets.metric_of(*self._description(metric), target, scope_labels, self._rules)

    def _read_scope(self, row: int) -> dict[str, str]:
        scope = self._survey.scopes[row]
        data = self._survey.message(scope, walk.SCOPE_BEGIN)
        self._count_attributes(data, message_counts.SCOPE, "its scope")
        message = label_sets.scope_message(data)
        return label_sets.scope_labels(message, self._survey.text(scope, walk.URL_BEGIN), self._rules)

    def _description(self, metric: NDArray[np.int64]) -> tuple[str, str, int, int, bool]:
        """(name, unit, kind, temporality, whether it is monotonic) of a metric. Raises NotValid."""
        survey = self._survey
        kind, temporality, is_monotonic = metric[[walk.KIND, walk.TEMPORALITY, walk.MONOTONIC]].tolist()
        return survey.text(metric, walk.NAME), survey.text(metric, walk.UNIT), kind, temporality, bool(is_monotonic)

    def _target(self, row: int) -> Target:
        """Raises NotValid."""
        return _once(self._targets, row, self._read_target)

    def _read_target(self, row: int) -> Target:
        data = self._survey.message(self._survey.resources[row], walk.RESOURCE_BEGIN)
        self._count_attributes(data, message_counts.RESOURCE, "its resource")
        return label_sets.target_of(label_sets.resource_message(data), self._rules)

    def _new_sets(self) -> Sets:
        if not self._sets:
            return _NO_SETS
        entries = np.zeros((len(self._sets), known_sets.ENTRY_COLUMNS), np.int64)
        counts = np.array([len(sizes) for _, sizes in self._sets], np.int64)
        lengths = np.array([len(labels) for labels, _ in self._sets], np.int64)
        entries[:, END] = np.cumsum(lengths)
        entries[:, BEGIN] = entries[:, END] - lengths
        entries[:, SETS] = counts
        entries[:, SIZES] = np.cumsum(counts) - counts
        labels = np.frombuffer(bytearray().join(labels for labels, _ in self._sets), np.uint8)
        sizes = np.array([size for _, sizes in self._sets for size in sizes], np.int32)
        self._sets.clear()
        return Sets(labels, entries, sizes)

    # What kernels do not write

    def _read_by_hand(self) -> None:
        points = self._survey.points
        rows = self._survey.of_state(point_walk.BY_HAND)
        if not len(rows):
            return
        size = int((points[rows, point_walk.POINT_END] - points[rows, point_walk.POINT_BEGIN]).sum())
        if len(rows) > BY_HAND_MAX or size > BY_HAND_BYTES_MAX:
            raise TooLarge(
                f"the request has {len(rows)} exponential histograms and summaries of {size} bytes; the limits are "
                f"{BY_HAND_MAX} and {BY_HAND_BYTES_MAX}, send it in smaller ones"
            )
        for row in rows.tolist():
            try:
                for series in self._series_of(points[row]):
                    self._bytes_left -= len(series)
                    self._by_hand.append(series)
            except (NotValid, ValueError) as error:
                self._refusals.refuse(f"metric {self._shown(row)}: {error}")
            self._require_room()

    def _series_of(self, point: NDArray[np.int64]) -> Iterator[bytes]:
        metric = self._metric(int(point[point_walk.METRIC]))
        kind = int(self._survey.metrics[point[point_walk.METRIC], walk.KIND])
        message = self._point(point, kind)
        if message.time_unix_nano < 10**6:
            raise NotValid(NO_TIME)
        if kind != walk.SUMMARY:
            labels, _ = label_sets.number_sets(metric, message, self._rules)
            native_form = native.exponential if kind == walk.EXPONENTIAL else native.custom
            histogram = native_form(message, is_delta=metric.is_delta)
            traced = exemplars.fields(message, self._rules) if self._rules.limits.exemplars else b""
            yield _series(labels, traced + delimited_head(_HISTOGRAM, len(histogram)) + histogram)
            return
        time_ms, start_ms = message.time_unix_nano // 10**6, message.start_time_unix_nano // 10**6
        for labels, value in label_sets.summary_series(metric, message, self._rules):
            sample_value = STALE if message.flags & 1 else value
            sample = remote_write_pb2.Sample(value=sample_value, timestamp=time_ms, start_timestamp=start_ms)
            yield _series(labels, remote_write_pb2.RawTimeSeries(samples=[sample]).SerializeToString())

    def _read_exemplars(self, new: Sets) -> None:
        """Add a series without samples for the exemplars of each point. The series written by hand already have
        theirs."""
        points, limit = self._survey.points, self._rules.limits.exemplars
        if self._survey.exemplars > limit:
            raise TooLarge(f"the request has {self._survey.exemplars} exemplars; the limit is {limit} a request")
        for row in np.flatnonzero(points[:, point_walk.OWN_EXEMPLARS]).tolist():
            point = points[row]
            if point[point_walk.ENTRY] == -1:
                continue
            kind = int(self._survey.metrics[point[point_walk.METRIC], walk.KIND])
            try:
                message = self._point(point, kind)
            except NotValid as error:
                self._refusals.leave_out(f"exemplars of metric {self._shown(row)}: {error}")
                continue
            for index, fields in exemplars.by_series(message, kind, int(point[point_walk.HAS_SUM]), self._rules):
                self._by_hand.append(_series(_set_of(point, index, self._survey.known, new), fields))

    def _read_metadata(self, prepared: Prepared) -> None:
        survey = self._survey
        entries: dict[FamilyMetadata, None] = {}
        for row in survey.without_metadata.tolist():
            if len(entries) == metadata.METADATA_MAX:
                return
            metric = survey.metrics[row]
            try:
                name, unit, kind, temporality, is_monotonic = self._description(metric)
                texts = {"help": survey.text(metric, walk.HELP)}
            except NotValid:
                continue
            texts["name"], texts["unit"] = label_sets.family_of(
                name, unit, kind, temporality, is_monotonic, self._rules
            )
            metric_type = label_sets.type_of(kind, temporality, is_monotonic)
            entry = (
                metadata.checked(texts, metric_type, "metadata", self._refusals.leave_out) if texts["name"] else None
            )
            if entry is not None:
                entries[entry] = None
            prepared.metadata_keys.append(int(metric[walk.FAMILY_KEY]))
        prepared.metadata = list(entries)


def _once(cache: dict[int, T | NotValid], row: int, read: Callable[[int], T]) -> T:
    """The result of `read` for a row; each row is read only once. Raises NotValid if it is not valid."""
    result = cache.get(row)
    if result is None:
        try:
            result = read(row)
        except NotValid as error:
            result = error.with_traceback(None)
        cache[row] = result
    if isinstance(result, NotValid):
        raise NotValid(str(result))
    return result


def _series(labels: bytes, fields: bytes) -> bytes:
    """A TimeSeries of a WriteRequest."""
    return delimited_head(_TIMESERIES, len(labels) + len(fields)) + labels + fields


def _set_of(point: NDArray[np.int64], index: int, known: Sets, new: Sets) -> bytes:
    """One of the label sets of a point."""
    entry = int(point[point_walk.ENTRY])
    sets, row = (known, entry) if entry >= 0 else (new, -2 - entry)
    begin, _, first, _ = sets.entries[row].tolist()
    sizes = sets.sizes[first : first + index + 1].tolist()
    begin += sum(sizes[:-1])
    return sets.labels[begin : begin + sizes[-1]].tobytes()

"""Remote write: bodies before and after they are decompressed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import snappy
from hypothesis import strategies as st

from coordinator.series import decompression, remote_write, remote_write_v2
from coordinator.series.known_labels import KnownLabels
from coordinator.series.remote_write import Limits
from coordinator.series.split_request import SplitRequest
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import body, body_v2, request_v2
from proto import remote_write_pb2
from shared import labels
from shared.frames import exemplars as exemplar_frames
from shared.frames import samples as sample_frames
from shared.frames.exemplars import ExemplarColumns
from shared.frames.runs import Runs
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.hashing import hash64
from shared.histograms.batch import STALE_SUM_BITS
from shared.settings import Settings
from tests.fuzz import write_oracle, write_requests
from tests.fuzz.target import Target
from tests.unit import exemplar_requests

LIMITS = Limits.of(Settings())
SHARDS = 3
DECOMPRESSED_BYTES_MAX = 1 << 20
_KNOWN_LABELS_BYTES = 2048
_STALE = np.array([STALE_SUM_BITS]).view(np.float64).item()


def _split(data: bytes) -> None:
    """What is stored is whole, and as much as plain Python says."""
    split_request = remote_write.split(data, SHARDS, LIMITS)
    _require_as_said(split_request)
    with suppress(write_oracle.Unclear):
        _require_as_expected(split_request, write_oracle.expected(data, LIMITS))


def _require_as_said(split_request: SplitRequest) -> None:
    """What is split is what a worker reads, sample by sample (histograms too) and exemplar by exemplar, and series are
    canonical."""
    samples = exemplars = 0
    for frame in (frame for frames in split_request.parts.values() for frame in frames):
        if exemplar_frames.is_exemplars(frame):
            columns = exemplar_frames.parse(frame)
            exemplars += len(columns)
            _require_labels(columns)
            _require_series(columns)
        else:
            runs = sample_frames.parse(frame)
            samples += len(runs.times_ms)
            _require_series(runs)
            _require_times(runs)
    expected = split_request.samples + split_request.histograms
    assert samples == expected, f"the frames have {samples} samples and histograms, the split request says {expected}"
    assert exemplars == split_request.exemplars, (
        f"the frames have {exemplars} exemplars, the split request says {split_request.exemplars}"
    )


def _require_labels(columns: ExemplarColumns) -> None:
    """The labels of every exemplar are canonical, in UTF-8 and within their bound."""
    assert (columns.counts > 0).all()
    assert columns.counts.sum() == len(columns)
    for start, end in pairwise(columns.label_offsets.tolist()):
        encoded = columns.labels[start:end].tobytes()
        own_labels = labels.decode(encoded)
        assert labels.encode(own_labels) == encoded
        assert sum(len(name) + len(value) for name, value in own_labels) <= exemplar_frames.LABEL_CHARACTERS_MAX


def _require_series(runs: Runs) -> None:
    for begin, end, own in zip(runs.starts, runs.ends, runs.hashes, strict=True):
        text = runs.data[begin:end].tobytes()
        assert labels.encode(labels.decode(text)) == text, f"{text!r} is not canonical"
        assert hash64(text) == int(own), f"the hash of {text!r} is wrong"


def _require_times(runs: sample_frames.SampleColumns) -> None:
    """Times and start timestamps are within the bounds, and the layouts of histograms have boundaries."""
    for times_ms in (runs.times_ms, runs.start_timestamps_ms):
        if times_ms is not None:
            assert ((times_ms >= TIME_MS_MIN) & (times_ms <= TIME_MS_MAX)).all()
    if runs.histograms is not None:
        edges = runs.histograms.unpacked().layouts.edges
        assert (edges[:, 0] <= edges[:, 1]).all()


def _require_as_expected(split_request: SplitRequest, expected: write_oracle.Expected) -> None:
    stored = write_oracle.Expected(split_request.samples, split_request.histograms, split_request.histograms_refused)
    assert stored == expected, f"stored {stored}, expected {expected}; refused: {split_request.refused}"


def _request(data: bytes) -> None:
    _split(bytes(decompression.decompress(data, DECOMPRESSED_BYTES_MAX)))


def _split_v2(data: bytes) -> None:
    """The same for version 2.0. The labels take as many bytes as the survey says, and the request is split in the same
    way when its labels are known."""
    surveyed = remote_write_v2.survey(data, LIMITS, DECOMPRESSED_BYTES_MAX)
    split_request = remote_write_v2.split(surveyed, SHARDS, LIMITS)
    assert surveyed.bytes_total <= DECOMPRESSED_BYTES_MAX
    _require_as_said(split_request)
    with suppress(write_oracle.Unclear):
        _require_as_expected(split_request, write_oracle.expected_v2(data, LIMITS))
    known_labels = KnownLabels(_KNOWN_LABELS_BYTES)
    for _ in range(2):
        surveyed = remote_write_v2.survey(data, LIMITS, DECOMPRESSED_BYTES_MAX, known_labels=known_labels)
        _require_same_frames(remote_write_v2.split(surveyed, SHARDS, LIMITS), split_request)


def _require_same_frames(one: SplitRequest, other: SplitRequest) -> None:
    assert one.refused == other.refused
    frames = [{shard: [bytes(frame) for frame in each.parts[shard]] for shard in each.parts} for each in (one, other)]
    assert frames[0] == frames[1], "the frames of a request with known labels are others"


def bodies_v2() -> Iterator[bytes]:
    series = {"__name__": "up", "instance": "a:9100", "job": "node"}
    yield body_v2([(series, [(1_735_689_600_000, 1.0), (1_735_689_615_000, float("nan"))])])
    yield body_v2([({"__name__": "m", "le": str(i)}, [(i, 0.5)]) for i in range(4)])
    yield body_v2([([("job", "b"), ("__name__", "unsorted")], [(-1, 2.0)])])
    request = request_v2([(series, [(1, 1.0)]), ({"__name__": "m"}, [])])
    request.symbols.append("whether it is up")
    for entry in request.timeseries:
        entry.metadata.type, entry.metadata.help_ref = 3, len(request.symbols) - 1
        entry.exemplars.add(labels_refs=[1, 2], value=1, timestamp=2)
        entry.histograms.append(b"\x08\x01")
        entry.histograms.extend(_histograms())
    request.timeseries[0].samples[0].start_timestamp = 1
    yield request.SerializeToString()
    yield exemplar_requests.body_v2(_with_exemplars(series))


def _histograms() -> Iterator[bytes]:
    """One of each kind."""
    yield histogram_message(
        timestamp=5, start_timestamp=1, count_int=9, zero_count_int=2, zero_threshold=0.5, schema=3,
        positive_spans=[(-2, 2), (3, 1)], positive_deltas=[1, 1, -2], negative_spans=[(1, 1)], negative_deltas=[4],
    )  # fmt: skip
    yield histogram_message(
        timestamp=6, count_float=1.5, schema=-53, custom_values=[0.5, 1.0], positive_spans=[(1, 2)],
        positive_counts=[1.0, 0.5], is_packed=False,
    )  # fmt: skip
    yield histogram_message(timestamp=7, sum=_STALE)
    yield histogram_message(timestamp=8, schema=9)


def bodies() -> Iterator[bytes]:
    series = {"__name__": "up", "instance": "a:9100", "job": "node"}
    yield body([(series, [(1_735_689_600_000, 1.0), (1_735_689_615_000, float("nan"))])])
    yield body([({"__name__": "m", "le": str(i)}, [(i, 0.5)]) for i in range(4)])
    yield body([([("job", "b"), ("__name__", "unsorted")], [(-1, 2.0)])])
    request = remote_write_pb2.WriteRequest()
    request.ParseFromString(body([(series, [(1, 1.0)])]))
    request.metadata.add(type=1, metric_family_name="up", help="whether it is up", unit="")
    request.timeseries[0].exemplars.add(value=1, timestamp=2).labels.add(name="trace", value="1")
    request.timeseries[0].histograms.append(b"\x08\x01")
    request.timeseries[0].histograms.extend(_histograms())
    yield request.SerializeToString()
    yield exemplar_requests.body(_with_exemplars(series))


def _with_exemplars(series: dict[str, str]) -> list[exemplar_requests.Series]:
    labelled = [({"trace_id": "a", "span_id": "é"}, 0.5, 3), ({}, float("inf"), 3), ({"x": "y" * 130}, 1.0, 4)]
    return [(series, [(1, 1.0)], labelled), ([("a", "b"), ("__name__", "m")], [], labelled)]


def strategy(
    make: Callable[[Any], bytes] = body, make_with_exemplars: Callable[[Any], bytes] = exemplar_requests.body
) -> st.SearchStrategy[bytes]:
    texts = st.sampled_from(("", "__name__", "a", "b", "é", "\x00", "x" * 300)) | st.text(max_size=4)
    labels_of = st.lists(st.tuples(texts, texts), max_size=5)
    times = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 10)
    samples = st.lists(st.tuples(times, st.floats()), max_size=3)
    plain = st.lists(st.tuples(labels_of, samples), max_size=4).map(make)
    exemplars = st.lists(st.tuples(labels_of, st.floats(), times), max_size=3)
    with_exemplars = st.lists(st.tuples(labels_of, samples, exemplars), max_size=3).map(make_with_exemplars)
    pieces = st.lists(plain | with_exemplars | st.binary(max_size=12), max_size=3)
    return pieces.map(b"".join)


TARGETS = [
    Target("remote-write", _split, bodies, lambda: strategy() | write_requests.bodies()),
    Target(
        "remote-write-v2",
        _split_v2,
        bodies_v2,
        lambda: strategy(body_v2, exemplar_requests.body_v2) | write_requests.bodies_v2(),
    ),
    Target("remote-write-snappy", _request, lambda: [snappy.compress(data) for data in bodies()]),
]

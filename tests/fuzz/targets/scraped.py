"""What targets answer and what rules of relabelling say: text expositions, against the client library's readers;
protobuf expositions; the configuration file's jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from coordinator.prometheus_config import config_file
from coordinator.scraping import jobs, protobuf_families, targets
from coordinator.scraping.target_series import Labelling, Samples, TargetSeries
from proto import exposition_pb2
from shared import labels
from shared.errors import BadData, ConfigError
from shared.protobuf_fields import varint
from tests.fuzz.target import Target

TIME_MS = 1_700_000_000_000


def _twice(data: bytes, *, is_openmetrics: bool) -> tuple[TargetSeries, Samples]:
    """The second reading compares with the first one's lines, and finds the same."""
    series = TargetSeries(Labelling({}))
    first, second = (series.read_text(data, is_openmetrics=is_openmetrics, time_ms=TIME_MS) for _ in range(2))
    assert first.numbers.tolist() == second.numbers.tolist(), "the second scrape has other series"
    assert first.values.tobytes() == second.values.tobytes(), "the second scrape has other values"
    return series, second


def _text(data: bytes) -> None:
    series, samples = _twice(data, is_openmetrics=False)
    _compare(series, samples, data, is_openmetrics=False)


def _openmetrics(data: bytes) -> None:
    series, samples = _twice(data, is_openmetrics=True)
    _compare(series, samples, data, is_openmetrics=True)


def _compare(series: TargetSeries, samples: Samples, data: bytes, *, is_openmetrics: bool) -> None:
    """The same number of samples with the same values, where the client library reads it too. (Of some texts that are
    not right it makes other names.)"""
    try:
        families = (openmetrics_families if is_openmetrics else text_families)(data.decode())
        expected = [float(sample.value) for family in families for sample in family.samples]
    except Exception:
        return
    if len(expected) != len(samples.values) or b"\r" in data or not data.isascii():
        return
    for ours, theirs in zip(samples.values.tolist(), expected, strict=True):
        same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))
        assert same, f"a value is {ours}, the client library has {theirs}"
    for number in samples.numbers.tolist():
        assert labels.encode(labels.decode(series.labels[number])) == series.labels[number]


def _protobuf(data: bytes) -> None:
    protobuf_families.read(TargetSeries(Labelling({})), data, TIME_MS, with_histograms=True, keeps_classic=True)


def _jobs(data: bytes) -> None:
    for job in jobs.read(config_file.parse(data, Path("/nowhere/prometheus.yml"))):
        targets.targets_of(job, job.groups, 10)


def _texts() -> Iterator[bytes]:
    yield b'# HELP a b\n# TYPE a counter\na{b="c",d="e\\"f\\\\"} 1.5e3 1700000000000\na 2\n'
    yield b'{"a.b","c d"="e"} +Inf\nx{y="z",} NaN\n'


def _openmetrics_texts() -> Iterator[bytes]:
    yield b'# TYPE a counter\n# UNIT a s\na_total{b="c"} 5 1.5 # {d="e"} 0.5 1.25\na_created{b="c"} 1.5\n# EOF\n'
    yield b'# TYPE h histogram\nh_bucket{le="1"} 2\nh_bucket{le="+Inf"} 3\nh_count 3\nh_sum 4\n# EOF\n'


def _messages() -> Iterator[bytes]:
    bucket = exposition_pb2.Bucket(cumulative_count=2, upper_bound=0.5, exemplar=exposition_pb2.Exemplar(value=1))
    histogram = exposition_pb2.Histogram(
        sample_count=3,
        bucket=[bucket],
        positive_span=[exposition_pb2.BucketSpan(length=1)],
        positive_delta=[3],
        created_timestamp=exposition_pb2.Timestamp(seconds=5),
    )
    metrics = [exposition_pb2.Metric(label=[exposition_pb2.LabelPair(name="a", value="b")], histogram=histogram)]
    family = exposition_pb2.MetricFamily(name="h", type=exposition_pb2.HISTOGRAM, metric=metrics).SerializeToString()
    yield varint(len(family)) + family


def _configurations() -> Iterator[bytes]:
    yield (
        b"scrape_configs:\n- job_name: a\n  scrape_interval: 5s\n  params: {b: [c]}\n  static_configs:\n"
        b"  - targets: ['h:1']\n    labels: {d: e}\n  relabel_configs:\n  - source_labels: [__address__]\n"
        b"    regex: (.*):1\n    target_label: f\n    replacement: $1\n  - action: labelmap\n    regex: __(.*)\n"
    )


TARGETS = [
    Target("scraped-text", _text, _texts, refusals=(BadData,), tokens=("# TYPE ", "NaN", "+Inf", "{", "}", '"', "\\")),
    Target(
        "scraped-openmetrics",
        _openmetrics,
        _openmetrics_texts,
        refusals=(BadData,),
        tokens=("# EOF\n", " # {", "_created", "# TYPE ", " counter\n"),
    ),
    Target("scraped-protobuf", _protobuf, _messages, refusals=(BadData,)),
    Target(
        "scrape-jobs",
        _jobs,
        _configurations,
        refusals=(ConfigError,),
        tokens=("relabel_configs", "metric_relabel_configs", "hashmod", "modulus", "labelmap", "http_sd_configs"),
    ),
]

"""The protobuf exposition: floats, classic and native histograms, exemplars, and what is refused."""

from __future__ import annotations

import pytest

from coordinator.scraping import protobuf_families
from coordinator.scraping.target_series import Labelling, Samples, TargetSeries
from proto import exposition_pb2 as pb
from shared import labels
from shared.errors import BadData
from shared.protobuf_fields import varint

NOW = 1_700_000_000_123
LABELS = [pb.LabelPair(name="path", value="/")]
CREATED = pb.Timestamp(seconds=1_600_000_000, nanos=500_000_000)
EXEMPLAR = pb.Exemplar(label=[pb.LabelPair(name="trace_id", value="t")], value=0.5)
NATIVE = pb.Histogram(
    sample_count=6,
    sample_sum=2.5,
    schema=3,
    zero_threshold=0.001,
    zero_count=1,
    positive_span=[pb.BucketSpan(offset=1, length=2)],
    positive_delta=[2, 1],
    bucket=[pb.Bucket(cumulative_count=4, upper_bound=1.0, exemplar=EXEMPLAR)],
    created_timestamp=CREATED,
)


def read(series: TargetSeries, *families: pb.MetricFamily, native: bool = True, classic: bool = False) -> Samples:
    messages = [family.SerializeToString() for family in families]
    body = b"".join(varint(len(message)) + message for message in messages)
    samples = protobuf_families.read(series, body, NOW, with_histograms=native, keeps_classic=classic)
    series.accept()
    return samples


def values(series: TargetSeries, samples: Samples) -> dict[str, float]:
    found = {}
    for number, value in zip(samples.numbers.tolist(), samples.values.tolist(), strict=True):
        pairs = dict(labels.decode(series.labels[number]))
        found[" ".join([pairs.pop("__name__"), *(f"{k}={v}" for k, v in pairs.items())])] = value
    return found


FAMILIES = [
    pb.MetricFamily(
        name="requests_total",
        help="Requests.",
        type=pb.COUNTER,
        metric=[
            pb.Metric(label=LABELS, counter=pb.Counter(value=5, exemplar=EXEMPLAR, created_timestamp=CREATED)),
            pb.Metric(counter=pb.Counter(value=6), timestamp_ms=77),
        ],
    ),
    pb.MetricFamily(name="heat", type=pb.GAUGE, metric=[pb.Metric(gauge=pb.Value(value=1.5))]),
    pb.MetricFamily(name="what", type=pb.UNTYPED, metric=[pb.Metric(untyped=pb.Value(value=2.5))]),
    pb.MetricFamily(
        name="size",
        type=pb.SUMMARY,
        metric=[
            pb.Metric(summary=pb.Summary(sample_count=2, sample_sum=3, quantile=[pb.Quantile(quantile=0.5, value=1)]))
        ],
    ),
]


def test_floats_have_the_names_of_the_text_format() -> None:
    series = TargetSeries(Labelling({"job": "j"}))
    samples = read(series, *FAMILIES)
    assert values(series, samples) == {
        "requests_total job=j path=/": 5,
        "requests_total job=j": 6,
        "heat job=j": 1.5,
        "what job=j": 2.5,
        "size_count job=j": 2,
        "size_sum job=j": 3,
        "size job=j quantile=0.5": 1,
    }
    assert samples.times_ms[:3].tolist() == [NOW, 77, NOW] and samples.is_timed[:3].tolist() == [False, True, False]
    assert samples.starts_ms is not None and samples.starts_ms[:2].tolist() == [1_600_000_000_500, 0]
    assert [exemplar.labels for _, exemplar in samples.exemplars] == [(("trace_id", "t"),)]
    assert samples.families is not None and samples.families["requests_total"].help == "Requests."
    assert read(series, *FAMILIES).exemplars == []


@pytest.mark.parametrize(
    ("native", "classic", "rows", "histograms"), [(True, False, 0, 1), (True, True, 4, 1), (False, False, 4, 0)]
)
def test_histograms_are_native_classic_or_both(native: bool, classic: bool, rows: int, histograms: int) -> None:
    series = TargetSeries(Labelling({}))
    family = pb.MetricFamily(name="lat", type=pb.HISTOGRAM, metric=[pb.Metric(histogram=NATIVE)])
    samples = read(series, family, native=native, classic=classic)
    assert (len(samples.numbers), len(samples.histograms)) == (rows, histograms)
    if rows:
        assert values(series, samples) == {
            "lat_bucket le=1.0": 4,
            "lat_bucket le=+Inf": 6,
            "lat_count": 6,
            "lat_sum": 2.5,
        }
    for _, _, message in samples.histograms:
        stored = pb.StoredHistogram.FromString(message)
        assert (stored.count_int, stored.sum, stored.schema, stored.timestamp) == (6, 2.5, 3, NOW)
        assert list(stored.positive_deltas) == [2, 1] and stored.start_timestamp == 1_600_000_000_500


@pytest.mark.parametrize(
    "body", [b"\x05abc", b"\xff" * 10, b"\x02\xff\xff", varint(3) + b"\x0a\x01\xff", varint(2) + b"\x12\x00"]
)
def test_what_is_no_metric_family_is_refused(body: bytes) -> None:
    with pytest.raises(BadData, match="metric family"):
        protobuf_families.read(TargetSeries(Labelling({})), body, NOW, with_histograms=True, keeps_classic=False)

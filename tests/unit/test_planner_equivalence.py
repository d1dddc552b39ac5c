"""A query over shards answers what it answers over one source: the property the planner must never break."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.harness import local_queries
from loadtest.harness.memory_source import MemorySource, label_set
from shared.errors import TriptychError
from shared.histograms.references import references
from shared.promql.model import Annotations, Grid, Matrix, RangeVector, Scalar, String, Value
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from tests.sharded import Series, evaluate_sharded, split

MINUTE = 60_000
STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]


def data() -> Series:
    """Counters, gauges, classic histograms and info series, some ending in a staleness marker, one with NaN and Inf."""
    rng = np.random.default_rng(7)
    times = np.arange(0, 60 * MINUTE, 15_000, dtype=np.int64)
    series: dict[Any, Any] = {}

    def add(values: Any, stamps: Any = times, **labels: str) -> None:
        series[label_set({"__name__": labels.pop("name"), **labels})] = (stamps, np.asarray(values, dtype=float))

    for host in range(6):
        instance = f"h{host}:9100"
        for job in ("api", "db"):
            counter = np.cumsum(rng.integers(0, 9, len(times)))
            counter[100:] -= counter[100] * (host % 2)  # a reset in every second host
            add(counter, name="requests_total", job=job, instance=instance, host=f"h{host}", zone=f"z{host % 2}")
            jittered = times + rng.integers(0, 14_000, len(times))
            add(rng.normal(50, 20, len(times)), jittered, name="load", job=job, host=f"h{host}", zone=f"z{host % 2}")
        add(rng.integers(0, 3, len(times)), name="mode", host=f"h{host}")
        add(
            np.ones(len(times)),
            name="target_info",
            job="api",
            instance=instance,
            host=f"h{host}",
            version=f"v{host % 3}",
        )
    for bound in ("0.1", "1", "10", "+Inf"):
        for host in range(3):
            growth = np.arange(len(times)) * (1 + ["0.1", "1", "10", "+Inf"].index(bound)) * (host + 1.0)
            add(growth, name="latency_bucket", le=bound, host=f"h{host}")
    ended = rng.normal(0, 1, 100)
    ended[99] = STALE
    add(ended, times[:100], name="load", job="gone", host="h9", zone="z9")
    add([1, math.nan, math.inf, -math.inf, 0, -0.0], times[:6] + 30 * MINUTE, name="odd", host="h0")
    add([5, 6, 7], times[:3] + 30 * MINUTE, name="odd", host="h1")
    return series


SERIES = data()
UNION = MemorySource(SERIES)
SHARDS = {count: split(SERIES, count) for count in (1, 2, 3, 5)}
RANGE = Grid(20 * MINUTE, 50 * MINUTE, 2 * MINUTE + 500)
INSTANT = Grid(31 * MINUTE, 31 * MINUTE)


def numbers(value: Value) -> Any:
    """A value in a form that compares: {labels: {time: sample}}."""
    if isinstance(value, Scalar):
        return {(): dict(enumerate(value.values.tolist()))}
    if isinstance(value, String):
        return value.value
    rows: dict[Any, dict[int, float]] = {}
    for row in range(value.labels.size):
        labels = value.labels.labels(row)
        assert labels not in rows
        if isinstance(value, Matrix):
            steps = np.flatnonzero(value.present[row])
            rows[labels] = dict(zip(steps.tolist(), value.values[row, steps].tolist(), strict=True))
        else:
            assert isinstance(value, RangeVector)
            held = slice(*value.samples.offsets[row : row + 2].tolist())
            pairs = zip(value.samples.timestamps_ms[held].tolist(), value.samples.values[held].tolist(), strict=True)
            rows[labels] = dict(pairs)
    return rows


def assert_same(left: Any, right: Any) -> None:
    if isinstance(left, str):
        assert left == right
        return
    assert left.keys() == right.keys()
    for labels, samples in left.items():
        other = right[labels]
        assert samples.keys() == other.keys(), labels
        for at, sample in samples.items():
            same = math.isclose(sample, other[at], rel_tol=1e-12, abs_tol=1e-12) or (
                math.isnan(sample) and math.isnan(other[at])
            )
            assert same, (labels, at, sample, other[at])


def remarks(annotations: Annotations) -> set[Any]:
    return set(annotations.items)


def outcome(run: Any) -> Any:
    try:
        done = run()
    except TriptychError as error:
        return type(error).__name__, re.sub(r"\{.*?\}", "{…}", str(error))  # which series is named first may differ
    return done


def check(text: str, grid: Grid, shards: int) -> None:
    run = local_queries.instant if grid.steps == 1 else local_queries.range_query
    at = grid.start_ms if grid.steps == 1 else grid
    whole = outcome(lambda: run(text, UNION, at))
    parts = outcome(lambda: evaluate_sharded(text, SHARDS[shards], grid))
    if isinstance(whole, tuple) or isinstance(parts, tuple):
        assert whole == parts
        return
    assert_same(numbers(whole.value), numbers(parts.value))
    assert remarks(whole.annotations) == remarks(parts.annotations)


QUERIES = """
1 + 2
time()
vector(3)
load
load{job="api"} offset 1m
load{host=~"h[0-3]", zone!="z1"} * 2 > 90
-load
(load)
rate(requests_total[5m])
sum(rate(requests_total[5m]))
sum by (job) (rate(requests_total[5m]))
sum without (host, zone) (load)
avg by (zone) (load)
min(load) - max(load)
count by (job, zone) (load > 50)
stddev by (job) (load)
stdvar(load)
group by (zone) (load)
topk(3, load)
bottomk by (job) (2, rate(requests_total[3m]))
topk(scalar(count(mode)) - 4, load)
limitk(4, load)
limit_ratio(0.4, load)
limit_ratio(-0.6, load)
quantile by (job) (0.9, rate(requests_total[5m]))
quantile(1.5, load)
quantile(scalar(min(mode)), load)
count_values("value", mode)
count_values by (host) ("value", mode)
sum(rate(requests_total{job="api"}[5m])) / sum(rate(requests_total[5m]))
rate(requests_total[5m]) / on (host, job, zone) load
load * on (host) group_left (version) target_info
mode and on (host) load
mode or load
load unless on (host) mode == 1
load or vector(0)
sum(load) > bool 100
load > bool 50
load > time() / 40
time() - timestamp(load)
timestamp(load)
timestamp(load + 0)
abs(load - 50)
clamp(load, 10, 60)
clamp_max(load, scalar(avg(load)))
round(load, 5)
histogram_quantile(0.9, rate(latency_bucket[5m]))
histogram_quantile(0.9, sum by (le) (rate(latency_bucket[5m])))
histogram_quantile(0.5, latency_bucket)
label_replace(load, "short", "$1", "host", "h(.*)")
label_replace(load, "host", "same", "host", ".*")
sum by (short) (label_replace(load, "short", "$1", "host", "h(.*)"))
sum(label_replace(load, "host", "same", "host", ".*"))
label_join(load, "both", "-", "job", "host")
sum by (both) (label_join(load, "both", "-", "job", "host"))
topk(2, label_replace(label_replace(load, "a", "$1", "host", "(.*)"), "b", "x", "", ""))
count(-(label_replace(load, "host", "", "", "")))
avg by (short) (label_replace(rate(requests_total[5m]), "short", "$1", "host", "h(.*)")) > 0
sum(label_replace(load{job="gone"} or mode, "host", "one", "", ""))
count(label_replace(load{host="h1"}, "job", "", "", ""))
sort(load)
sort_desc(sum by (job) (load))
sort_by_label(load, "host")
absent(load)
absent(load{job="none"})
absent(nothing{job="none", host=~".+"})
absent(sum(load > 1000))
absent(load > 1000)
absent_over_time(load[5m])
absent_over_time(nothing{job="x"}[5m])
absent_over_time(load{job="gone"}[3m])
absent_over_time((load > 95)[2m:30s])
absent_over_time(nothing[5m:1m])
scalar(load)
scalar(sum(load))
scalar(load{job="api", host="h1"})
info(load)
info(sum by (job, instance) (rate(requests_total[5m])))
info(requests_total offset 3m, {version="v1"})
max_over_time(info(requests_total)[5m:1m])
info(rate(requests_total[5m]), {version=~"v.*"})
max_over_time(load[5m:30s])
sum(max_over_time(load[5m:30s]))
max_over_time(sum(load)[5m:30s])
rate(sum(requests_total)[10m:1m])
avg_over_time((rate(requests_total[2m]) * 2)[10m:1m])
sum_over_time((load / on (host, job, zone) requests_total)[5m:1m])
min_over_time(sum by (job) (rate(requests_total[2m]))[10m:1m] offset 3m)
max_over_time(max_over_time(sum(load)[3m:1m])[10m:2m])
max_over_time(sum(load @ 1200)[5m:1m])
max_over_time(sum(load)[5m:1m] @ 2000)
max_over_time(sum(load)[5m:1m] @ end())
sum(load @ start()) + sum(load)
sum(load @ 1500)
load @ end()
quantile_over_time(0.5, load[5m])
quantile_over_time(scalar(avg(mode)) / 2, load[5m])
quantile_over_time(scalar(avg(mode)) / 2, load[5m:30s])
quantile_over_time(scalar(avg(mode)) / 2, load[5m] offset 2m)
predict_linear(load[10m], scalar(count(mode)))
predict_linear(load[10m] @ 1800, scalar(count(mode)))
sum_over_time(vector(1)[5m:1m])
sum_over_time(vector(time())[5m:1m])
sum(vector(1))
load[2m]
load[2m:30s]
sum(load)[4m:1m]
(load > 50)[2m:30s]
odd
sum(odd)
avg(odd)
max(odd)
rate({__name__=~"requests_total|load"}[5m])
sum by (__name__) ({__name__=~"requests_total|load"})
-{__name__=~"mode|target_info"}
{__name__=~"mode|load"} + 1
sum({__name__=~".+"})
rate(load[5m])
irate(requests_total[5m]) + rate(load[5m]) + rate(load[5m])
sum(load) / sum(load)
nothing
sum(nothing)
count(nothing) or vector(0)
minute()
hour(load)
day_of_week()
sum(load) + on () group_left () load
load + load
load{job="api"} + ignoring (job) load{job="db"}
mode + load
increase(requests_total[step()])
sum_over_time(load[range() / 10 + 1m])
double_exponential_smoothing(load[5m], 0.5, 0.3)
histogram_fraction(0, 1, rate(latency_bucket[5m]))
deriv(load[5m]) > 0 or deriv(load[5m]) < 0
max_of(scalar(sum(load)), 3)
rate(requests_total[5m] anchored)
sum(increase(requests_total[5m] smoothed))
""".strip().splitlines()


@pytest.mark.parametrize("text", QUERIES)
@pytest.mark.parametrize("grid", [INSTANT, RANGE], ids=["instant", "range"])
def test_shards_do_not_show(text: str, grid: Grid) -> None:
    for shards in SHARDS:
        check(text, grid, shards)


def test_string_needs_no_shard() -> None:
    check('"text"', INSTANT, 3)


VECTORS = st.sampled_from(
    ["load", 'load{job="api"}', "requests_total", "mode", "odd", "nothing", '{__name__=~"load|mode"}', "load offset 4m"]
)
RANGES = st.sampled_from(["5m", "47s", "10m"])
OVER_RANGES = st.sampled_from(["rate", "increase", "max_over_time", "avg_over_time", "changes", "last_over_time"])
REDUCTIONS = st.sampled_from(["sum", "avg", "min", "max", "count", "stddev", "group"])
GROUPINGS = st.sampled_from(["", " by (job)", " by (host, zone)", " without (host)", " by (__name__)"])
SCALARS = st.sampled_from(["0", "2", "0.5", "time()", "-1"])
OPERATORS = st.sampled_from(["+", "-", "*", "/", ">", "<=", "== bool", "!="])
SET_OPERATORS = st.sampled_from(["and", "or", "unless", "and on (host)", "or on (job)", "unless ignoring (zone)"])


def _expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}{}({})".format, REDUCTIONS, GROUPINGS, inner),
        st.builds("topk{}({}, {})".format, GROUPINGS, st.integers(0, 5), inner),
        st.builds("quantile{}(0.7, {})".format, GROUPINGS, inner),
        st.builds("({}) {} {}".format, inner, OPERATORS, SCALARS),
        st.builds("{} {} ({})".format, SCALARS, OPERATORS, inner),
        st.builds("({}) {} ({})".format, inner, OPERATORS, inner),
        st.builds("({}) {} ({})".format, inner, SET_OPERATORS, inner),
        st.builds("{}(({})[{}:40s])".format, OVER_RANGES, inner, RANGES),
        st.builds("abs({})".format, inner),
        st.builds("-({})".format, inner),
        st.builds("absent({})".format, inner),
        st.builds("vector(scalar({}))".format, inner),
        st.builds("sort({})".format, inner),
        st.builds('label_replace({}, "zone", "$1", "host", "h(.)")'.format, inner),
        st.builds("{} @ 1500".format, VECTORS.filter(lambda text: "offset" not in text)),
    )


EXPRESSIONS = st.recursive(
    st.one_of(VECTORS, st.builds("{}({}[{}])".format, OVER_RANGES, VECTORS.filter(lambda t: " " not in t), RANGES)),
    _expressions,
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, st.sampled_from([INSTANT, RANGE]), st.sampled_from([2, 3, 5]))
def test_no_expression_tells_shards_from_one_source(text: str, grid: Grid, shards: int) -> None:
    check(text, grid, shards)


@pytest.mark.parametrize("text", ["2 * sort_desc(load)", "sort_desc(load) * 2", "0 < sort_desc(load)", "-sort(load)"])
def test_a_sort_on_either_side_of_an_operator_orders_the_answer(text: str) -> None:
    for shards in (1, 3, 5):
        value = (
            evaluate_sharded(text, SHARDS[shards], INSTANT).value
            if shards > 1
            else local_queries.instant(text, UNION, INSTANT.start_ms).value
        )
        assert isinstance(value, Matrix)
        found = value.values[:, 0].tolist()
        assert len(found) > 5
        assert found == sorted(found, reverse=True)
        assert found != sorted(found)


def test_a_sort_on_the_many_side_of_an_operator_orders_the_answer() -> None:
    for shards in (3, 5):
        value = evaluate_sharded("count(load) + on () group_right () sort_desc(load)", SHARDS[shards], INSTANT).value
        assert isinstance(value, Matrix)
        found = value.values[:, 0].tolist()
        assert len(found) > 5 and found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    "text",
    ["mode or topk(1, load)", "sum by (host) (mode) or topk(1, load)", "topk(2, load) or min_over_time(mode[5m])"],
)
def test_series_beside_those_that_have_an_order_come_in_one_that_shards_do_not_change(text: str) -> None:
    def order(shards: int) -> list[Any]:
        value = evaluate_sharded(text, SHARDS[shards], INSTANT).value
        assert isinstance(value, Matrix)
        return [value.labels.labels(row) for row in range(value.labels.size)]

    assert len(order(1)) > 6
    assert order(1) == order(2) == order(3) == order(5)


def test_a_remark_of_merging_is_made_for_each_place_of_an_aggregation() -> None:
    series: Series = {
        label_set({"__name__": "mix", "i": "1"}): [[0], [1.0]],
        label_set({"__name__": "mix", "i": "2"}): [[0], references(np.array([0]))],
    }
    sources = split(series, 2, batch_of([NativeHistogram(count=1.0, positive={0: 1.0})]))
    annotations = evaluate_sharded("sum(mix) + sum(mix) + quantile(2, mix) + quantile(2, mix)", sources, Grid(0, 0))

    offsets: dict[str, list[int | None]] = {}
    for _, remark, offset in annotations.annotations.items:
        offsets.setdefault(remark, []).append(offset)
    assert offsets == {
        "PromQL warning: encountered a mix of histograms and floats for aggregation": [4, 15],
        "PromQL warning: quantile value should be between 0 and 1, got 2": [31, 50],
        "PromQL info: ignored histogram in quantile aggregation": [34, 53],
    }

"""What the query endpoints refuse over HTTP: malformed parameters, queries that cannot be executed, and limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.harness.cluster import Cluster
from tests.cluster.query_requests import (
    STEP_S,
    T0_S,
    Series,
    data,
    instant,
    over_range,
    refused,
    requests_and_levels,
    write,
)
from tests.forked_cluster import ForkedCluster


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with `requests_and_levels`."""
    write(cluster, requests_and_levels())
    yield cluster


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "'query'"),
        ({"query": "up", "time": "yesterday"}, "'time' is 'yesterday'"),
        ({"query": "up", "timeout": "soon"}, "'timeout' is 'soon'"),
        ({"query": "up", "timeout": "0s"}, "'timeout'"),
        ({"query": "up", "limit": "-1"}, "'limit'"),
        ({"query": "up", "lookback_delta": "-5m"}, "'lookback_delta'"),
        ({"query": "up", "partial_response": "maybe"}, "'partial_response'"),
        ({"query": "up", "explain": "maybe"}, "'explain' is 'maybe'; it must be true or false"),
        ({"query": "sum("}, "1:4: parse error"),
        ({"query": "up{a=~"}, "parse error"),
        ({"query": 'up{a=~"("}'}, "("),
    ],
)
def test_malformed_instant_query_is_400(cluster: Cluster, parameters: dict[str, str], text: str) -> None:
    assert text in refused(cluster.get("/api/v1/query", **parameters), 400)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"start": ""}, "'start'"),
        ({"end": ""}, "'end'"),
        ({"step": ""}, "'step'"),
        ({"end": "0"}, "end timestamp must not be before start time"),
        ({"step": "0"}, "zero or negative query resolution step widths are not accepted. Try a positive integer"),
        ({"step": "-1s"}, "step"),
        ({"step": "10ms", "end": "1000"}, "exceeded maximum resolution of 11,000 points per timeseries"),
    ],
)
def test_malformed_range_query_is_400(cluster: Cluster, changed: dict[str, str], text: str) -> None:
    parameters = {"query": "up", "start": "100", "end": "200", "step": "10", **changed}
    assert text in refused(cluster.get("/api/v1/query_range", **parameters), 400)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("up[5m]", 'invalid expression type "range vector" for range query, must be Scalar or'),
        ("up[5m:1m]", 'invalid expression type "range vector" for range query, must be Scalar or'),
        ('"x"', 'invalid expression type "string" for range query'),
    ],
)
def test_range_query_of_another_type_than_scalar_or_vector_is_422(cluster: Cluster, query: str, text: str) -> None:
    parameters = {"query": query, "start": "100", "end": "200", "step": "10"}
    assert text in refused(cluster.get("/api/v1/query_range", **parameters), 422)
    assert cluster.get("/api/v1/query", query=query).status == 200


def test_eleven_thousand_steps_are_allowed(cluster: Cluster) -> None:
    (series,) = data(over_range(cluster, "time()", 0, 11_000, "1"))["result"]
    assert len(series["values"]) == 11_001
    assert series["values"][-1] == [11_000, "11000"]


@pytest.mark.parametrize(
    "query", ["no_such_function(up)", "rate(up)", "sum(1)", '"a" + 1', "label_replace(up, 1)", "up + on (job) foo(1)"]
)
def test_what_cannot_be_executed_is_422(cluster: Cluster, query: str) -> None:
    assert "parse error" in refused(cluster.get("/api/v1/query", query=query), 422)


def test_duplicates_across_shards_are_refused(filled: Cluster) -> None:
    query = 'label_replace(q_requests_total, "host", "same", "host", ".*")'
    answer = filled.get("/api/v1/query", query=query, time=str(T0_S))
    assert "vector cannot contain metrics with the same labelset" in refused(answer, 422)
    answer = filled.get("/api/v1/query", query="q_requests_total + on (job) q_requests_total", time=str(T0_S))
    assert refused(answer, 422)


def test_elapsed_timeout_is_503(filled: Cluster) -> None:
    query = "sum_over_time(sum(rate(q_requests_total[10m]))[10m:1ms]) + " * 20 + "1"
    started = time.monotonic()
    answer = filled.get("/api/v1/query", query=query, time=str(T0_S + 600), timeout="20ms")
    assert refused(answer, 503, "unavailable") == "query timed out in expression evaluation"
    assert time.monotonic() - started < 10
    assert len(instant(filled, "q_requests_total")["result"]) == 20


@pytest.mark.parametrize(
    "query",
    [
        "sum_over_time(sum(q_requests_total)[100y:1ms])",
        "topk(1e18, q_requests_total)",
        "(" * 500 + "1" + ")" * 500,
        "q_requests_total{host=~'" + "|".join(f"x{i}" for i in range(10_000)) + "'}",
        "1" + "+1" * 3000,
    ],
)
def test_hostile_queries_leave_the_server_well(filled: Cluster, query: str) -> None:
    answer = filled.post_form("/api/v1/query", query=query, time=str(T0_S + 600), timeout="20s")
    assert answer.status in (200, 400, 422, 503), answer.body
    assert len(instant(filled, "q_requests_total")["result"]) == 20


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """100 series `m` of 20 samples, and as many `long` of 300; a query may hold 1,000 samples at a time."""
    with _running(tmp_path_factory.mktemp("small"), "TRIPTYCH_QUERY_SAMPLES_MAX", "1000") as running:
        write(running, long_series())
        yield running


def long_series() -> Series:
    """100 series `long` of 300 samples."""
    return {
        (("__name__", "long"), ("i", str(i)), ("job", str(i % 4))): [
            ((T0_S + k * STEP_S) * 1000, float(k * (i + 1) % 977)) for k in range(300)
        ]
        for i in range(100)
    }


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """100 series `m` of 20 samples; a query may hold 16 MB, a quarter of it in each worker."""
    with _running(tmp_path_factory.mktemp("narrow"), "TRIPTYCH_QUERY_BYTES_MAX", "16MB") as running:
        yield running


@contextmanager
def _running(directory: Path, setting: str, value: str) -> Iterator[Cluster]:
    running = ForkedCluster(directory, shards=2, workers=2, settings={setting: value}).start()
    try:
        samples = [((T0_S + k) * 1000, float(k)) for k in range(20)]
        write(running, {(("__name__", "m"), ("i", str(i))): samples for i in range(100)})
        yield running
    finally:
        running.stop()


def test_more_samples_at_a_time_than_the_limit_are_422(small: Cluster) -> None:
    """All samples of a range vector come to the coordinator. What they are added up to is small."""
    error = refused(small.get("/api/v1/query", query="m[1m]", time=str(T0_S + 20)), 422)
    assert error.startswith("query processing would load too many samples into memory in query execution: ")
    assert "the limit is 1000 (TRIPTYCH_QUERY_SAMPLES_MAX); ask for fewer series, a shorter range" in error
    assert small.get("/api/v1/query", query='m{i=~"1."}[1m]', time=str(T0_S + 20)).status == 200
    assert small.get("/api/v1/query", query="sum(sum_over_time(m[1m]))", time=str(T0_S + 20)).status == 200
    # Values of 100 series at 20 steps.
    assert "too many samples" in refused(over_range(small, "rate(long[5m])", T0_S, T0_S + 1900, "100"), 422)


@pytest.mark.parametrize(
    "query",
    [
        "sum by (job) (rate(long[5m]))",
        "max by (job) (max_over_time(long[10m])) - min by (job) (long)",
        "topk(1, long)",
        "count(sum_over_time(rate(long[1m])[5m:1m]) > 1)",
    ],
)
def test_a_query_over_many_times_the_limit_is_answered_exactly(small: Cluster, filled: Cluster, query: str) -> None:
    write(filled, long_series())
    grid = (query, T0_S, T0_S + 299 * STEP_S, "300")
    limited = data(over_range(small, *grid, stats="all"))
    assert limited["result"] == data(over_range(filled, *grid))["result"] != []
    samples = limited["stats"]["samples"]
    assert samples["totalQueryableSamples"] > 20 * 1000
    assert 0 < samples["peakSamples"] <= 1000
    assert all(0 < shard["peakSamples"] <= 1000 for shard in limited["stats"]["shards"])
    assert sum(shard["samples"] for shard in limited["stats"]["shards"]) == samples["totalQueryableSamples"]


@pytest.mark.parametrize("query", ["m * 2 > 1", "sum by (i) (m) + sum by (i) (m)"], ids=["selector", "aggregation"])
def test_memory_over_the_bound_is_422_and_names_the_setting(narrow: Cluster, query: str) -> None:
    error = refused(over_range(narrow, query, T0_S, T0_S + 10_000, "1"), 422)
    assert "more memory than" in error and "TRIPTYCH_QUERY_BYTES_MAX" in error
    assert len(data(over_range(narrow, query, T0_S + 1, T0_S + 10, "1"))["result"]) == 100

"""Queries made to hurt: each gets an error of the right class in time, and the process lives on with bounded memory."""

from __future__ import annotations

import time

import psutil
import pytest

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

NOW = 1_700_000_000
WITHIN_S = 20.0
GROWTH_BYTES_MAX = 600 << 20


@pytest.fixture(scope="module", autouse=True)
def some_series(cluster: Cluster) -> None:
    series = [
        (
            {"__name__": "limits_total", "job": f"j{n % 3}", "instance": str(n)},
            [(NOW * 1000 - age, 1.0) for age in (0, 15_000)],
        )
        for n in range(30)
    ]
    answer = cluster.request("POST", "/api/v1/write", compressed(series), HEADERS)
    assert answer.status == 204, answer.body


def memory(cluster: Cluster) -> int:
    roots = [psutil.Process(process.pid) for process in (cluster.coordinator, cluster.supervisor)]
    family = [*roots, *(child for root in roots for child in root.children(recursive=True))]
    return sum(process.memory_info().rss for process in family)


HOSTILE = {
    "500 levels of nesting": ("(" * 500 + "1" + ")" * 500, {400, 422}),
    "500 nested calls": ("abs(" * 500 + "limits_total" + ")" * 500, {400, 422}),
    "100,000 unary operators": ("-" * 100_000 + "1", {400, 422}),
    "a sum of 20,000 terms": ("+".join(["limits_total"] * 20_000), {400, 422}),
    "a query of 1 MB": ('limits_total{job="' + "x" * 1_000_000 + '"}', {200, 400, 422}),
    "a regex of 10,000 alternations": (
        'count(limits_total{job=~"' + "|".join(f"j{n}" for n in range(10_000)) + '"})',
        {200, 400, 422},
    ),
    "a regex RE2 refuses": ('limits_total{job=~"(?=x)"}', {400}),
    "a regex that backtracks elsewhere": ('limits_total{job=~"(a*)*(a*)*b"}', {200}),
    "a subquery of 3e10 steps": ("max_over_time(limits_total[1y:1ms])", {422}),
    "topk of 1e18": ("topk(1e18, limits_total)", {200, 422}),
    "topk of more than an integer holds": ("topk(1e19, limits_total)", {422}),
    "an empty query": ("", {400}),
    "a selector that matches everything": ("{}", {400}),
    "an unknown function": ("no_such_function(limits_total)", {422}),
    "a type error": ("rate(limits_total)", {422}),
    "an invalid label name": ('label_replace(limits_total, "a\\xff", "x", "job", ".*")', {400, 422}),
    "duplicates after name-dropping": ('label_replace(limits_total, "instance", "", "", "") * 1', {422}),
    "many-to-many matching": ("limits_total * on (job) limits_total", {422}),
    "a control character": ("limits_total\x00", {400}),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_query_is_refused_in_time(cluster: Cluster, name: str) -> None:
    query, statuses = HOSTILE[name]
    before = memory(cluster)
    started = time.monotonic()
    answer = cluster.post_form("/api/v1/query", query=query, time=str(NOW))
    assert time.monotonic() - started < WITHIN_S
    assert answer.status in statuses, answer.body[:500]
    if answer.status != 200:
        body = answer.json()
        assert body["status"] == "error"
        assert body["errorType"] == "bad_data"
        assert 0 < len(body["error"]) < 5_000
    assert memory(cluster) - before < GROWTH_BYTES_MAX
    assert (
        cluster.get("/api/v1/query", query="count(limits_total)", time=str(NOW)).json()["data"]["result"][0]["value"][1]
        == "30"
    )


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"start": "0", "end": "1e12", "step": "0.001"}, 400),
        ({"start": str(NOW), "end": str(NOW - 1), "step": "1"}, 400),
        ({"start": str(NOW), "end": str(NOW + 10), "step": "0"}, 400),
        ({"start": str(NOW), "end": str(NOW + 10), "step": "-1"}, 400),
        ({"start": str(NOW), "end": str(NOW + 10), "step": "soon"}, 400),
        ({"start": "yesterday", "end": str(NOW + 10), "step": "1"}, 400),
        ({"start": str(NOW), "step": "1"}, 400),
        ({"start": "NaN", "end": "Inf", "step": "1"}, 400),
        ({"start": str(NOW), "end": str(NOW + 11_001), "step": "1"}, 400),
        ({"start": str(NOW), "end": str(NOW + 11_000), "step": "1"}, 200),
    ],
)
def test_range_parameters_are_checked(cluster: Cluster, parameters: dict[str, str], status: int) -> None:
    answer = cluster.get("/api/v1/query_range", query="limits_total", **parameters)
    assert answer.status == status, answer.body[:500]
    if status == 400:
        assert answer.json()["errorType"] == "bad_data"


def test_a_timeout_that_elapses_is_503(cluster: Cluster) -> None:
    query = "sum(stddev_over_time(limits_total[20d:1s])) + sum(quantile_over_time(0.5, limits_total[20d:1s]))"
    answer = cluster.get("/api/v1/query", query=query, time=str(NOW), timeout="1ms")
    assert answer.status == 503, answer.body[:300]
    assert answer.json()["errorType"] == "unavailable"
    assert "timed out" in answer.json()["error"]

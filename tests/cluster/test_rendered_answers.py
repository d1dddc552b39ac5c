"""Answers whose series the workers rendered, over HTTP: the bytes of those made in the coordinator, and every promise
of other answers. A `limit` above the number of series has the coordinator make the answer and changes nothing else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, compressed

T0_S = 1_700_000_000
SERIES = 400
SAMPLES = 41
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
RANGE = {"start": str(T0_S), "end": str(T0_S + 600), "step": "5"}


def write(cluster: Cluster) -> None:
    times = [(T0_S + 15 * k) * 1000 for k in range(SAMPLES)]
    series = [
        (
            {"__name__": "r_total", "i": f"{i * 7919 % 10007:05d}", "odd": '"\\é\n'[i % 4]},
            [(t, t % 977 / 7 * i) for t in times],
        )
        for i in range(SERIES)
    ]
    series += [
        ({"__name__": "r_other", "i": f"{i * 7919 % 10007:05d}", "odd": '"\\é\n'[i % 4]}, [(times[0], 1.0)])
        for i in range(3)
    ]
    answer = cluster.request("POST", "/api/v1/write", compressed(series), HEADERS)
    assert answer.status == 204, answer.body


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    write(cluster)
    yield cluster
    gone = cluster.post_form("/api/v1/admin/tsdb/delete_series", match='{__name__=~"r_.*"}')
    assert gone.status == 204


def ask(cluster: Cluster, query: str, *, is_range: bool = True, packed: bool = False, **more: str) -> Response:
    times = RANGE if is_range else {"time": str(T0_S + 300)}
    body = urlencode({"query": query, **times, **more}).encode()
    headers = {**FORM, **({"Accept-Encoding": "gzip"} if packed else {})}
    return cluster.request("POST", "/api/v1/query_range" if is_range else "/api/v1/query", body, headers)


@pytest.mark.parametrize("query", ["r_total", "rate(r_total[5m])", "r_total * 2", "abs(r_total) > 100"])
@pytest.mark.parametrize("is_range", [True, False])
def test_the_bytes_do_not_tell_who_made_them(filled: Cluster, query: str, is_range: bool) -> None:
    answer = ask(filled, query, is_range=is_range)
    assert answer.status == 200
    assert answer.body == ask(filled, query, is_range=is_range, limit="100000").body
    shown = [tuple(sorted(series["metric"].items())) for series in answer.json()["data"]["result"]]
    assert len(shown) >= SERIES * 3 // 4
    assert shown == sorted(shown)
    packed = ask(filled, query, is_range=is_range, packed=True)
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == answer.body


def test_range_vectors_too(filled: Cluster) -> None:
    answer = ask(filled, "r_total[5m]", is_range=False)
    assert answer.json()["data"]["resultType"] == "matrix"
    assert answer.body == ask(filled, "r_total[5m]", is_range=False, limit="100000").body


def test_stats_explain_and_remarks_stand_beside_it(filled: Cluster) -> None:
    rendered, arrays = (
        ask(filled, "rate(r_total[5m])", stats="all", explain="true", **more).json()
        for more in ({}, {"limit": "100000"})
    )
    for body, form in ((rendered, "text"), (arrays, "matrix")):
        shards = body["data"]["stats"]["shards"]
        assert [entry["form"] for shard in shards for entry in shard["subqueries"]] == [form, form]
        samples = body["data"]["stats"]["samples"]
        assert samples["totalQueryableSamples"] == SERIES * SAMPLES
        assert samples["peakSamples"] == SERIES * 121  # the coordinator has the values of both workers
        assert all(0 < shard["peakSamples"] < samples["peakSamples"] for shard in shards)
        assert sum(entry["samples"] for entry in body["data"]["stats"]["shards"]) == samples["totalQueryableSamples"]
    assert rendered["data"]["explain"]["plan"] == arrays["data"]["explain"]["plan"]
    assert rendered["data"]["explain"]["plan"]["where"] == "shards"
    bodies = [
        ask(filled, 'rate({__name__="r_total", i!="x"}[5m])', **more).json() for more in ({}, {"limit": "100000"})
    ]
    assert bodies[0] == bodies[1]


def test_series_that_lose_their_name_and_become_equal_are_refused(filled: Cluster) -> None:
    answers = [ask(filled, '{__name__=~"r_.*"} * 1', **more) for more in ({}, {"limit": "100000"})]
    assert [answer.status for answer in answers] == [422, 422]
    assert answers[0].json() == answers[1].json()
    assert "vector cannot contain metrics with the same labelset" in answers[0].json()["error"]


def test_the_limit_of_samples_holds(new_cluster) -> None:
    cluster = new_cluster(shards=2, workers=2, settings={"TRIPTYCH_QUERY_SAMPLES_MAX": "60000"}).start()
    write(cluster)
    # Each worker holds less than the limit; the coordinator, which has the values of both, more.
    for more in ({}, {"limit": "100000"}):
        answer = ask(cluster, "r_total", step="3", **more)
        assert answer.status == 422
        assert f"too many samples into memory in query execution: {SERIES * 201} at a time" in answer.json()["error"]
    assert ask(cluster, "r_total", step="15").status == 200


def test_a_worker_that_is_down_is_told_and_the_rest_is_there(new_cluster) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    write(cluster)
    whole = ask(cluster, "r_total").json()["data"]["result"]
    with cluster.without_worker():
        for is_range in (True, False):
            answer = ask(cluster, "r_total", is_range=is_range)
            body = answer.json()
            assert len(body["warnings"]) == 2
            assert all("is missing from this answer" in warning for warning in body["warnings"])
            assert answer.body == ask(cluster, "r_total", is_range=is_range, limit="100000").body
            packed = ask(cluster, "r_total", is_range=is_range, packed=True)
            assert gzip.decompress(packed.body) == answer.body
            assert ask(cluster, "r_total", is_range=is_range, partial_response="false").status == 503
        there = ask(cluster, "r_total").json()["data"]["result"]
        assert SERIES / 4 < len(there) < SERIES * 3 / 4
        kept = {json.dumps(series["metric"]) for series in there}
        assert there == [series for series in whole if json.dumps(series["metric"]) in kept]

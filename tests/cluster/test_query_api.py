"""The query endpoints over HTTP: parameters, shapes, remarks, and what a missing shard changes."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from loadtest.harness.cluster import Cluster
from tests.cluster.query_requests import T0_S, data, instant, over_range, refused, requests_and_levels, write


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with `requests_and_levels`."""
    write(cluster, requests_and_levels())
    yield cluster


def test_instant_vector(filled: Cluster) -> None:
    assert instant(filled, 'q_requests_total{host="h03"}') == {
        "resultType": "vector",
        "result": [
            {
                "metric": {"__name__": "q_requests_total", "host": "h03", "job": "api"},
                "value": [T0_S + 600, "160"],
            }
        ],
    }


def test_instant_answers_are_sorted_whatever_the_shards(filled: Cluster) -> None:
    hosts = [series["metric"]["host"] for series in instant(filled, "q_requests_total")["result"]]
    assert hosts == [f"h{i:02d}" for i in range(20)]


def test_sorting_functions_keep_their_order(filled: Cluster) -> None:
    hosts = [series["metric"]["host"] for series in instant(filled, "sort_desc(q_requests_total)")["result"]]
    assert hosts == [f"h{i:02d}" for i in reversed(range(20))]
    hosts = [series["metric"]["host"] for series in instant(filled, "topk(3, q_requests_total)")["result"]]
    assert hosts == ["h19", "h18", "h17"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("1 / 3", {"resultType": "scalar", "result": [T0_S + 600, "0.3333333333333333"]}),
        ('"text"', {"resultType": "string", "result": [T0_S + 600, "text"]}),
        ("sum(q_requests_total)", {"resultType": "vector", "result": [{"metric": {}, "value": [T0_S + 600, "8400"]}]}),
        (
            "sum by (job) (rate(q_requests_total[5m]))",
            {
                "resultType": "vector",
                "result": [
                    {"metric": {"job": "api"}, "value": [T0_S + 600, "7.333333333333333"]},
                    {"metric": {"job": "db"}, "value": [T0_S + 600, "6.666666666666667"]},
                ],
            },
        ),
        (
            'q_requests_total{host="h00"}[30s]',
            {
                "resultType": "matrix",
                "result": [
                    {
                        "metric": {"__name__": "q_requests_total", "host": "h00", "job": "db"},
                        "values": [[T0_S + 585, "39"], [T0_S + 600, "40"]],
                    }
                ],
            },
        ),
        ("nothing_here", {"resultType": "vector", "result": []}),
    ],
)
def test_result_types(filled: Cluster, query: str, expected: Any) -> None:
    answer = filled.get("/api/v1/query", query=query, time=str(T0_S + 600))
    got = data(answer)
    assert answer.json().keys() == {"status", "data"}  # neither warnings nor infos
    assert got["resultType"] == expected["resultType"]
    if got["resultType"] == "vector":
        for series, other in zip(got["result"], expected["result"], strict=True):
            assert series["metric"] == other["metric"]
            assert float(series["value"][1]) == pytest.approx(float(other["value"][1]), rel=1e-12)
    else:
        assert got == expected


def test_post_form_is_as_good_as_get(filled: Cluster) -> None:
    query = "sum(q_requests_total) or " + " or ".join(f"nothing{i}" for i in range(50))
    answer = filled.post_form("/api/v1/query", query=query, time=str(T0_S + 600))
    assert data(answer)["result"][0]["value"] == [T0_S + 600, "8400"]
    answer = filled.post_form("/api/v1/query_range", query="1", start=str(T0_S), end=str(T0_S), step="1")
    assert data(answer)["result"] == [{"metric": {}, "values": [[T0_S, "1"]]}]


def test_times_may_be_rfc_3339_and_durations_text(filled: Cluster) -> None:
    answer = filled.get(
        "/api/v1/query_range",
        query="sum(q_requests_total)",
        start="2023-11-14T22:13:20Z",
        end="2023-11-14T23:23:20.000+01:00",
        step="5m",
    )
    assert data(answer)["result"] == [
        {"metric": {}, "values": [[T0_S, "0"], [T0_S + 300, "4200"], [T0_S + 600, "8400"]]}
    ]


def test_time_defaults_to_now(filled: Cluster) -> None:
    before = time.time()
    shown = float(data(filled.get("/api/v1/query", query="time()"))["result"][1])
    assert before - 1 <= shown <= time.time() + 1


def test_odd_numbers_are_strings_like_prometheus(filled: Cluster) -> None:
    result = instant(filled, "q_odd", T0_S + 1)["result"]
    assert [series["value"][1] for series in result] == ["NaN", "1e-07"]
    assert [s["value"][1] for s in instant(filled, "1 / (q_odd < 0.1) - Inf", T0_S + 1)["result"]] == ["-Inf"]


def test_range_query_is_a_matrix_sorted_by_label_set(filled: Cluster) -> None:
    answer = data(over_range(filled, "sort_desc(q_requests_total)"))
    assert answer["resultType"] == "matrix"
    assert [series["metric"]["host"] for series in answer["result"]] == [f"h{i:02d}" for i in range(20)]
    assert answer["result"][4]["values"] == [[T0_S + 60 * k, str(20 * k)] for k in range(11)]


def test_steps_without_a_sample_have_no_pair(filled: Cluster) -> None:
    (series,) = data(over_range(filled, 'q_odd{kind="tiny"}', T0_S, T0_S + 600, "150"))["result"]
    assert series["values"] == [[T0_S + 150, "1e-07"], [T0_S + 300, "1e-07"]]


def test_subquery_over_a_merged_aggregation(filled: Cluster) -> None:
    (series,) = instant(filled, "max_over_time(sum(rate(q_requests_total[1m]))[5m:1m])")["result"]
    assert float(series["value"][1]) == pytest.approx(14.0)


def test_series_of_two_workers_that_labels_make_equal_are_merged(cluster: Cluster) -> None:
    """Each has one sample, a minute after that of the one before: no two at the same time."""
    write(
        cluster,
        {(("__name__", "q_apart"), ("n", str(n))): [((T0_S + 60 * n) * 1000, float(n))] for n in range(24)},
    )
    text = 'sum(label_replace(q_apart, "n", "", "", ""))'
    times = {"start": str(T0_S + 1), "end": str(T0_S + 60 * 23 + 1), "step": "60s"}
    answer = cluster.get("/api/v1/query_range", query=text, lookback_delta="10s", **times)
    assert answer.status == 200, answer.body
    [series] = answer.json()["data"]["result"]
    assert [float(value) for _, value in series["values"]] == [float(n) for n in range(24)]


def test_warnings_and_infos_have_positions_in_the_query(filled: Cluster) -> None:
    query = "1 +\n  sum(rate(q_level[5m])) + quantile(2, q_requests_total)"
    body = filled.get("/api/v1/query", query=query, time=str(T0_S + 600)).json()
    assert len(body["infos"]) == 1
    assert body["infos"][0].startswith("PromQL info: metric might not be a counter")
    assert body["infos"][0].endswith('"q_level" (2:12)')
    assert body["warnings"] == ["PromQL warning: quantile value should be between 0 and 1, got 2 (2:37)"]


def test_limit_truncates_with_a_warning(filled: Cluster) -> None:
    body = filled.get("/api/v1/query", query="q_requests_total", time=str(T0_S), limit="3").json()
    assert [series["metric"]["host"] for series in body["data"]["result"]] == ["h00", "h01", "h02"]
    assert body["warnings"] == ["results truncated due to limit"]
    assert "warnings" not in filled.get("/api/v1/query", query="q_requests_total", time=str(T0_S), limit="20").json()


def test_lookback_is_five_minutes_unless_asked_otherwise(filled: Cluster) -> None:
    assert len(instant(filled, "q_requests_total", T0_S + 899)["result"]) == 20
    assert instant(filled, "q_requests_total", T0_S + 900)["result"] == []
    assert len(instant(filled, "q_requests_total", T0_S + 900, lookback_delta="6m")["result"]) == 20
    assert instant(filled, "q_requests_total", T0_S + 700, lookback_delta="30")["result"] == []


def test_stats_tell_samples_and_times_of_every_worker(filled: Cluster) -> None:
    stats = instant(filled, "sum(rate(q_requests_total[5m]))", stats="all")["stats"]
    assert stats["samples"]["totalQueryableSamples"] == 20 * 20
    assert stats["samples"]["peakSamples"] > 0
    assert set(stats["timings"]) >= {
        "evalTotalTime",
        "resultSortTime",
        "queryPreparationTime",
        "innerEvalTime",
        "execQueueTime",
        "execTotalTime",
    }
    assert sorted(shard for entry in stats["shards"] for shard in entry["shards"]) == [0, 1, 2, 3]
    assert sum(entry["samples"] for entry in stats["shards"]) == 400
    assert "stats" not in instant(filled, "1")


def test_explain_shows_the_plan_and_what_was_sent(filled: Cluster) -> None:
    query = "sum(rate(q_requests_total[5m])) / scalar(count(q_requests_total)) > 0"
    plan = instant(filled, query, explain="true")["explain"]["plan"]
    assert (plan["node"], plan["where"], plan["text"]) == ("Binary", "coordinator", query)
    division = plan["children"][0]
    sent = division["children"][0]
    assert sent["where"] == "shards"
    assert sent["query"] == "sum(rate(q_requests_total[5m]))"
    assert sent["merge"] == "partial sum merged"
    assert sent["grid"]["start"] == T0_S + 600
    assert division["children"][1]["children"][0]["query"] == "count(q_requests_total)"


def test_explain_measures_nodes_workers_and_shards(filled: Cluster) -> None:
    query = "sum(rate(q_requests_total[5m])) / 2"
    data = instant(filled, query, explain="true", stats="all")
    plan, measured = data["explain"]["plan"], {entry["id"]: entry for entry in data["explain"]["measured"]}
    sent = plan["children"][0]
    assert query[slice(*sent["span"])] == sent["text"] == "sum(rate(q_requests_total[5m]))"
    leaf = measured[sent["id"]]
    shards = {one["shard"]: one for worker in leaf["workers"] for one in worker["shards"]}
    assert set(shards) == {0, 1, 2, 3}
    assert sum(one["samples"] for one in shards.values()) == leaf["samples"] == 20 * 20
    assert sum(one["series"] for one in shards.values()) == leaf["series"] == 20
    assert all(one["readTime"] > 0 for one in shards.values() if one["samples"])
    assert leaf["estimate"]["samples"] == instant(filled, query, explain="true")["explain"]["estimate"]["samples"]
    assert 0 < measured[plan["id"]]["time"] < data["stats"]["timings"]["mergeTime"]
    assert {"planTime", "queueTime", "renderTime"} <= set(data["stats"]["timings"])


def test_format_and_parse(cluster: Cluster) -> None:
    assert data(cluster.get("/api/v1/format_query", query="sum(a)by(x)")) == "sum by (x) (a)"
    tree = data(cluster.post_form("/api/v1/parse_query", query="a{b='c'}"))
    assert tree["type"] == "vectorSelector"
    assert "parse error" in refused(cluster.get("/api/v1/format_query", query="sum("), 400)
    assert refused(cluster.get("/api/v1/parse_query"), 400)


def test_large_answers_are_streamed_and_compressed_if_asked(filled: Cluster) -> None:
    query = " or ".join(f'label_replace(q_requests_total, "copy", "{i}", "", "")' for i in range(30))
    parameters = {"query": query, "start": str(T0_S), "end": str(T0_S + 600), "step": "5"}
    plain = filled.post_form("/api/v1/query_range", **parameters)
    assert len(data(plain)["result"]) == 600
    assert "content-encoding" not in plain.headers
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept-Encoding": "gzip"}
    packed = filled.request("POST", "/api/v1/query_range", urlencode(parameters).encode(), headers)
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 4
    assert json.loads(gzip.decompress(packed.body)) == plain.json()


def test_long_lists_and_the_metrics_are_compressed_if_asked(cluster: Cluster) -> None:
    write(cluster, {(("__name__", "q_listed"), ("i", f"{i:05}")): [(T0_S * 1000, 1.0)] for i in range(3000)})
    selector = f"match[]=q_listed&start={T0_S}&end={T0_S}"
    for path in (f"/api/v1/series?{selector}", f"/api/v1/label/i/values?{selector}", "/metrics"):
        plain = cluster.request("GET", path)
        assert "content-encoding" not in plain.headers
        packed = cluster.request("GET", path, headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip", path
        assert len(packed.body) < len(plain.body) / 2
        assert path == "/metrics" or gzip.decompress(packed.body) == plain.body
    short = cluster.request("GET", "/api/v1/labels?match[]=q_none", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in short.headers


def test_missing_shards_are_warned_of_or_refused(new_cluster: Any) -> None:
    running = new_cluster(shards=4, workers=2).start()
    series = {(("__name__", "m"), ("i", str(i))): [(T0_S * 1000, 1.0)] for i in range(40)}
    write(running, series)
    assert instant(running, "count(m)", T0_S)["result"][0]["value"][1] == "40"
    running.kill_worker("worker-0")
    seen = None
    for _ in range(200):
        answer = running.get("/api/v1/query", query="count(m)", time=str(T0_S))
        if answer.status == 200 and answer.json().get("warnings"):
            seen = answer.json()
            break
    assert seen is not None, "the restart was never seen"
    assert len(seen["warnings"]) == 2
    assert all("shard" in text for text in seen["warnings"])
    assert 0 < int(seen["data"]["result"][0]["value"][1]) < 40
    running.wait_ready()
    assert instant(running, "count(m)", T0_S)["result"][0]["value"][1] == "40"


def test_without_any_worker_queries_are_503_but_constants_are_not(new_cluster: Any) -> None:
    running = new_cluster(shards=2, workers=1).start()
    assert running.supervisor is not None
    running.supervisor.terminate()
    running.supervisor.wait(10)
    give_up = time.monotonic() + 10
    while running.get("/-/ready").status == 200 and time.monotonic() < give_up:
        time.sleep(0.1)
    error = refused(running.get("/api/v1/query", query="up"), 503, "unavailable")
    assert "shard 0" in error and "shard 1" in error
    assert data(running.get("/api/v1/query", query="1"))["resultType"] == "scalar"

"""Status endpoints over HTTP: cardinality, settings, rates, and what Prometheus's clients read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, compressed

SHARDS = 4
PODS = 300
TSDB = "/api/v1/status/tsdb"


def written(cluster: Cluster, series: list[dict[str, str]]) -> None:
    now_ms = int(time.time() * 1000)
    body = compressed([(labels, [(now_ms, 1.0)]) for labels in series])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204


@pytest.fixture(scope="module")
def counted(cluster: Cluster) -> Cluster:
    """The cluster with metrics of these tests alone among others."""
    pods = [{"__name__": "card_pods", "pod": f"pod-{i}", "zone": f"z{i % 3}"} for i in range(PODS)]
    jobs = [{"__name__": "card_jobs", "job": f"j{i}", "zone": "z0"} for i in range(40)]
    written(cluster, [*pods, *jobs])
    return cluster


def asked(cluster: Cluster, *fields: tuple[str, str]) -> Response:
    return cluster.get(f"{TSDB}?{urlencode(fields)}")


def data(cluster: Cluster, *fields: tuple[str, str]) -> dict[str, Any]:
    answer = asked(cluster, *fields)
    assert answer.status == 200, answer.body
    assert "warnings" not in answer.json()
    return answer.json()["data"]


def by_name(entries: list[dict[str, Any]]) -> dict[str, int]:
    return {entry["name"]: entry["value"] for entry in entries}


ALL = ("match[]", '{__name__=~"card_.*"}')


def test_cardinality_has_the_members_of_prometheus(counted: Cluster) -> None:
    told = data(counted)
    assert {"numSeries", "numLabelPairs", "chunkCount", "minTime", "maxTime"} == set(told["headStats"])
    for name in (
        "seriesCountByMetricName",
        "labelValueCountByLabelName",
        "memoryInBytesByLabelName",
        "seriesCountByLabelValuePair",
    ):
        assert 0 < len(told[name]) <= 10
        assert all(isinstance(entry["name"], str) and isinstance(entry["value"], int) for entry in told[name])
    assert told["totalSeries"] == told["headStats"]["numSeries"] >= PODS + 40
    assert told["headStats"]["maxTime"] >= time.time() * 1000 - 600_000


def test_only_series_that_match_count(counted: Cluster) -> None:
    told = data(counted, ALL, ("focusLabel", "zone"))
    assert told["totalSeries"] == told["headStats"]["numSeries"] == PODS + 40
    assert by_name(told["seriesCountByMetricName"]) == {"card_pods": PODS, "card_jobs": 40}
    assert by_name(told["labelValueCountByLabelName"]) == {"__name__": 2, "pod": PODS, "job": 40, "zone": 3}
    assert by_name(told["seriesCountByLabelName"]) == {"__name__": 340, "zone": 340, "pod": PODS, "job": 40}
    assert by_name(told["seriesCountByFocusLabelValue"]) == {"z0": 140, "z1": 100, "z2": 100}
    assert by_name(told["seriesCountByLabelValuePair"])["__name__=card_pods"] == PODS
    assert by_name(told["memoryInBytesByLabelName"])["zone"] == 2 * 340
    assert told["headStats"]["numLabelPairs"] == 2 + PODS + 40 + 3
    assert told["totalLabelValuePairs"] == 3 * 340
    both = data(counted, ("match[]", "card_jobs"), ("match[]", 'card_pods{zone="z1"}'))
    assert by_name(both["seriesCountByMetricName"]) == {"card_pods": 100, "card_jobs": 40}
    assert data(counted, ("match[]", "card_none"))["seriesCountByMetricName"] == []


def test_new_series_are_growth(counted: Cluster) -> None:
    told = data(counted, ALL)
    assert by_name(told["seriesGrowthByMetricName"]) == {"card_pods": PODS, "card_jobs": 40}
    assert told["growth"] == PODS + 40
    assert [entry["growth"] for entry in told["seriesCountByMetricName"]] == [PODS, 40]
    assert told["growthSince"] <= time.time()


def test_the_limit_has_two_names(counted: Cluster) -> None:
    assert len(data(counted, ALL, ("limit", "1"))["seriesCountByLabelValuePair"]) == 1
    assert len(data(counted, ALL, ("topN", "2"))["seriesCountByLabelValuePair"]) == 2
    assert len(data(counted, ALL, ("topN", "2"), ("limit", "10000"))["labelValueCountByLabelName"]) == 4


def test_a_range_of_times_counts_series_with_samples_in_it(counted: Cluster) -> None:
    now = time.time()
    within = (("start", str(now - 3600)), ("end", str(now + 60)))
    assert data(counted, ALL, *within)["totalSeries"] == PODS + 40
    assert data(counted, ALL, ("start", "0"), ("end", "1000"))["totalSeries"] == 0


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("limit", "0", "from 1 to 10000"),
        ("limit", "10001", "from 1 to 10000"),
        ("topN", "-1", "whole number"),
        ("topN", "ten", "whole number"),
        ("match[]", "{", "match[]"),
        ("match[]", "{}", "match[]"),
        ("match[]", 'm{a=~"("}', "match[]"),
        ("match[]", "\0", "match[]"),
        ("start", "yesterday", "'start'"),
    ],
)
def test_odd_parameters_are_refused_with_what_would_be_right(
    counted: Cluster, name: str, value: str, right: str
) -> None:
    answer = asked(counted, (name, value))
    assert answer.status == 400, answer.body
    assert answer.json()["errorType"] == "bad_data"
    assert right in answer.json()["error"]


def test_a_focus_that_no_series_has_is_empty(counted: Cluster) -> None:
    for focus in ("", "none", "x" * 5000, "é\0"):
        assert data(counted, ALL, ("focusLabel", focus))["seriesCountByFocusLabelValue"] == []


def test_too_costly_matchers_are_refused(counted: Cluster) -> None:
    pattern = "a{1,1000}" * 3
    assert asked(counted, *[("match[]", f'm{{a=~"{pattern}"}}')] * 8).status in (400, 422)


@pytest.fixture
def halved(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """A cluster one of whose two workers is dead and stays dead."""
    cluster = new_cluster(shards=SHARDS, workers=2).start()
    written(cluster, [{"__name__": "m", "i": str(i)} for i in range(100)])
    with cluster.without_worker():
        yield cluster


def test_what_a_missing_worker_has_is_told(halved: Cluster) -> None:
    answer = asked(halved, ("match[]", "m"))
    told = answer.json()
    assert 0 < told["data"]["totalSeries"] < 100
    assert len(told["warnings"]) == SHARDS // 2
    assert all("is missing from this answer" in text for text in told["warnings"])
    assert asked(halved, ("partial_response", "false")).status == 503
    replayed = halved.get("/api/v1/status/walreplay").json()["data"]
    assert (replayed["min"], replayed["max"], replayed["current"]) == (0, SHARDS, SHARDS // 2)
    assert replayed["state"] != "done"


def test_settings_are_shown_with_what_they_mean(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=1, workers=1, settings={"TRIPTYCH_TRACES": "http://me:hush@127.0.0.1:9/?key=hush"})
    cluster.start()
    settings = cluster.get("/api/v1/status/settings")
    rows = {row["name"]: row for row in settings.json()["data"]["settings"]}
    assert rows["shards"]["value"] == "1"
    assert (rows["shards"]["default"], rows["shards"]["isDefault"]) == ("0", False)
    assert rows["traces"]["value"] == "http://***@127.0.0.1:9/?***"
    flags = cluster.get("/api/v1/status/flags")
    assert flags.json()["data"] == {name: row["value"] for name, row in rows.items()}
    config = cluster.get("/api/v1/status/config")
    yaml = dict(line.split(": ", 1) for line in config.json()["data"]["yaml"].splitlines())
    assert (yaml["query_timeout"], yaml["shards"], yaml["admin_api"]) == ('"2m"', "1", "true")
    assert not any("hush" in answer.body.decode() for answer in (settings, flags, config))


def test_the_number_of_shards_that_a_directory_has_is_the_default_where_none_is_set(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster(shards=0, workers=1)
    cluster.start()
    rows = {row["name"]: row for row in cluster.get("/api/v1/status/settings").json()["data"]["settings"]}
    assert (rows["shards"]["value"], rows["shards"]["isDefault"]) == ("4", True)
    cluster.stop()
    cluster.workers = 3
    cluster.start()
    assert len(cluster.get("/api/v1/cluster").json()["data"]["shards"]) == 4


def test_runtime_information_is_that_of_prometheus(cluster: Cluster) -> None:
    told = cluster.get("/api/v1/status/runtimeinfo").json()["data"]
    started, now = (datetime.fromisoformat(told[name]) for name in ("startTime", "serverTime"))
    assert 0 <= (now - started).total_seconds() < 3600
    assert told["reloadConfigSuccess"] is True
    assert told["corruptionCount"] == 0
    assert told["storageRetention"] == "unlimited"
    assert cluster.get("/api/v1/status/walreplay").json()["data"] == {
        "min": 0,
        "max": SHARDS,
        "current": SHARDS,
        "state": "done",
    }


def test_shards_tell_memory_and_rates(counted: Cluster) -> None:
    give_up = time.monotonic() + 10
    while True:
        shards = counted.get("/api/v1/cluster").json()["data"]["shards"]
        if all(set(shard["rates"]) == {"samples", "records", "vectors"} for shard in shards):
            break
        assert time.monotonic() < give_up, shards
        time.sleep(0.2)
    assert all(shard["memoryBytes"] > 0 for shard in shards)
    while not sum(shard["rates"]["samples"] for shard in shards):
        written(counted, [{"__name__": "card_rate", "i": str(i)} for i in range(50)])
        assert time.monotonic() < give_up, shards
        time.sleep(0.5)
        shards = counted.get("/api/v1/cluster").json()["data"]["shards"]

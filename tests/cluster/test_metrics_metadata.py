"""Metadata of metric families: remote write brings it, /api/v1/metadata has it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import snappy

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, body
from proto import remote_write_pb2
from tests.cluster.prometheus import needs_prometheus, prometheus, scraping

COUNTER, GAUGE = 1, 2
COUNTED = "triptych_samples_in"
"""Prometheus asks for OpenMetrics, in which the name of a counter's family lacks `_total`."""
LIMITED = ["results truncated due to limit"]
_numbers = itertools.count()


def say(cluster: Cluster, *entries: tuple[str, int, str, str], series: bytes = b"") -> Response:
    request = remote_write_pb2.WriteRequest()
    for name, kind, text, unit in entries:
        request.metadata.add(metric_family_name=name, type=kind, help=text, unit=unit)
    raw = snappy.compress(request.SerializeToString() + series)
    return cluster.request("POST", "/api/v1/write", raw, HEADERS)


@pytest.fixture
def name() -> str:
    return f"said_{next(_numbers)}"


def test_metadata_is_listed_by_family(cluster: Cluster, name: str) -> None:
    entries = [(f"{name}_{i}", GAUGE, f"help {i}", "seconds") for i in range(20)]
    assert say(cluster, *entries, (f"{name}_0", COUNTER, "another", "")).status == 204
    answer = cluster.get("/api/v1/metadata").json()
    assert answer["status"] == "success"
    assert answer["data"][f"{name}_7"] == [{"type": "gauge", "help": "help 7", "unit": "seconds"}]
    assert list(answer["data"]) == sorted(answer["data"])
    one = cluster.get("/api/v1/metadata", metric=f"{name}_0").json()
    assert one == {
        "status": "success",
        "data": {
            f"{name}_0": [
                {"type": "gauge", "help": "help 0", "unit": "seconds"},
                {"type": "counter", "help": "another", "unit": ""},
            ]
        },
    }
    assert cluster.get("/api/v1/metadata", metric="nobody").json() == {"status": "success", "data": {}}


def test_limits_cut_and_say_so(cluster: Cluster, name: str) -> None:
    said = [(f"{name}_{i}", GAUGE, text, "") for i in range(5) for text in ("one", "two")]
    assert say(cluster, *said).status == 204
    cut = cluster.get("/api/v1/metadata", limit="2").json()
    assert len(cut["data"]) == 2
    assert cut["warnings"] == LIMITED
    cut = cluster.get("/api/v1/metadata", metric=f"{name}_3", limit_per_metric="1").json()
    assert cut["data"] == {f"{name}_3": [{"type": "gauge", "help": "one", "unit": ""}]}
    assert cut["warnings"] == LIMITED
    whole = cluster.get("/api/v1/metadata", limit="0", limit_per_metric="0").json()
    assert len(whole["data"][f"{name}_4"]) == 2
    assert "warnings" not in whole
    for parameter in ("limit", "limit_per_metric"):
        bad = cluster.get("/api/v1/metadata", **{parameter: "-1"})
        assert bad.status == 400
        assert f"'{parameter}' is '-1'" in bad.json()["error"]


def test_bad_metadata_is_named_and_the_rest_kept(cluster: Cluster, name: str) -> None:
    series = body([({"__name__": name}, [(1_700_000_000_000, 1.0)])])
    answer = say(cluster, (name, COUNTER, "kept", ""), ("", COUNTER, "of nobody", ""), series=series)
    assert answer.status == 400
    assert "1 samples stored" in answer.json()["error"]
    assert "metadata 1 of metric family '': it has no metric_family_name" in answer.json()["error"]
    assert cluster.get("/api/v1/metadata", metric=name).json()["data"][name][0]["help"] == "kept"


def test_metadata_survives_the_death_of_every_process_and_is_partial_without_a_worker(new_cluster) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    assert say(cluster, *[(f"m{i}", COUNTER, "h", "") for i in range(40)]).status == 204
    cluster.kill()
    cluster.start()
    assert len(cluster.get("/api/v1/metadata").json()["data"]) == 40
    with cluster.without_worker():
        answer = cluster.get("/api/v1/metadata").json()
        assert 0 < len(answer["data"]) < 40
        assert len(answer["warnings"]) == 2
        assert cluster.get("/api/v1/metadata", partial_response="false").status == 503


@needs_prometheus
def test_prometheus_sends_its_metadata(new_cluster, tmp_path: Path) -> None:
    cluster = new_cluster(shards=2, workers=1).start()
    every_second = {"send": True, "send_interval": "1s"}
    config = scraping(
        f"127.0.0.1:{cluster.port}", {"url": f"{cluster.url}/api/v1/write", "metadata_config": every_second}
    )
    with prometheus(tmp_path, config) as sender:
        found = sender.wait_for(lambda: cluster.get("/api/v1/metadata", metric=COUNTED).json()["data"])
    assert [entry["type"] for entry in found[COUNTED]] == ["counter"]

"""Scraping: a node_exporter by this service and by Prometheus, targets that come, go and fail, and what is told of
them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from loadtest.harness.cluster import Cluster
from loadtest.harness.ports import free_port
from loadtest.harness.processes import end
from tests.cluster.prometheus import prometheus
from tests.forked_cluster import ForkedCluster

T = TypeVar("T")

PROGRAMS = ("prometheus", "prometheus-node-exporter")
WITHIN_S = 30.0

pytestmark = pytest.mark.skipif(
    any(shutil.which(program) is None for program in PROGRAMS) and not os.environ.get("CI"),
    reason=f"needs {', '.join(PROGRAMS)} of Debian",
)


def eventually(find: Callable[[], T]) -> T:
    give_up = time.monotonic() + WITHIN_S
    while not (value := find()):
        assert time.monotonic() < give_up, "it did not come true in time"
        time.sleep(0.1)
    return value


@dataclass
class Place:
    cluster: Cluster
    directory: Path
    exporter: str
    prometheus: str

    def configure(self, *scrape_configs: dict[str, Any]) -> None:
        path = self.directory / "prometheus.yml"
        path.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scrape_configs}))

    def reload(self, *scrape_configs: dict[str, Any]) -> None:
        self.configure(*scrape_configs)
        answer = self.cluster.request("POST", "/-/reload")
        assert answer.status == 200, answer.body

    def query(self, text: str) -> dict[str, float]:
        """Value by instance."""
        result = self.cluster.get("/api/v1/query", query=text).json()["data"]["result"]
        return {series["metric"].get("instance", ""): float(series["value"][1]) for series in result}

    def targets(self, **parameters: str) -> dict[str, Any]:
        return self.cluster.get("/api/v1/targets", **parameters).json()["data"]

    def node(self, **fields: Any) -> dict[str, Any]:
        return {"job_name": "node", "static_configs": [{"targets": [self.exporter]}], **fields}


def from_prometheus(url: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
        return json.load(answer)["data"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("scraping")
    exporter, port = f"127.0.0.1:{free_port()}", free_port()
    settings = {"TRIPTYCH_PROMETHEUS_CONFIG": str(directory / "prometheus.yml"), "TRIPTYCH_SELF_SCRAPE": "1s"}
    running = ForkedCluster(directory, shards=2, workers=1, settings=settings)
    place = Place(running, directory, exporter, f"http://127.0.0.1:{port}")
    place.configure(place.node())
    (directory / "reference").mkdir()
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [place.node()]}
    # Without collectors whose series come and go from one second to the next.
    command = ["prometheus-node-exporter", f"--web.listen-address={exporter}", "--collector.disable-defaults"]
    command += [f"--collector.{name}" for name in ("cpu", "loadavg", "meminfo", "stat", "time", "uname", "vmstat")]
    with open(directory / "exporter.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        running.start()
        with prometheus(directory / "reference", config, "memory-snapshot-on-shutdown", port):
            yield place
    finally:
        running.kill()
        end(process, 5)


def named(series: list[dict[str, str]]) -> set[frozenset[tuple[str, str]]]:
    """Quantiles and buckets as numbers: Prometheus 2 keeps their text."""
    for labels in series:
        for name in ("le", "quantile"):
            if name in labels:
                labels[name] = str(float(labels[name]))
    return {frozenset(labels.items()) for labels in series}


def test_the_series_of_a_target_are_those_that_prometheus_has(place: Place) -> None:
    def both() -> bool:
        try:
            theirs = named(from_prometheus(place.prometheus, "series", **{"match[]": '{job="node"}'}))
        except OSError:
            return False  # it does not listen yet
        ours = named(place.cluster.get("/api/v1/series", **{"match[]": '{job="node"}'}).json()["data"])
        return len(theirs) > 100 and ours == theirs

    eventually(both)
    (start,) = place.query("process_start_time_seconds{job='node'}").values()
    reference = from_prometheus(place.prometheus, "query", query="process_start_time_seconds")["result"]
    assert start == float(reference[0]["value"][1])
    kind = place.cluster.get("/api/v1/metadata", metric="node_cpu_seconds_total").json()["data"]
    assert kind["node_cpu_seconds_total"][0]["type"] == "counter"


def test_targets_are_told_in_the_shape_of_prometheus(place: Place) -> None:
    theirs = eventually(lambda: from_prometheus(place.prometheus, "targets")["activeTargets"])[0]
    (ours,) = place.targets(scrapePool="node")["activeTargets"]
    assert ours.keys() == theirs.keys()
    same = ("labels", "scrapePool", "scrapeUrl", "scrapeInterval", "scrapeTimeout")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert ours["discoveredLabels"] == theirs["discoveredLabels"]
    assert ours["health"] == "up" and ours["lastError"] == ""
    pools = place.cluster.get("/api/v1/scrape_pools").json()["data"]["scrapePools"]
    assert pools == ["node", "triptych"]
    own = next(target for target in place.targets()["activeTargets"] if target["scrapePool"] == "triptych")
    assert own["labels"]["job"] == "triptych" and own["scrapeInterval"] == "1s"
    eventually(lambda: place.query('up{job="triptych"}'))
    assert place.targets(state="dropped")["activeTargets"] == []
    assert place.cluster.get("/api/v1/targets", state="some").status == 400


def test_what_targets_say_of_their_metrics_is_told_by_target(place: Place) -> None:
    path = "/api/v1/targets/metadata"
    (entry,) = place.cluster.get(path, match_target='{job="node"}', metric="node_load1").json()["data"]
    assert entry["target"]["job"] == "node" and entry["type"] == "gauge" and entry["help"]
    assert "metric" not in entry
    some = place.cluster.get(path, match_target='{job=~"no.*"}', limit="3").json()["data"]
    assert len(some) == 3 and all(entry["metric"] for entry in some)
    assert place.cluster.get(path, match_target='{job="other"}').json()["data"] == []


def test_targets_come_and_go_with_their_file_and_series_end(place: Place) -> None:
    path = place.directory / "targets.json"
    addresses = [place.exporter, *(f"10.0.0.{i}:1" for i in range(150))]
    path.write_text(json.dumps([{"targets": addresses, "labels": {"env": "test"}}]))
    drop = {"source_labels": ["__address__"], "regex": ".*:1", "action": "drop"}
    files = {
        "job_name": "files",
        "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "200ms"}],
        "relabel_configs": [drop],
        "metric_relabel_configs": [{"source_labels": ["__name__"], "regex": "node_load1", "action": "keep"}],
    }
    place.reload(place.node(), files)
    assert eventually(lambda: place.query('node_load1{env="test"}'))
    data = place.targets(scrapePool="files")
    assert data["droppedTargetCounts"] == {"files": 150} and len(data["droppedTargets"]) == 150
    assert data["droppedTargets"][0]["discoveredLabels"]["__address__"] == "10.0.0.0:1"
    path_of_all, accepted = "/api/v1/targets?scrapePool=files&state=dropped", {"Accept-Encoding": "gzip"}
    zipped = place.cluster.request("GET", path_of_all, headers=accepted)
    assert zipped.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(zipped.body))["data"]["droppedTargets"] == data["droppedTargets"]
    path.write_text("[]")
    eventually(lambda: not place.query('{env="test"}'))
    assert place.query("node_load1"), "the other job goes on"


def test_a_wrong_file_changes_nothing_and_a_target_that_fails_is_down(place: Place) -> None:
    place.reload(place.node())
    place.configure({"job_name": "node", "scheme": "ftp"})
    refused = place.cluster.request("POST", "/-/reload")
    assert refused.status == 500 and "must be one of http, https" in refused.body.decode()
    assert place.targets(scrapePool="node")["activeTargets"]
    place.reload(place.node(metrics_path="/"))
    eventually(lambda: place.query('up{job="node"}') == {place.exporter: 0.0})
    (target,) = place.targets(scrapePool="node")["activeTargets"]
    assert target["health"] == "down" and "Content-Type is 'text/html" in target["lastError"]
    assert place.query("node_load1") == {}
    place.reload()
    eventually(lambda: not place.query('up{job="node"}'))
    text = place.cluster.get("/metrics").body.decode()
    assert 'triptych_scrapes_total{outcome="failed"}' in text and "triptych_scrape_samples_total" in text

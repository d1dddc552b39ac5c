"""Programs that are made for Prometheus meet no 404: the calls of Grafana's data source, promtool, vmalert."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.ports import free_port
from loadtest.harness.processes import end
from loadtest.harness.remote_write_bodies import HEADERS, compressed

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept-Encoding": "gzip", "User-Agent": "Grafana/11.5.0"}
WITHIN_S = 40.0


@pytest.fixture
def no_404(cluster: Cluster) -> Iterator[None]:
    """Fails if a request of the test was answered with 404 or 405."""
    before = misses(cluster)
    yield
    assert misses(cluster) == before


def misses(cluster: Cluster) -> list[str]:
    lines = cluster.get("/metrics").body.decode().splitlines()
    return [line for line in lines if "http_requests_total" in line and ('"404"' in line or '"405"' in line)]


@pytest.fixture
def now_s(cluster: Cluster) -> int:
    """The time, at which two series have a sample every five seconds."""
    now = int(time.time())
    times = [(t * 1000, float(t)) for t in range(now - 600, now, 5)]
    series = [({"__name__": "grafana_up", "job": "a", "instance": i}, times) for i in ("x", "y")]
    assert cluster.request("POST", "/api/v1/write", compressed(series), HEADERS).status == 204
    return now


def called(cluster: Cluster, method: str, path: str, *fields: tuple[str, str]) -> Any:
    text = urllib.parse.urlencode(fields)
    answer: Response
    if method == "POST":
        answer = cluster.request("POST", f"/api/v1/{path}", text.encode(), FORM | {"Accept-Encoding": "identity"})
    else:
        answer = cluster.request("GET", f"/api/v1/{path}?{text}")
    assert answer.status == 200, answer.body
    assert answer.json()["status"] == "success"
    return answer.json()["data"]


@pytest.mark.usefixtures("no_404")
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_grafana_s_data_source(cluster: Cluster, now_s: int, method: str) -> None:
    span = (("start", str(now_s - 600)), ("end", str(now_s)))
    select = ("match[]", '{__name__="grafana_up"}')
    # Save & test: a query whose answer is known, and which kind of server it is.
    health = called(cluster, method, "query", ("query", "1+1"), ("time", "4"))
    assert health == {"resultType": "scalar", "result": [4, "2"]}
    built = called(cluster, "GET", "status/buildinfo")
    assert "features" not in built
    # The editor: names of metrics and labels, their values, and what they mean.
    assert "grafana_up" in called(cluster, "GET", "label/__name__/values", *span)
    assert {"job", "instance"} < set(called(cluster, method, "labels", *span))
    assert called(cluster, method, "labels", *span, select) == ["__name__", "instance", "job"]
    assert called(cluster, "GET", "label/instance/values", *span, select, ("limit", "40000")) == ["x", "y"]
    assert len(called(cluster, method, "series", *span, select, ("limit", "40000"))) == 2
    called(cluster, "GET", "metadata", ("limit", "40000"), ("limit_per_metric", "1"))
    # Panels: ranges, an instant, exemplars; annotations are a range as well.
    query = ("query", 'sum by (job) (rate(grafana_up{job="a"}[1m0s]))')
    times = (("start", f"{now_s - 300}.123"), ("end", f"{now_s}.000"), ("step", "15"))
    matrix = called(cluster, method, "query_range", query, *times)
    assert matrix["resultType"] == "matrix"
    assert len(matrix["result"][0]["values"]) == 20
    vector = called(cluster, method, "query", ("query", "grafana_up"), ("time", f"{now_s}.5"))
    assert len(vector["result"]) == 2
    assert called(cluster, method, "query_exemplars", query, *span) == []
    annotations = (("query", "ALERTS{alertstate='firing'}"), *span, ("step", "60s"))
    assert called(cluster, method, "query_range", *annotations)["result"] == []
    # The alert list, and the pages that only look.
    assert called(cluster, "GET", "rules", ("type", "alert"), ("group_limit", "40")) == {"groups": []}
    assert called(cluster, "GET", "alerts") == {"alerts": []}
    for path in ("targets", "alertmanagers", "features", "scrape_pools", "notifications"):
        called(cluster, "GET", path)
    for path in ("flags", "config", "runtimeinfo", "tsdb", "walreplay"):
        called(cluster, "GET", f"status/{path}")


@pytest.mark.usefixtures("no_404")
@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus is not installed")
def test_promtool(cluster: Cluster, now_s: int, tmp_path: Path) -> None:
    def run(*arguments: str, text: str | None = None) -> str:
        done = subprocess.run(
            ["promtool", *arguments], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    url = cluster.url
    assert run("query", "instant", url, "count(grafana_up)").startswith("{} => 2 @")
    ends = (f"--start={now_s - 300}", f"--end={now_s}", "--step=30s")
    assert run("query", "range", *ends, url, "sum(grafana_up)").count(" @[") == 11
    assert run("query", "series", "--match=grafana_up", url).count("grafana_up") == 2
    assert run("query", "labels", url, "instance").split()[-2:] == ["x", "y"]
    run("debug", "metrics", url)
    run("check", "metrics", text=cluster.get("/metrics").body.decode())
    federated = cluster.request("GET", "/federate?match[]=grafana_up").body.decode()
    assert federated.count("\ngrafana_up{") == 2
    assert cluster.get("/-/healthy").status == cluster.get("/-/ready").status == 200


@pytest.mark.usefixtures("no_404")
@pytest.mark.skipif(shutil.which("vmalert") is None, reason="Debian's victoria-metrics is not installed")
def test_vmalert_reads_records_and_restores(cluster: Cluster, now_s: int, tmp_path: Path) -> None:
    rules = [
        {"record": "job:grafana_up:count", "expr": "count by (job) (grafana_up)"},
        {"alert": "TwoAreUp", "expr": "count by (job) (grafana_up) == 2", "for": "2s"},
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "g", "interval": "1s", "rules": rules}]}))  # JSON is YAML
    command = [
        "vmalert",
        f"-rule={path}",
        f"-datasource.url={cluster.url}",
        f"-remoteWrite.url={cluster.url}",
        f"-remoteRead.url={cluster.url}",
        "-remoteWrite.flushInterval=200ms",
        f"-notifier.url=http://127.0.0.1:{free_port()}",
        f"-httpListenAddr=127.0.0.1:{free_port()}",
    ]
    log = tmp_path / "vmalert.log"

    def result(query: str) -> list[Any]:
        found: list[Any] = called(cluster, "GET", "query", ("query", query))["result"]
        return found

    def found_while_it_runs(query: str) -> list[Any]:
        with open(log, "ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            give_up = time.monotonic() + WITHIN_S
            while not (found := result(query)):
                assert process.poll() is None and time.monotonic() < give_up, log.read_text()
                time.sleep(0.2)
            return found
        finally:
            end(process, 10)

    state = 'ALERTS_FOR_STATE{alertname="TwoAreUp"}'
    firing = found_while_it_runs('ALERTS{alertname="TwoAreUp",alertstate="firing"}')
    assert firing[0]["metric"]["job"] == "a"
    assert result("job:grafana_up:count")[0]["value"][1] == "2"
    since = result(f"last_over_time({state}[1m])")[0]["value"][1]
    stopped_s = time.time()
    # Another process goes on with the time at which the alert began.
    assert found_while_it_runs(f"{state} == {since} and timestamp({state}) > {stopped_s}")

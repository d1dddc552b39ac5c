"""Rules over HTTP: evaluated, stored, alerted to a real Alertmanager, changed without a restart, taken over by the next
start; and vmalert beside them gives the same results."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtest.harness.cluster import Cluster
from loadtest.harness.ports import free_port
from loadtest.harness.processes import end
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.forked_cluster import ForkedCluster

WITHIN_S = 20.0
RULES = {
    "groups": [
        {
            "name": "recorded",
            "rules": [
                {"record": "job:m:sum", "expr": "sum by (job) (m)", "labels": {"kind": "sum"}},
                {"record": "job:m:double", "expr": 'job:m:sum{by=""} * 2'},
                {"record": "wrong", "expr": "m + on () m"},
                {"record": "one", "expr": "vector(1)"},
            ],
        },
        {
            "name": "alerts",
            "rules": [
                {
                    "alert": "High",
                    "expr": "m > 5",
                    "for": "1s",
                    "labels": {"severity": "page"},
                    "annotations": {
                        "summary": "{{ $labels.i }} has {{ $value | humanize }} in {{ $externalLabels.region }}"
                    },
                },
                {"alert": "Quiet", "expr": "absent(m)"},
            ],
        },
    ]
}


@dataclass
class Place:
    cluster: Cluster
    rules: Path
    config: Path
    alertmanager: str

    def vector(self, query: str) -> dict[str, float]:
        """Of the series that it gives, their labels as text and their values."""
        answer = self.cluster.get("/api/v1/query", query=query)
        assert answer.status == 200, answer.body
        return {
            json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in answer.json()["data"]["result"]
        }

    def wait(self, condition: Callable[[], Any]) -> Any:
        give_up = time.monotonic() + WITHIN_S
        while not (seen := condition()):
            assert time.monotonic() < give_up, self.cluster.log("coordinator")[-3000:]
            time.sleep(0.1)
        return seen

    def groups(self, **parameters: Any) -> list[dict[str, Any]]:
        answer = self.cluster.get("/api/v1/rules", **parameters)
        assert answer.status == 200, answer.body
        return list(answer.json()["data"]["groups"])

    def metric(self, line: str) -> bool:
        return line in self.cluster.get("/metrics").body.decode()


def write(cluster: Cluster, *samples: tuple[dict[str, str], float], age_s: float = 0.0) -> None:
    now_ms = int((time.time() - age_s) * 1000)
    body = compressed([({"__name__": "m", **labels}, [(now_ms, value)]) for labels, value in samples])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204


@contextmanager
def alertmanager(directory: Path) -> Iterator[str]:
    """The URL of one, empty if it is not installed."""
    if shutil.which("prometheus-alertmanager") is None:
        yield ""
        return
    port = free_port()
    (directory / "am.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    command = ["prometheus-alertmanager", f"--config.file={directory}/am.yml", f"--storage.path={directory}/am"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with open(directory / "am.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process, 5)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("rules")
    with alertmanager(directory) as url:
        config, rules = directory / "prometheus.yml", directory / "rules.yml"
        rules.write_text(yaml.safe_dump(RULES))
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"evaluation_interval": "1s", "external_labels": {"region": "eu"}},
                    "rule_files": ["*.nothing", "rules.yml"],
                    "alerting": {
                        "alert_relabel_configs": [{"target_label": "added", "replacement": "by relabelling"}],
                        "alertmanagers": [
                            {"static_configs": [{"targets": [url.removeprefix("http://")] if url else []}]},
                        ],
                    },
                }
            )
        )
        settings = {"TRIPTYCH_PROMETHEUS_CONFIG": str(config), "TRIPTYCH_EXTERNAL_URL": "http://triptych.example/"}
        cluster = ForkedCluster(directory, settings=settings).start()
        write(cluster, ({"job": "a", "i": "1"}, 2.0), ({"job": "a", "i": "2"}, 7.0), ({"job": "b", "i": "3"}, 1.0))
        yield Place(cluster, rules, config, url)
        cluster.stop()


def test_results_are_stored_and_a_rule_that_fails_harms_no_other(place: Place) -> None:
    double = {
        '{"__name__": "job:m:double", "job": "a", "kind": "sum"}': 18.0,
        '{"__name__": "job:m:double", "job": "b", "kind": "sum"}': 2.0,
    }
    place.wait(lambda: place.vector('job:m:double{by=""}') == double)
    place.wait(lambda: place.vector("one") == {'{"__name__": "one"}': 1.0})
    recorded = next(group for group in place.groups() if group["name"] == "recorded")
    assert recorded["interval"] == 1 and recorded["file"] == str(place.rules) and recorded["evaluationTime"] > 0
    health = {rule["name"]: rule["health"] for rule in recorded["rules"]}
    assert health == {"job:m:sum": "ok", "job:m:double": "ok", "wrong": "err", "one": "ok"}
    assert (
        "many-to-many" in recorded["rules"][2]["lastError"] or "multiple matches" in recorded["rules"][2]["lastError"]
    )
    assert place.metric('triptych_rule_evaluation_failures_total{rule_group="')


def test_an_alert_fires_and_reaches_the_alertmanager(place: Place) -> None:
    def firing() -> list[dict[str, Any]]:
        alerts = place.cluster.get("/api/v1/alerts").json()["data"]["alerts"]
        return [alert for alert in alerts if alert["state"] == "firing" and alert["labels"]["alertname"] == "High"]

    (alert,) = place.wait(firing)
    labels = {"alertname": "High", "severity": "page", "job": "a", "i": "2"}
    assert alert["labels"] == labels and alert["value"] == "7e+00"
    assert alert["annotations"] == {"summary": "2 has 7 in eu"}
    shown = {"__name__": "ALERTS", "alertstate": "firing", **labels}
    place.wait(lambda: place.vector('ALERTS{alertname="High"}') == {json.dumps(shown, sort_keys=True): 1.0})
    if not place.alertmanager:
        pytest.skip("Debian's prometheus-alertmanager is not installed")
    listed = place.cluster.get("/api/v1/alertmanagers").json()["data"]
    assert listed == {
        "activeAlertmanagers": [{"url": f"{place.alertmanager}/api/v2/alerts"}],
        "droppedAlertmanagers": [],
    }

    def received() -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{place.alertmanager}/api/v2/alerts", timeout=5) as answer:
            return [one for one in json.load(answer) if one["labels"]["alertname"] == "High"]

    (got,) = place.wait(received)
    assert got["labels"] == {**labels, "region": "eu", "added": "by relabelling"}
    assert got["annotations"] == {"summary": "2 has 7 in eu"}
    assert got["generatorURL"] == "http://triptych.example/graph?g0.expr=m+%3E+5&g0.tab=1"


def test_rules_are_filtered_and_paged(place: Place) -> None:
    def names(**parameters: Any) -> list[str]:
        return [rule["name"] for group in place.groups(**parameters) for rule in group["rules"]]

    assert names(type="alert") == ["High", "Quiet"] and len(names(type="record")) == 4
    assert names(**{"rule_name[]": ["one", "Quiet"]}) == ["Quiet", "one"]
    assert names(**{"rule_group[]": "alerts"}) == ["High", "Quiet"]
    assert names(**{"file[]": "elsewhere.yml"}) == []
    assert names(**{"match[]": ['{severity="page"}', '{kind=~"s.*"}']}) == ["High", "job:m:sum"]
    assert all(
        not rule["alerts"] for group in place.groups(type="alert", exclude_alerts="true") for rule in group["rules"]
    )
    first = place.cluster.get("/api/v1/rules", group_limit="1").json()["data"]
    second = place.cluster.get("/api/v1/rules", group_limit="1", group_next_token=first["groupNextToken"]).json()[
        "data"
    ]
    assert [group["name"] for page in (first, second) for group in page["groups"]] == ["alerts", "recorded"]
    assert "groupNextToken" not in second


def test_vmalert_gives_the_same_results(place: Place, tmp_path: Path) -> None:
    if shutil.which("vmalert") is None:
        pytest.skip("Debian's vmalert is not installed")
    write(place.cluster, ({"job": "a", "i": "1"}, 2.0), ({"job": "a", "i": "2"}, 7.0), ({"job": "b", "i": "3"}, 1.0))
    groups = [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("record") != "wrong"]}
        for group in RULES["groups"]
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    command = ["vmalert", f"-rule={tmp_path}/rules.yml", f"-datasource.url={place.cluster.url}"]
    command += [f"-remoteWrite.url={place.cluster.url}", f"-httpListenAddr=127.0.0.1:{free_port()}"]
    command += ["-notifier.url=http://127.0.0.1:9", "-evaluationInterval=1s", "-external.label=by=vmalert"]
    command += ["-remoteWrite.flushInterval=200ms", "-external.label=region=eu"]
    with open(tmp_path / "vmalert.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for name in ("job:m:sum", "job:m:double", "one", 'ALERTS{alertstate="firing"}'):
            other = name.replace("{", '{by="vmalert",') if "{" in name else f'{name}{{by="vmalert"}}'
            own = name.replace("{", '{by="",') if "{" in name else f'{name}{{by=""}}'
            place.wait(
                lambda own=own, other=other: (  # type: ignore[misc]
                    place.vector(f"sum without (by, region, alertgroup) ({own})")
                    == place.vector(f"sum without (by, region, alertgroup) ({other})")
                    and place.vector(other)
                )
            )
    finally:
        end(process, 5)


def test_a_start_goes_on_with_the_alerts_of_the_one_before(place: Place) -> None:
    rules = {"groups": [{"name": "held", "rules": [{"alert": "Held", "expr": "m > 5", "for": "1h"}]}]}
    place.rules.write_text(yaml.safe_dump(rules))
    assert place.cluster.request("POST", "/-/reload").status == 200

    def since() -> dict[str, float]:
        return place.vector('ALERTS_FOR_STATE{alertname="Held"}')

    before = place.wait(since)
    time.sleep(1.5)
    coordinator = place.cluster.coordinator
    assert coordinator is not None
    coordinator.kill()
    coordinator.wait()
    place.cluster.start_coordinator()
    place.cluster.wait_ready()
    (alert,) = place.wait(lambda: place.cluster.get("/api/v1/alerts").json()["data"]["alerts"])
    assert alert["state"] == "pending"
    time.sleep(1.5)
    (was,), (is_now,) = before.values(), since().values()
    assert 0 <= is_now - was < 10  # the time of the outage does not count
    assert alert["activeAt"].startswith(time.strftime("%Y-%m-%dT", time.gmtime(was)))


def test_a_wrong_file_keeps_what_is_in_force(place: Place) -> None:
    place.rules.write_text("groups: [{name: g, rules: [{record: r, expr: sum(}]}]")
    answer = place.cluster.request("POST", "/-/reload")
    assert answer.status == 500 and "could not parse the expression" in answer.json()["error"]
    assert str(place.rules) in answer.json()["error"]
    assert [group["name"] for group in place.groups()] == ["held"]
    assert place.metric("triptych_config_last_reload_successful 0.0")
    assert not place.cluster.get("/api/v1/status/runtimeinfo").json()["data"]["reloadConfigSuccess"]
    place.rules.write_text("groups: [{name: new, rules: [{record: r, expr: '3'}]}]")
    coordinator = place.cluster.coordinator
    assert coordinator is not None
    coordinator.send_signal(signal.SIGHUP)
    place.wait(lambda: [group["name"] for group in place.groups()] == ["new"])
    place.wait(lambda: place.metric("triptych_config_last_reload_successful 1.0"))
    place.wait(lambda: place.vector("r") == {'{"__name__": "r"}': 3.0})
    assert not place.vector('ALERTS_FOR_STATE{by=""}')  # ended with their rule
    shown = yaml.safe_load(place.cluster.get("/api/v1/status/config").json()["data"]["yaml"])
    assert shown["rule_files"] == ["*.nothing", "rules.yml"] and shown["global"]["evaluation_interval"] == "1s"
    assert place.cluster.request("PUT", "/-/reload").status == 200
